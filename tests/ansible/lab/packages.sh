#!/usr/bin/env bash
# A local apt repository with stand-ins of NVIDIA's packages, for tests: packages.sh FOLDER VERSION...
# The names, versions, holds and order are those of the real ones. What they do is a stand-in:
#   cuda-drivers-580          nvidia-smi, nvidia-persistenced, and a "module" that is loaded at boot
#   nvidia-fabricmanager-580  a unit that runs
#   nvidia-container-toolkit  nvidia-ctk, and the hook that gives a container the stand-in's GPUs
set -euo pipefail
folder=$1
shift
mkdir -p "$folder"

# package NAME VERSION DEPENDS: packs what was put into $root; a postinst comes on standard input.
package() {
  mkdir -p "$root/DEBIAN"
  {
    printf 'Package: %s\nVersion: %s\nArchitecture: all\nMaintainer: lab <lab@example.org>\n' "$1" "$2"
    [[ -z $3 ]] || printf 'Depends: %s\n' "$3"
    printf 'Description: stand-in for tests\n'
  } >"$root/DEBIAN/control"
  {
    printf '#!/bin/sh\nset -e\n'
    cat
  } >"$root/DEBIAN/postinst"
  chmod 0755 "$root/DEBIAN/postinst"
  dpkg-deb --root-owner-group -Zgzip -b "$root" "$folder/$1_$2_all.deb" >/dev/null
  rm -rf -- "$root"
}

unit() {
  mkdir -p "$root/lib/systemd/system"
  printf '[Unit]\nDescription=%s (stand-in)\n[Service]\n%s\n[Install]\nWantedBy=multi-user.target\n' \
    "$1" "$2" >"$root/lib/systemd/system/$1.service"
}

driver() {
  local version=$1
  root=$(mktemp -d)
  mkdir -p "$root/usr/bin" "$root/usr/share/nvidia-lab"
  echo "${version%-*}" >"$root/usr/share/nvidia-lab/version"
  cat >"$root/usr/bin/nvidia-smi" <<'SMI'
#!/bin/sh
# Shows what /opt/lab/pci has, unless the loaded module is not the installed one.
if [ -e /run/nvidia-lab ] && ! cmp -s /run/nvidia-lab/loaded /usr/share/nvidia-lab/version; then
  echo 'Failed to initialize NVML: Driver/library version mismatch' >&2
  exit 18
fi
case $1 in
  -L | --list-gpus)
    number=0
    for device in /opt/lab/pci/*; do
      [ -e "$device/broken" ] || echo "GPU $number: NVIDIA Lab (UUID: GPU-$(hostname)-$number)"
      number=$((number + 1))
    done
    ;;
  --query-compute-apps*) cat /opt/lab/apps 2>/dev/null || true ;;
esac
SMI
  chmod 0755 "$root/usr/bin/nvidia-smi"
  unit nvidia-persistenced $'Type=simple\nExecStart=/bin/sleep infinity'
  unit nvidia-lab-module $'Type=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sh -c "mkdir -p /run/nvidia-lab && cp /usr/share/nvidia-lab/version /run/nvidia-lab/loaded"'
  package cuda-drivers-580 "$version" '' <<'POST'
systemctl daemon-reload
systemctl enable nvidia-lab-module.service
POST
  root=$(mktemp -d)
  unit nvidia-fabricmanager $'Type=simple\nExecStart=/bin/sleep infinity'
  package nvidia-fabricmanager-580 "$version" '' <<<'systemctl daemon-reload'
}

toolkit() {
  local version=$1 name
  for name in nvidia-container-toolkit-base libnvidia-container-tools libnvidia-container1; do
    root=$(mktemp -d)
    package "$name" "$version" '' <<<':'
  done
  root=$(mktemp -d)
  mkdir -p "$root/usr/bin"
  cat >"$root/usr/bin/nvidia-container-runtime-hook" <<'HOOK'
#!/usr/bin/python3
"""Puts nvidia-smi and the stand-in's devices into a container that asked for GPUs."""
import json, pathlib, shutil, sys
state = json.load(sys.stdin)
bundle = pathlib.Path(state["bundle"])
root = pathlib.Path(json.loads((bundle / "config.json").read_text())["root"]["path"])
for name in ("usr/bin/nvidia-smi", "usr/share/nvidia-lab/version"):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(f"/{name}", root / name)
shutil.copytree("/opt/lab/pci", root / "opt/lab/pci", dirs_exist_ok=True)
HOOK
  printf '#!/bin/sh\nexec runc "$@"\n' >"$root/usr/bin/nvidia-container-runtime"
  cat >"$root/usr/bin/nvidia-ctk" <<'CTK'
#!/usr/bin/python3
"""nvidia-ctk runtime configure --runtime=docker: merges its key, as the real one does."""
import json, pathlib, sys
assert sys.argv[1:] == ["runtime", "configure", "--runtime=docker"], sys.argv
path = pathlib.Path("/etc/docker/daemon.json")
content = json.loads(path.read_text() or "{}") if path.exists() else {}
content.setdefault("runtimes", {})["nvidia"] = {"args": [], "path": "nvidia-container-runtime"}
path.write_text(json.dumps(content, indent=4))
CTK
  chmod 0755 "$root"/usr/bin/*
  package nvidia-container-toolkit "$version" "nvidia-container-toolkit-base (= $version)" <<<':'
}

for version in "$@"; do driver "$version"; done
toolkit 1.18.1-1
for file in "$folder"/*.deb; do
  dpkg-deb -f "$file"
  printf 'Filename: ./%s\nSize: %s\nSHA256: %s\n\n' "${file##*/}" "$(stat -c %s "$file")" \
    "$(sha256sum "$file" | cut -d ' ' -f 1)"
done >"$folder/Packages"
