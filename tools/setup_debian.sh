# Sourced by setup.sh: Debian packages after debian.lock.

# "name version-prefix" of every package locked for the purposes given.
locked_packages() {
  local purpose
  for purpose in "$@"; do
    awk -v purpose="$purpose" '$1 == purpose { print $2, $3 }' debian.lock
  done
}

installed_version() {
  dpkg-query -W -f '${db:Status-Status} ${Version}' "$1" 2>/dev/null | sed -n 's/^installed //p'
}

# The newest version of the archive that begins with the locked prefix, or the archive's candidate.
archive_version() {
  local name=$1 prefix=$2 version
  while read -r version; do
    [[ $version == "$prefix"* ]] && echo "$version" && return
  done < <(apt-cache madison "$name" 2>/dev/null | awk -F' *[|] *' '{ print $2 }')
  apt-cache policy "$name" 2>/dev/null | awk '$1 == "Candidate:" && $2 != "(none)" { print $2 }'
}

install_debian_packages() {
  local name prefix version missing=() wanted=()
  command -v dpkg-query >/dev/null || { check_tools_without_dpkg && return; }
  while read -r name prefix; do
    version=$(installed_version "$name" || true)
    if [[ -z $version ]]; then
      missing+=("$name $prefix")
    elif [[ $version != "$prefix"* ]]; then
      note "$name $version is installed, $prefix is locked (debian.lock): using what is installed"
    fi
  done < <(locked_packages "$@")
  ((${#missing[@]})) || return 0

  if [[ $(id -u) != 0 ]]; then
    printf 'attune: these Debian packages are missing, and installing them needs root:\n\n  apt-get install --no-install-recommends' >&2
    printf ' %s' "${missing[@]% *}" >&2
    printf '\n\nInstall them, then run this again.\n' >&2
    exit 1
  fi
  say "Installing ${#missing[@]} Debian packages: ${missing[*]% *}"
  apt-get update -q
  for name in "${missing[@]}"; do
    prefix=${name#* } name=${name% *}
    version=$(archive_version "$name" "$prefix")
    [[ -n $version ]] || die "no package $name in this system's archive; debian.lock is for Debian 12 (bookworm)"
    [[ $version == "$prefix"* ]] || note "$name $prefix is locked, the archive has $version: taking that"
    wanted+=("$name=$version")
  done
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${wanted[@]}" </dev/null
}

check_tools_without_dpkg() {
  local tool
  for tool in g++ cmake ninja python3; do
    command -v "$tool" >/dev/null || die "this is no Debian system and $tool is missing; debian.lock lists what the build needs"
  done
  note "no Debian system: debian.lock lists what should be here"
}
