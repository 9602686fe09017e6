#!/usr/bin/env bash
# Installs the MongoDB stand-in of locks/lab.txt into an environment of its own, used by tests only:
# ~/.cache/agl-stack/lab. Does nothing if it is there already, or if AGL_TEST_MONGO_URI names a server.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[[ -z ${AGL_TEST_MONGO_URI-} ]] || exit 0
venv=$HOME/.cache/agl-stack/lab
sum=$(sha256sum <locks/lab.txt | cut -d ' ' -f 1)
mkdir -p "${venv%/*}"
exec {lock}>"$venv.lock"
if command -v flock >/dev/null; then flock "$lock"; fi
[[ -r $venv/.sum && $(<"$venv/.sum") == "$sum" ]] && exit 0
echo "installing the MongoDB stand-in for tests in $venv" >&2
.venv/bin/python -m venv --clear "$venv"
"$venv/bin/python" -m pip --disable-pip-version-check -q install --require-hashes -r locks/lab.txt
echo "$sum" >"$venv/.sum"
