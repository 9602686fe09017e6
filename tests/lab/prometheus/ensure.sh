#!/usr/bin/env bash
# Puts the tools that check rules and alerts into a cache, and prints their folder.
#
#   promtool, amtool, prometheus, alertmanager
#                                   of Debian trixie's packages (the 2.53 line of Prometheus)
#   promtool3                       of the 3.x line, built from the Go module; only where Go is
#                                   installed, and with --no-build only if it was built before
#
# Run again it changes nothing. Exit status: 0 ready (promtool3 may be missing, and stderr says
# why), 1 not.
set -euo pipefail

# The module's versions are v0.<major><minor padded>: v0.313.2 is Prometheus 3.13.2.
readonly MODULE=github.com/prometheus/prometheus
readonly VERSION=v0.313.2
# Debian's Alertmanager reads its templates from there and nowhere else.
readonly TEMPLATES=/usr/share/prometheus/alertmanager
folder=${AGL_LAB_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/agl-stack/lab/prometheus}

work_dir=$(mktemp -d)
trap 'chmod -R u+w -- "$work_dir"; rm -rf -- "$work_dir"' EXIT
say() { printf 'ensure-prometheus: %s\n' "$*" >&2; }
die() {
  say "error: $*"
  exit 1
}
# shellcheck source=tests/lab/lib/trixie.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/trixie.sh"

unpack() {
  [[ -x $folder/promtool && -x $folder/amtool && -x $folder/alertmanager &&
    -r $TEMPLATES/default.tmpl ]] && "$folder/prometheus" --version >/dev/null 2>&1 && return
  [[ $(id -u) == 0 ]] || die "run it as root (it reads Debian's package lists)"
  say "unpacking promtool, prometheus, amtool and alertmanager of Debian $TRIXIE into $folder"
  trixie_prepare
  trixie_binary prometheus prometheus "$folder/prometheus"
  trixie_binary promtool promtool "$folder/promtool"
  trixie_binary prometheus-alertmanager amtool "$folder/amtool"
  trixie_binary prometheus-alertmanager prometheus-alertmanager "$folder/alertmanager"
  mkdir -p "$TEMPLATES"
  install -m 0644 -- "$work_dir/prometheus-alertmanager$TEMPLATES/"*.tmpl "$TEMPLATES"
}

build() {
  [[ -x $folder/promtool3-$VERSION ]] && return
  if ! command -v go >/dev/null; then
    say "no Go here: rules are not checked against Prometheus 3.x"
    return
  fi
  if [[ ${1:-} == --no-build ]]; then
    say "promtool $VERSION is not built yet: rules are not checked against Prometheus 3.x"
    return
  fi
  say "building promtool $VERSION (about seven minutes on two cores, once)"
  (
    cd "$work_dir"
    printf 'module tool\n\ngo 1.24\n' >go.mod
    GOTOOLCHAIN=auto quietly go get -tool "$MODULE/cmd/promtool@$VERSION" &&
      quietly go build -o promtool3 "$MODULE/cmd/promtool"
  ) || {
    say "promtool $VERSION could not be built (see above): rules are not checked against 3.x"
    return
  }
  install -m 0755 -- "$work_dir/promtool3" "$folder/promtool3-$VERSION"
}

unpack
build "${1:-}"
[[ ! -x $folder/promtool3-$VERSION ]] || ln -sfn "promtool3-$VERSION" "$folder/promtool3"
printf '%s\n' "$folder"
