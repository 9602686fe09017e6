#!/bin/sh
# Starts mongodb_exporter with its password taken from MONGODB_PASSWORD_FILE, unless the address has
# one. It shows neither in the list of processes nor in `docker inspect`.
set -eu

case ${MONGODB_URI:-} in
  *://*@*)
    unset MONGODB_USER
    ;;
  *)
    if [ -n "${MONGODB_USER:-}" ]; then
      MONGODB_PASSWORD=$(cat "${MONGODB_PASSWORD_FILE:?}")
      export MONGODB_PASSWORD
    else
      unset MONGODB_USER
    fi
    ;;
esac
exec mongodb_exporter "$@"
