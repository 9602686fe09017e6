#!/bin/sh
# Installs packages while an image is built, and leaves nothing behind but the packages.
# Bind mounted into the build steps of images/*/Dockerfile.
#
# Usage: apt-install.sh PACKAGE[=VERSION]...
#
# APT_MIRROR           private Debian mirror (default: the sources of the base image)
# APT_SECURITY_MIRROR  its security archive (default: debian-security beside APT_MIRROR; "none")
# build secret ca_bundle: certificates to trust for an https mirror
set -eu

ca=/run/secrets/ca_bundle
work=$(mktemp -d)
chmod 0755 "$work"
options="-q -o Acquire::Retries=3"
[ ! -s "$ca" ] || options="$options -o Acquire::https::CaInfo=$ca -o APT::Sandbox::User=root"

if [ -n "${APT_MIRROR:-}" ]; then
  suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  mirror=${APT_MIRROR%/}
  security=${APT_SECURITY_MIRROR:-${mirror%/debian}/debian-security}
  {
    echo "deb $mirror $suite main"
    echo "deb $mirror $suite-updates main"
    [ "$security" = none ] || echo "deb $security $suite-security main"
  } >"$work/sources.list"
  options="$options -o Dir::Etc::sourcelist=$work/sources.list -o Dir::Etc::sourceparts=/dev/null"
fi

export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 # options is a list of words
apt-get $options update
# shellcheck disable=SC2086
apt-get $options install -y --no-install-recommends "$@"
apt-get clean
rm -rf "$work" /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/debconf/*-old \
  /var/cache/ldconfig/aux-cache /var/lib/dpkg/*-old /var/log/apt /var/log/dpkg.log \
  /var/log/alternatives.log
