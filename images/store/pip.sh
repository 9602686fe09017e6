#!/bin/sh
# pip of the build environment, trusting the certificates of the build secret when there are any.
# Bind mounting a secret leaves nothing of it in a layer.
set -eu

ca=/run/secrets/ca_bundle
if [ -s "$ca" ]; then
  PIP_CERT=$ca
  export PIP_CERT
fi
exec /build/venv/bin/python -m pip "$@"
