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

readonly PLUGIN_SUITE=trixie
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

quietly() {
  local log
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f -- "$log"
    return 1
  fi
  rm -f -- "$log"
}

apt_update_once() {
  [[ -e $work_dir/apt-updated ]] && return 0
  quietly apt-get -q update || die "apt-get update failed"
  touch "$work_dir/apt-updated"
}

apt_install() {
  apt_update_once
  DEBIAN_FRONTEND=noninteractive quietly apt-get -q install -y --no-install-recommends "$@" ||
    die "apt-get install $* failed"
}

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

# The mirror this machine already uses, so that no host name stands here.
own_mirror() {
  # shellcheck disable=SC2016 # the fields are apt's, not the shell's
  apt-get indextargets --format '$(ORIGIN)|$(SUITE)|$(REPO_URI)' 'Created-By: Packages' |
    awk -F'|' '$1 == "Debian" && $2 !~ /(updates|security|backports)/ { print $3; exit }'
}

# Release keys of the newer suite come with an up-to-date debian-archive-keyring, itself
# verified by the keys of this machine's release: signatures are checked all the way.
plugin_keyring() {
  local keyring=/usr/share/keyrings/debian-archive-$PLUGIN_SUITE-stable.gpg
  [[ -r $keyring ]] || apt_install debian-archive-keyring
  [[ -r $keyring ]] || die "no release key for Debian $PLUGIN_SUITE in debian-archive-keyring"
  printf '%s\n' /usr/share/keyrings/debian-archive-keyring.gpg
}

apt_plugins() {
  apt-get -q \
    -o Dir::Etc::sourcelist="$work_dir/plugins.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State::lists="$work_dir/lists" -o Dir::Cache="$work_dir/cache" \
    -o Dir::State::status="$work_dir/status" \
    -o APT::Sandbox::User=root -o Acquire::Languages=none "$@"
}

unpack_plugin() {
  local package=$1 plugin=$2 binary
  (cd "$work_dir" && quietly apt_plugins download "$package") ||
    die "downloading $package of Debian $PLUGIN_SUITE failed"
  dpkg-deb -x "$work_dir/$package"_*.deb "$work_dir/$package"
  binary=$(find "$work_dir/$package" -type f -name "$plugin" -perm -u+x -print -quit)
  [[ -n $binary ]] || die "package $package holds no $plugin"
  install -D -m 0755 -- "$binary" "$PLUGIN_DIR/$plugin"
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

  local keyring mirror plugin
  apt_update_once
  keyring=$(plugin_keyring)
  mirror=$(own_mirror)
  [[ -n $mirror ]] || die "this machine has no Debian package source to take ${wanted[*]} from"
  mkdir -p "$work_dir/lists/partial" "$work_dir/cache/archives/partial"
  : >"$work_dir/status"
  printf 'deb [signed-by=%s] %s %s main\n' "$keyring" "$mirror" "$PLUGIN_SUITE" \
    >"$work_dir/plugins.list"
  say "unpacking ${wanted[*]} of Debian $PLUGIN_SUITE into $PLUGIN_DIR"
  quietly apt_plugins update || die "reading Debian $PLUGIN_SUITE's package lists failed"
  for plugin in "${wanted[@]}"; do unpack_plugin "$plugin" "$plugin"; done
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
