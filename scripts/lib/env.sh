# shellcheck shell=bash
# The one place that knows how the scripts get their Python. To be sourced by a script in scripts/.
#
#   AGL_ROOT            the clone, found from this file's own path
#   agl_yes             true after --yes: install what is missing without a question
#   agl_venv LOCK       makes or mends .venv from locks/LOCK (host.txt or dev.txt); 1 on failure
#   agl_preflight ARGS  the checks, with any Python from 3.9 on and nothing installed
#   agl_run ARGS        becomes `agl-stack stack ARGS`

AGL_ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
readonly AGL_ROOT
readonly AGL_STAMP=$AGL_ROOT/.venv/.agl-locks
agl_yes=false
agl_offline=

agl_say() { printf '%s\n' "$*" >&2; }

agl_fail() {
  agl_say "${0##*/}: error: $*"
  return 1
}

# Reads what the shell itself has to know; Python reads the arguments again and judges them.
agl_read_arguments() {
  while (($#)); do
    case $1 in
      --yes | -y) agl_yes=true ;;
      --offline) agl_offline=${2-} ;;
      --offline=*) agl_offline=${1#*=} ;;
    esac
    shift
  done
}

agl_works() { "$@" >/dev/null 2>&1; }

# Prints the first Python that can make the environment.
agl_python() {
  local name
  for name in python3 python3.13 python3.12 python3.11; do
    if agl_works "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'; then
      command -v "$name"
      return 0
    fi
  done
  return 1
}

agl_python_packages() {
  local id='' version=''
  if [[ -r /etc/os-release ]]; then
    # shellcheck disable=SC1091  # a file of the machine
    read -r id version < <(. /etc/os-release && echo "${ID-} ${VERSION_ID-}")
  fi
  case "$id $version" in
    'ubuntu 22.04') echo python3.11 python3.11-venv ;;
    *) echo python3 python3-venv ;;
  esac
}

agl_ask() {
  local answer
  if [[ $agl_yes == true ]]; then return 0; fi
  if [[ ! -t 0 || ! -t 2 ]]; then return 1; fi
  read -r -p "$1 [y/N] " answer
  [[ $answer == [yY]* ]]
}

