#!/usr/bin/env bash
# The claim of the README, from the start: a Debian 13 with nothing installed, a sudo user, a clone,
# ./scripts/up --yes, a training loop, ./scripts/down --volumes. Prints how long each step took.
#
# The machine is a container that runs systemd, with a Docker daemon of its own inside. Needs root,
# Docker (tests/lab/docker/ensure.sh) and this tree; takes about four minutes and leaves nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
readonly machine=agl-fresh-machine
work=$(mktemp -d)

cleanup() {
  docker rm --force --volumes "$machine" >/dev/null 2>&1 || true
  docker volume rm --force "$machine" >/dev/null 2>&1 || true
  rm -rf -- "$work"
}
trap cleanup EXIT
cleanup && mkdir -p "$work"

# On a host with cgroup v1, systemd mounts the controllers it misses, and Docker's statistics on the
# host break when that is undone. So they are mounted for good beforehand.
mount_cgroups() {
  local controller
  [[ $(stat -fc %T /sys/fs/cgroup) == tmpfs ]] || return 0
  while read -r controller _ _ enabled; do
    [[ $enabled == 1 ]] || continue
    grep -qE "^[^ ]+ [^ ]+ cgroup [^ ]*\b$controller\b" /proc/mounts && continue
    mkdir -p "/sys/fs/cgroup/$controller"
    mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller"
  done < <(grep -v '^#' /proc/cgroups)
}

build_machine() {
  docker image inspect debian:trixie-slim >/dev/null 2>&1 || images/base/build.sh
  cat >"$work/Dockerfile" <<'DOCKERFILE'
FROM debian:trixie-slim
RUN apt-get update -q \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
       systemd systemd-sysv dbus sudo ca-certificates iproute2 \
    && rm -f /usr/sbin/policy-rc.d \
    && useradd -m -s /bin/bash eng \
    && echo 'eng ALL=(ALL) NOPASSWD:ALL' > /etc/sudoers.d/eng \
    && mkdir -p /etc/systemd/system/docker.service.d \
    && printf '[Service]\nEnvironment=DOCKER_ALLOW_IPV6_ON_IPV4_INTERFACE=1\nLimitNOFILE=20000\n' \
       > /etc/systemd/system/docker.service.d/lab.conf
DOCKERFILE
  docker build -q -t "$machine" "$work" >/dev/null
}

start_machine() {
  docker run -d --name "$machine" --cap-add ALL --cap-drop SYS_RESOURCE \
    --security-opt seccomp=unconfined --cgroupns=host -v /sys/fs/cgroup:/sys/fs/cgroup:rw \
    --tmpfs /run -e container=docker -v "$machine:/var/lib/docker" \
    -v "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}:/usr/local/share/ca.pem:ro" \
    "$machine" /sbin/init SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1 \
    systemd.unified_cgroup_hierarchy=0 >/dev/null
  git ls-files -z --cached --others --exclude-standard |
    tar --null --files-from - --ignore-failed-read -cf - 2>/dev/null |
    docker exec -i "$machine" sh -c 'mkdir /home/eng/agl-stack && tar -C /home/eng/agl-stack -xf - &&
      chown -R eng:eng /home/eng/agl-stack'
}

step() {
  local start=$SECONDS name=$1
  shift
  echo "== $name"
  docker exec --user eng --workdir /home/eng/agl-stack -e PIP_CERT=/usr/local/share/ca.pem \
    -e SSL_CERT_FILE=/usr/local/share/ca.pem "$machine" "$@"
  echo "== $name took $((SECONDS - start)) s"
}

mount_cgroups
build_machine
start_machine
step 'up' ./scripts/up --yes
step 'training loop' .venv/bin/agl bench scenario minimal \
  --store-url http://127.0.0.1:4747 --prometheus-url http://127.0.0.1:9090
step 'second up' ./scripts/up
step 'down' ./scripts/down --volumes
left=$(docker exec "$machine" sh -c 'docker ps -aq; docker volume ls -q; docker network ls -qf type=custom')
if [[ -n $left ]]; then
  echo "down --volumes left something behind: $left" >&2
  exit 1
fi
echo "a fresh machine came up, played, and was left clean"
