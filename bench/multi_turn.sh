#!/bin/bash
# bench/multi_turn.sh [SERVER FLAGS ...] [-- BENCH FLAGS ...] ...
# Chats whose pages have left the device when a user comes back, with and without the hierarchical
# cache: starts `attune serve` once a mode, puts `attune bench serving --dataset-name multi-turn` on
# it (once for each set of its flags) and prints a row of a table. Set --max-total-tokens (L1) to a part of the whole history:
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
server_flags=() bench_sets=()
while (($#)) && [[ $1 != -- ]]; do server_flags+=("$1") && shift; done
while (($#)); do # each "--" begins a set
  if [[ $1 == -- ]]; then bench_sets+=(""); else bench_sets[-1]+=" $1"; fi
  shift
done
((${#bench_sets[@]})) || bench_sets=("")

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
    kill -0 "$server" 2>/dev/null || { tail -n 5 "$log" >&2 && return 1; }
    if (get /health) | head -1 | grep -q ' 200 '; then
      [[ $1 == off || $1 == recompute ]] && return
      [[ $(metric '^attune:hicache_host_ready') == 1.0000 ]] && return
    fi
    sleep 0.1
  done
  echo "no server, or no host pool, after two minutes: $log" >&2 && return 1
}

stop() {
  [[ -z ${server:-} ]] && return
  kill "$server" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
  server=
}
trap stop EXIT

# Tokens found on the device and in host memory, decisions to load and to recompute, so far.
counts() {
  local tokens='^attune:cached_tokens_total' decisions='^attune:hicache_load_decisions_total'
  echo "$(metric "$tokens.*tier=\"device\"") $(metric "$tokens.*tier=\"host\"")" \
    "$(metric "$decisions.*\"load\"") $(metric "$decisions.*\"recompute\"")"
}

row() { # MODE BEFORE AFTER: of the result, with counts before and after it
  local input
  input=$(field total_input_tokens)
  # shellcheck disable=SC2086  # four numbers each
  printf '%s ' $2 $3 | awk -v mode="$1" -v input="$input" -v ttft="$(field mean_ttft_ms) $(
    field median_ttft_ms) $(field p90_ttft_ms) $(field p99_ttft_ms) $(last_turn mean_ttft_ms)" \
    -v cached="$(field cache_hit_rate)" -v rate="$(field total_throughput)" \
    -v seconds="$(field duration)" '{
      split(ttft, t, " ")
      printf "| %s | %d | %.1f | %.1f | %.1f | %.1f | %.1f | ", mode, input, t[1], t[2], t[3], t[4], t[5]
      printf "%.1f | %.1f | %.1f | %d / %d | ", cached * 100, ($5 - $1) / input * 100,
        ($6 - $2) / input * 100, $7 - $3, $8 - $4
      printf "%.0f | %.1f |\n", rate, seconds
    }'
}

run_set() { # MODE NUMBER FLAGS
  result=$logs/$1.$2.json
  local before errors=$logs/$1.$2.err
  before=$(counts)
  # shellcheck disable=SC2086  # several flags
  "$client" bench serving --port "$port" --dataset-name multi-turn --json $3 \
    >"$result" 2>"$errors" || { tail -n 5 "$errors" "$result" >&2; return 1; }
  row "$1" "$before" "$(counts)"
  [[ $(field failed) == 0 ]] || echo "$(field failed) requests failed: see $result" >&2
}

run_mode() {
  log=$logs/$1.log
  local flags n=0
  flags=$(mode_flags "$1")
  # shellcheck disable=SC2086  # several flags
  "$attune" serve --port "$port" "${server_flags[@]}" $flags >"$log" 2>&1 &
  server=$!
  wait_ready "$1"
  for set in "${bench_sets[@]}"; do run_set "$1" $((++n)) "$set"; done
  get /metrics | grep -a '^attune:\(cache\|hicache\)' >"$logs/$1.metrics" || true
  stop
}

echo "| mode | input tokens | TTFT mean, ms | median | p90 | p99 | last turn, mean |" \
  "cached, % | on device | in host | loads / recomputes | tokens/s | s |"
echo "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
begin=$SECONDS
for mode in $modes; do
  ((SECONDS - begin < ${LIMIT_S:-86400})) || { echo "left out: $mode"; continue; }
  run_mode "$mode"
done
