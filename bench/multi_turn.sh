#!/bin/bash
# bench/multi_turn.sh [SERVER FLAGS ...] [-- BENCH FLAGS ...]
# Chats whose pages have left the device when a user comes back, with and without the hierarchical
# cache: starts `attune serve` once a mode, puts `attune bench serving --dataset-name multi-turn` on
# it and prints a row of a table. Set --max-total-tokens (L1) to a part of the whole history:
# users x turns x (input + output) tokens.
# Environment: ATTUNE (build/release/attune); CLIENT (the same); PORT (30800); MODES (see below);
# HICACHE: flags of the modes with the cache (--hicache-size GB, ...); LIMIT_S: no mode starts
# after so many seconds; LOGS: a folder that keeps each server's log and each result.
set -euo pipefail
attune=${ATTUNE:-build/release/attune}
client=${CLIENT:-$attune}
port=${PORT:-30800}
modes=${MODES:-off auto always recompute}
logs=${LOGS:-$(mktemp -d)}
mkdir -p "$logs"
server_flags=() bench_flags=()
while (($#)) && [[ $1 != -- ]]; do server_flags+=("$1") && shift; done
(($#)) && shift && bench_flags=("$@")

mode_flags() {
  case $1 in
  off) ;;                                                                   # the device alone
  auto) echo "--enable-hierarchical-cache ${HICACHE:-}" ;;                  # load or compute
  always) echo "--enable-hierarchical-cache ${HICACHE:-} --hicache-load-back always" ;;
  recompute) echo "--disable-radix-cache" ;;                                # every prompt whole
  *) echo "unknown mode '$1': off, auto, always or recompute" >&2 && return 1 ;;
  esac
}

get() { # PATH: the reply, its head included
  {
    exec 3<>"/dev/tcp/127.0.0.1/$port"
    printf 'GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' "$1" >&3
    cat <&3
    exec 3>&-
  } 2>/dev/null
}
metric() { # PATTERN: the sum of its samples
  get /metrics | tr -d '\r' | awk -v want="$1" 'substr($0, 1, 1) != "#" && $0 ~ want { sum += $NF }
    END { printf "%.4f", sum }'
}
field() { # NAME: the first of that name in the result
  grep -o "\"$1\":[0-9.e+-]*" "$result" | head -1 | cut -d: -f2
}
last_turn() { # NAME: in the last of "turns"
  grep -o "\"$1\":[0-9.e+-]*" "$result" | tail -1 | cut -d: -f2
}

# Until the server answers and all of the host pool can be used.
wait_ready() {
  for _ in $(seq 1200); do
    kill -0 "$server" 2>/dev/null || { tail -5 "$log" >&2 && return 1; }
    if (get /health) | head -1 | grep -q ' 200 '; then
      [[ $1 == off || $1 == recompute ]] && return
      [[ $( (metric '^attune:hicache_host_ready')) == 1.0000 ]] && return
    fi
    sleep 0.1
  done
  echo "no server, or no host pool, after two minutes: $log" >&2 && return 1
}

stop() {
  [[ -z ${server:-} ]] && return
  kill "$server" 2>/dev/null && wait "$server" 2>/dev/null || true
  server=
}
trap stop EXIT

run_mode() {
  log=$logs/$1.log result=$logs/$1.json
  local flags
  flags=$(mode_flags "$1")
  # shellcheck disable=SC2086  # several flags
  "$attune" serve --port "$port" "${server_flags[@]}" $flags >"$log" 2>&1 &
  server=$!
  wait_ready "$1"
  "$client" bench serving --port "$port" --dataset-name multi-turn --json "${bench_flags[@]}" \
    >"$result" 2>"$logs/$1.client.log" || { tail -5 "$logs/$1.client.log" "$result" >&2; return 1; }
  local input device host loads recomputes
  input=$(field total_input_tokens)
  device=$( (metric '^attune:cached_tokens_total.*tier="device"'))
  host=$( (metric '^attune:cached_tokens_total.*tier="host"'))
  loads=$( (metric '^attune:hicache_load_decisions_total.*decision="load"'))
  recomputes=$( (metric '^attune:hicache_load_decisions_total.*decision="recompute"'))
  get /metrics | grep -a '^attune:\(cache\|hicache\)' >"$logs/$1.metrics" || true
  stop
  printf '| %s | %.0f | %.0f | %.0f | %.0f | %.0f | %.1f %% | %.1f %% | %.1f %% | %.0f / %.0f | %.0f | %.1f |\n' \
    "$1" "$(field mean_ttft_ms)" "$(field median_ttft_ms)" "$(field p90_ttft_ms)" \
    "$(field p99_ttft_ms)" "$(last_turn mean_ttft_ms)" \
    "$(awk "BEGIN { print 100 * $(field cache_hit_rate) }")" \
    "$(awk "BEGIN { print 100 * $device / $input }")" \
    "$(awk "BEGIN { print 100 * $host / $input }")" "$loads" "$recomputes" \
    "$(field total_throughput)" "$(field duration)"
  local failed
  failed=$(field failed)
  [[ $failed == 0 ]] || echo "$failed requests failed: see $result" >&2
}

echo "| mode | TTFT mean, ms | median | p90 | p99 | last turn, mean | cached | device | host | loads / recomputes | tokens/s | s |"
echo "|---|---|---|---|---|---|---|---|---|---|---|---|"
begin=$SECONDS
for mode in $modes; do
  ((SECONDS - begin < ${LIMIT_S:-86400})) || { echo "left out: $mode"; continue; }
  run_mode "$mode"
done
