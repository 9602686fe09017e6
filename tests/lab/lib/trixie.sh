# shellcheck shell=bash
# Binaries out of Debian trixie's packages, for test machines that run an older release. Sourced.
#
# The caller sets $work_dir (a temporary folder of its own) and defines die MESSAGE and say MESSAGE.
#   quietly COMMAND...                  shows what it printed only when it fails
#   apt_install PACKAGE...              installs packages of this machine's own release
#   trixie_prepare                      reads trixie's package lists into $work_dir
#   trixie_binary PACKAGE NAME TARGET   unpacks one executable of a package to TARGET
readonly TRIXIE=trixie
: "${work_dir?set it to a temporary folder first}"

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

# The mirror this machine already uses, so that no host name stands here.
own_mirror() {
  # shellcheck disable=SC2016 # the fields are apt's, not the shell's
  apt-get indextargets --format '$(ORIGIN)|$(SUITE)|$(REPO_URI)' 'Created-By: Packages' |
    awk -F'|' '$1 == "Debian" && $2 !~ /(updates|security|backports)/ { print $3; exit }'
}

# Release keys of the newer suite come with an up-to-date debian-archive-keyring, itself
# verified by the keys of this machine's release: signatures are checked all the way.
trixie_keyring() {
  local keyring=/usr/share/keyrings/debian-archive-$TRIXIE-stable.gpg
  [[ -r $keyring ]] || apt_install debian-archive-keyring
  [[ -r $keyring ]] || die "no release key for Debian $TRIXIE in debian-archive-keyring"
  printf '%s\n' /usr/share/keyrings/debian-archive-keyring.gpg
}

trixie_apt() {
  apt-get -q \
    -o Dir::Etc::sourcelist="$work_dir/trixie.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State::lists="$work_dir/lists" -o Dir::Cache="$work_dir/cache" \
    -o Dir::State::status="$work_dir/status" \
    -o APT::Sandbox::User=root -o Acquire::Languages=none "$@"
}

trixie_prepare() {
  local keyring mirror
  apt_update_once
  keyring=$(trixie_keyring)
  mirror=$(own_mirror)
  [[ -n $mirror ]] || die "this machine has no Debian package source to take packages from"
  mkdir -p "$work_dir/lists/partial" "$work_dir/cache/archives/partial"
  : >"$work_dir/status"
  printf 'deb [signed-by=%s] %s %s main\n' "$keyring" "$mirror" "$TRIXIE" >"$work_dir/trixie.list"
  quietly trixie_apt update || die "reading Debian $TRIXIE's package lists failed"
}

trixie_binary() {
  local package=$1 name=$2 target=$3 binary
  if [[ ! -d $work_dir/$package ]]; then
    (cd "$work_dir" && quietly trixie_apt download "$package") ||
      die "downloading $package of Debian $TRIXIE failed"
    dpkg-deb -x "$work_dir/$package"_*.deb "$work_dir/$package"
  fi
  # Below usr, since an init script may have the same name.
  binary=$(find "$work_dir/$package/usr" -type f -name "$name" -perm -u+x -print -quit)
  [[ -n $binary ]] || die "package $package holds no $name"
  install -D -m 0755 -- "$binary" "$target"
}