# Installs Debian packages after consent: agl_apt WHY PACKAGE...
agl_apt() {
  local why=$1 sudo=() fix output
  shift
  fix="sudo apt-get update && sudo apt-get install -y $*"
  if ! command -v apt-get >/dev/null; then
    agl_fail "$why - install it with your system's package manager"
    return 1
  fi
  if ! agl_ask "$why. Install $* with apt-get now?"; then
    agl_fail "$why - type: $fix   (or run again with --yes)"
    return 1
  fi
  if [[ $(id -u) != 0 ]]; then
    sudo=(sudo)
    [[ -t 0 ]] || sudo+=(-n)
  fi
  agl_say "installing $*"
  if ! output=$("${sudo[@]}" sh -c 'export DEBIAN_FRONTEND=noninteractive
    apt-get -q -o DPkg::Lock::Timeout=300 update &&
    apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "$@"' \
    sh "$@" </dev/null 2>&1); then
    agl_say "$output"
    agl_fail "apt-get could not install $* - type: $fix"
  fi
}

agl_sum() { sha256sum <"$AGL_ROOT/locks/$1" | cut -d ' ' -f 1; }

agl_stamped() { [[ -r $AGL_STAMP ]] && grep -qxF -- "$1" "$AGL_STAMP"; }

# .venv serves LOCK: stamped with its sum and this path, or a developer's own that has everything.
agl_venv_current() {
  local lock=$1
  if [[ -e $AGL_STAMP ]]; then
    agl_stamped "root $AGL_ROOT" && agl_stamped "$lock $(agl_sum "$lock")" &&
      agl_works "$AGL_ROOT/.venv/bin/python" -c 'import agl'
  else
    [[ $lock == host.txt ]] && agl_works "$AGL_ROOT/.venv/bin/python" -c '
import pathlib, sys, agl, docker, rich, yaml
sys.exit(pathlib.Path(sys.argv[1], "app") not in pathlib.Path(agl.__file__).parents)' "$AGL_ROOT"
  fi
}

agl_make_venv() {
  local python=$1 clear=()
  if [[ -e $AGL_STAMP ]] && ! agl_stamped "root $AGL_ROOT"; then clear=(--clear); fi
  if ((${#clear[@]} == 0)) && agl_works "$AGL_ROOT/.venv/bin/python" -c 'import pip'; then return 0; fi
  "$python" -m venv --clear "$AGL_ROOT/.venv"
}

# Wheels that an archive of `agl stack images save` carries, unpacked for pip.
agl_wheels() {
  local into=$1
  [[ -n $agl_offline ]] || return 1
  tar -C "$into" -xf "$agl_offline" wheels 2>/dev/null
}

agl_fill_venv() {
  local lock=$1 pip=("$AGL_ROOT/.venv/bin/python" -m pip --disable-pip-version-check -q install)
  local wheels from=() code=0
  wheels=$(mktemp -d) || return 1
  if agl_wheels "$wheels"; then from=(--no-index --find-links "$wheels/wheels"); fi
  "${pip[@]}" "${from[@]}" --require-hashes -r "$AGL_ROOT/locks/$lock" </dev/null >&2 &&
    "${pip[@]}" "${from[@]}" --no-build-isolation --no-deps -e "$AGL_ROOT" </dev/null >&2 || code=1
  rm -rf -- "$wheels"
  return "$code"
}

agl_stamp() {
  local lock=$1
  {
    printf 'root %s\n' "$AGL_ROOT"
    printf '%s %s\n' "$lock" "$(agl_sum "$lock")"
    # The development lock holds everything of the host's.
    if [[ $lock == dev.txt ]]; then printf 'host.txt %s\n' "$(agl_sum host.txt)"; fi
  } >"$AGL_STAMP"
}

agl_venv() {
  local lock=${1##*/} python status=0
  agl_venv_current "$lock" && return 0
  # What a developer installed stays: his environment is renewed from his own lock.
  if [[ $lock == host.txt && -r $AGL_STAMP ]] && grep -q '^dev.txt ' "$AGL_STAMP"; then lock=dev.txt; fi
  if ! python=$(agl_python); then
    local packages
    read -r -a packages < <(agl_python_packages)
    agl_apt 'Python 3.11 or newer with its venv module is missing' "${packages[@]}" || return 1
    python=$(agl_python) || {
      agl_fail 'Python 3.11 or newer is still missing after the installation'
      return 1
    }
  fi
  if [[ ! -w $AGL_ROOT ]]; then
    agl_fail "cannot write in $AGL_ROOT - run it with sudo, or clone into a folder of your own"
    return 1
  fi
  agl_say "preparing the Python environment in $AGL_ROOT/.venv (the first time takes a minute)"
  exec {agl_lock_fd}<"$AGL_ROOT"
  if command -v flock >/dev/null; then flock "$agl_lock_fd"; fi
  if ! agl_venv_current "$lock"; then
    agl_make_venv "$python" && agl_fill_venv "$lock" && agl_stamp "$lock" || status=1
    # Under sudo the clone's owner gets it, so that it can be used and deleted without sudo.
    if [[ $(id -u) == 0 ]]; then chown -R --reference="$AGL_ROOT" -- "$AGL_ROOT/.venv" || status=1; fi
  fi
  exec {agl_lock_fd}<&-
  if [[ $status != 0 ]]; then
    agl_fail "the Python packages of locks/$lock could not be installed (see above) - check the" \
      "network or pip's index settings, then run this again"
    return 1
  fi
}

agl_preflight() {
  local name
  for name in python3 python3.13 python3.12 python3.11; do
    if agl_works "$name" -c 'import sys; sys.exit(sys.version_info < (3, 9))'; then
      (cd -- "$AGL_ROOT" && PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=app "$name" -m agl.ops.preflight "$@")
      return
    fi
  done
  agl_fail "python3 is missing - type: sudo apt-get update && sudo apt-get install -y $(agl_python_packages)"
}

agl_run() {
  # Root leaves no bytecode in another user's clone, who could not delete it.
  if [[ ! -O $AGL_ROOT ]]; then export PYTHONDONTWRITEBYTECODE=1; fi
  exec "$AGL_ROOT/.venv/bin/agl-stack" stack "$@"
}
