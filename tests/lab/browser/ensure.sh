#!/usr/bin/env bash
# Has Debian's Chromium for the browser tests: installed already, or installed now, and said so.
# Prints its path. Exit status: 0 ready, 1 not.
set -euo pipefail
for name in chromium chromium-headless-shell chromium-browser google-chrome; do
  if command -v "$name"; then exit 0; fi
done
if ! command -v apt-get >/dev/null || [[ $(id -u) != 0 ]]; then
  echo "ensure-browser: error: chromium is missing - type: sudo apt-get install -y chromium fonts-dejavu-core" >&2
  exit 1
fi
echo "ensure-browser: installing chromium with apt-get (about 400 MB, once)" >&2
export DEBIAN_FRONTEND=noninteractive
if ! said=$({ apt-get -q -o DPkg::Lock::Timeout=300 update &&
  apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends chromium fonts-dejavu-core; } 2>&1); then
  printf '%s\n' "$said" >&2
  echo "ensure-browser: error: apt-get could not install chromium (see above)" >&2
  exit 1
fi
command -v chromium
