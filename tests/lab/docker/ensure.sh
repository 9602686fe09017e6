#!/usr/bin/env bash
# Puts a working Docker (daemon, Compose v2, buildx) on a Debian test machine.
#
# For test machines and CI only: Compose and buildx are unpacked from a newer Debian
# release as CLI plugins, which is never done on a user's machine. Running it again
# changes nothing. On success it prints one line a caller can read:
#
#     dockerd-pid=PID     it started the daemon, and the caller may end that process
#     dockerd-pid=        a daemon was answering already
#
# Exit status: 0 ready, 1 not (with the reason on stderr).
set -euo pipefail

readonly PLUGIN_DIR=/usr/local/lib/docker/cli-plugins
readonly DAEMON_LOG=${AGL_LAB_DOCKER_LOG:-/var/log/agl-lab-dockerd.log}
readonly DAEMON_WAIT_SECONDS=60

work_dir=

say() { printf 'ensure-docker: %s\n' "$*" >&2; }
die() {
  say "error: $*"
  exit 1
}
cleanup() {
  if [[ -n $work_dir ]]; then rm -rf -- "$work_dir"; fi
}
trap cleanup EXIT

# shellcheck source=tests/lab/lib/trixie.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/trixie.sh"

ensure_packages() {
  local missing=()
  command -v dockerd >/dev/null || missing+=(docker.io)
  command -v debootstrap >/dev/null || missing+=(debootstrap)
  command -v iptables >/dev/null || missing+=(iptables)
  command -v ss >/dev/null || missing+=(iproute2)
  ((${#missing[@]} == 0)) || {
    say "installing ${missing[*]}"
    apt_install "${missing[@]}"
  }
}

compose_is_recent() {
  local version major minor
  version=$(docker compose version --short 2>/dev/null) || return 1
  version=${version#v}
  IFS=. read -r major minor _ <<<"$version"
  [[ $major =~ ^[0-9]+$ && $minor =~ ^[0-9]+$ ]] || return 1
  ((major > 2 || (major == 2 && minor >= 24)))
}

ensure_plugins() {
  local wanted=()
  compose_is_recent || wanted+=(docker-compose)
  docker buildx version >/dev/null 2>&1 || wanted+=(docker-buildx)
  ((${#wanted[@]} == 0)) && return 0

  local plugin
  say "unpacking ${wanted[*]} of Debian $TRIXIE into $PLUGIN_DIR"
  trixie_prepare
  for plugin in "${wanted[@]}"; do trixie_binary "$plugin" "$plugin" "$PLUGIN_DIR/$plugin"; done
  compose_is_recent || die "docker compose does not run after unpacking it"
  docker buildx version >/dev/null || die "docker buildx does not run after unpacking it"
}

daemon_answers() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

# One try with one storage driver ("" lets the daemon choose). Prints the pid when it answers.
start_daemon() {
  local driver=$1 pid deadline
  local -a options=()
  [[ -z $driver ]] || options+=(--storage-driver "$driver")
  setsid nohup dockerd "${options[@]}" >>"$DAEMON_LOG" 2>&1 </dev/null &
  pid=$!
  deadline=$((SECONDS + DAEMON_WAIT_SECONDS))
  while ((SECONDS < deadline)) && kill -0 "$pid" 2>/dev/null; do
    if daemon_answers; then
      printf '%s\n' "$pid"
      return 0
    fi
    sleep 0.2
  done
  kill "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null || true
  return 1
}

ensure_daemon() {
  if daemon_answers; then
    printf 'dockerd-pid=\n'
    return 0
  fi
  local driver pid
  for driver in '' fuse-overlayfs vfs; do
    if [[ $driver == fuse-overlayfs ]] && ! command -v fuse-overlayfs >/dev/null; then
      apt_install fuse-overlayfs
    fi
    if pid=$(start_daemon "$driver"); then
      say "started dockerd, pid $pid, storage $(docker info --format '{{.Driver}}')"
      printf 'dockerd-pid=%s\n' "$pid"
      return 0
    fi
  done
  tail -n 20 "$DAEMON_LOG" >&2 || true
  die "dockerd does not start; its log is $DAEMON_LOG"
}

main() {
  [[ $(id -u) == 0 ]] || die "run it as root (it installs packages and starts dockerd)"
  command -v apt-get >/dev/null || die "needs a Debian machine (no apt-get here)"
  work_dir=$(mktemp -d)
  ensure_packages
  ensure_plugins
  ensure_daemon
}

main "$@"
