#!/usr/bin/env bash
# Makes the base image debian:trixie-slim from Debian packages, for sites that reach a Debian
# mirror but no container registry.
#
# Usage: images/base/build.sh [--refresh] [--tag NAME]
#
#   --refresh   build anew even when the image or its cached tarball is there
#   --tag NAME  name of the image (default debian:trixie-slim)
#
# AGL_APT_MIRROR           Debian mirror (default: the one debootstrap knows)
# AGL_APT_SECURITY_MIRROR  its security archive (default: debian-security beside the mirror;
#                          "none" leaves it out)
# XDG_CACHE_HOME           the tarball is kept in $XDG_CACHE_HOME/agl-stack (default ~/.cache)
#
# Exit status: 0 the image is there; 1 it could not be made; 2 wrong usage.
set -euo pipefail

readonly SUITE=trixie
readonly KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d : -f 6)}
readonly CACHE_DIR=${XDG_CACHE_HOME:-$HOME/.cache}/agl-stack

tag=debian:$SUITE-slim
refresh=false
root=
partial=

say() { printf 'base image: %s\n' "$*" >&2; }
die() {
  say "error: $*"
  exit 1
}
usage() {
  printf 'usage: %s [--refresh] [--tag NAME]\n' "${0##*/}" >&2
  exit 2
}

cleanup() {
  if [[ -n $root ]]; then rm -rf --one-file-system -- "$root"; fi
  if [[ -n $partial ]]; then rm -f -- "$partial"; fi
}

parse() {
  while (($#)); do
    case $1 in
      --refresh) refresh=true ;;
      --tag)
        [[ -n ${2-} ]] || usage
        tag=$2
        shift
        ;;
      *) usage ;;
    esac
    shift
  done
}

as_root_or_again() {
  [[ $(id -u) == 0 ]] && return 0
  command -v sudo >/dev/null || die "debootstrap needs root and there is no sudo - run it as root"
  local -a ask=()
  [[ -t 0 ]] || ask=(-n)
  exec sudo "${ask[@]}" env "HOME=$HOME" "XDG_CACHE_HOME=${XDG_CACHE_HOME:-$HOME/.cache}" \
    "AGL_APT_MIRROR=${AGL_APT_MIRROR-}" "AGL_APT_SECURITY_MIRROR=${AGL_APT_SECURITY_MIRROR-}" \
    "$BASH" "$0" "$@"
}

# debootstrap of Ubuntu 22.04 knows no trixie; Debian's scripts are all the same one.
suite_script() {
  local scripts=/usr/share/debootstrap/scripts
  if [[ -e $scripts/$SUITE ]]; then
    printf '%s\n' "$scripts/$SUITE"
  else
    printf '%s\n' "$scripts/sid"
  fi
}

bootstrap() {
  local log=$root/debootstrap.log mirror=${AGL_APT_MIRROR-}
  say "debootstrap of Debian $SUITE (about a minute)"
  if ! debootstrap --variant=minbase --keyring="$KEYRING" --force-check-gpg \
    "$SUITE" "$root/fs" "$mirror" "$(suite_script)" >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    die "debootstrap failed${mirror:+ with mirror $mirror} - check the mirror (AGL_APT_MIRROR)"
  fi
}

# The same files that Debian's own slim image leaves out, now and at every later apt install.
configure() {
  local fs=$1
  cat >"$fs/etc/dpkg/dpkg.cfg.d/docker" <<'DPKG'
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/groff/*
path-exclude /usr/share/info/*
path-exclude /usr/share/lintian/*
path-exclude /usr/share/linda/*
path-exclude /usr/share/locale/*
path-include /usr/share/locale/locale.alias
force-unsafe-io
DPKG
  cat >"$fs/etc/apt/apt.conf.d/docker" <<'APT'
Acquire::Languages "none";
Acquire::GzipIndexes "true";
Apt::AutoRemove::SuggestsImportant "false";
APT
  printf '#!/bin/sh\nexit 101\n' >"$fs/usr/sbin/policy-rc.d"
  chmod 0755 "$fs/usr/sbin/policy-rc.d"
}

write_sources() {
  local fs=$1 mirror security
  mirror=$(awk '$1 == "deb" { print $2; exit }' "$fs/etc/apt/sources.list")
  mirror=${mirror%/}
  security=${AGL_APT_SECURITY_MIRROR:-${mirror%/debian}/debian-security}
  {
    printf 'deb %s %s main\n' "$mirror" "$SUITE" "$mirror" "$SUITE-updates"
    [[ $security == none ]] || printf 'deb %s %s-security main\n' "$security" "$SUITE"
  } >"$fs/etc/apt/sources.list"
}

upgrade() {
  local fs=$1 log=$root/upgrade.log ca=/etc/ssl/certs/ca-certificates.crt
  local -a options=(-q)
  if [[ -r $ca ]]; then
    install -m 0644 "$ca" "$fs/tmp/ca.pem"
    options+=(-o Acquire::https::CaInfo=/tmp/ca.pem)
  fi
  cp --remove-destination /etc/resolv.conf "$fs/etc/resolv.conf"
  if ! {
    DEBIAN_FRONTEND=noninteractive chroot "$fs" apt-get "${options[@]}" update &&
      DEBIAN_FRONTEND=noninteractive chroot "$fs" apt-get "${options[@]}" -y upgrade
  } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    die "security updates failed - set AGL_APT_SECURITY_MIRROR to the mirror's, or to none"
  fi
}

slim() {
  local fs=$1
  chroot "$fs" apt-get clean
  rm -rf -- "$fs"/var/lib/apt/lists/* "$fs"/var/cache/apt/*.bin "$fs"/var/cache/debconf/*-old \
    "$fs"/var/cache/ldconfig/* "$fs"/var/lib/dpkg/*-old "$fs"/usr/share/{man,info,groff,lintian,linda}/* \
    "$fs"/tmp/* "$fs"/run/* "$fs"/etc/hostname "$fs"/etc/resolv.conf "$fs"/debootstrap
  find "$fs/usr/share/doc" ! -type d ! -name copyright -delete
  find "$fs/usr/share/locale" -mindepth 1 -maxdepth 1 ! -name locale.alias -exec rm -rf {} +
  find "$fs/usr/share/doc" -depth -mindepth 1 -type d -empty -delete
  find "$fs/var/log" -type f -exec truncate -s 0 {} +
  : >"$fs/etc/machine-id"
}

make_tarball() {
  local tarball=$1
  command -v debootstrap >/dev/null || die "debootstrap is missing - apt-get install debootstrap"
  [[ -r $KEYRING ]] || die "Debian's archive keys are missing - apt-get install debian-archive-keyring"
  mkdir -p -- "$CACHE_DIR"
  # Not under /tmp, which may be mounted nodev or noexec.
  root=$(mktemp -d -- "$CACHE_DIR/debootstrap.XXXXXX")
  chmod 0755 "$root"
  bootstrap
  configure "$root/fs"
  write_sources "$root/fs"
  upgrade "$root/fs"
  slim "$root/fs"
  partial=$(mktemp -- "$CACHE_DIR/partial.XXXXXX")
  tar --numeric-owner --xattrs --one-file-system --exclude=./dev/* --exclude=./proc/* \
    --exclude=./sys/* -C "$root/fs" -c . | gzip -1 >"$partial"
  mv -f -- "$partial" "$tarball"
  partial=
  # Under sudo the cache stays its owner's.
  chown --reference="$HOME" -- "$CACHE_DIR" "$tarball"
}

main() {
  parse "$@"
  if ! $refresh && docker image inspect "$tag" >/dev/null 2>&1; then
    say "$tag is there"
    return 0
  fi
  as_root_or_again "$@"
  umask 022
  trap cleanup EXIT
  local tarball
  tarball=$CACHE_DIR/debian-$SUITE-slim-$(dpkg --print-architecture).tar.gz
  if $refresh || [[ ! -s $tarball ]]; then make_tarball "$tarball"; fi
  docker import --change 'CMD ["bash"]' "$tarball" "$tag" >/dev/null ||
    die "docker import of $tarball failed - try again with --refresh"
  say "made $tag"
}

main "$@"
