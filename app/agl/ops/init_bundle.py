"""The one-shot ``init`` service: secrets and configuration, ready for services of any uid.

It runs before everything else at every ``docker compose up`` and, run twice, changes nothing:

* a secret that is missing is created in the secrets volume, readable by its one consumer;
  one that is there is never overwritten, unless the operator supplies his own;
* configuration of Prometheus and Grafana is copied from the repository, which a clone with a
  strict umask keeps for its owner alone, into the config volume, where every service can read it.

Every file is written beside its place and renamed, so a reader sees the old one or the new one.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agl.errors import EnvironmentFault, UsageError
from agl.ops.mongo_data import Source, check_mongo_data
from agl.ops.options import LineParser
from agl.ops.runbook_links import lead_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

MAX_SECRET_BYTES = 4096
_TEMPORARY = ".tmp-"
# Runbooks have an address of their own below the links.
_PLACEHOLDER = re.compile(r"__AGL_LINKS__/runbooks\b|__AGL_[A-Z_]+__")
_HOST_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}")


@dataclass(frozen=True)
class Secret:
    """One secret: the uid and gid of the service that reads it, which text, how it is made."""

    name: str
    uid: int
    gid: int
    pattern: re.Pattern[str]
    rule: str
    make: Callable[[], str] = lambda: secrets.token_urlsafe(32)


def _key() -> str:
    """A key file for MongoDB: the characters of base64, 1024 of them at most."""
    return base64.b64encode(secrets.token_bytes(567)).decode()


_ONE_LINE = re.compile(r"[^\x00-\x1f\x7f]+")
SECRETS = {
    secret.name: secret
    for secret in (
        Secret("api-token", 10001, 10001, re.compile(r"[!-~]+"), "visible ASCII, no blanks"),
        Secret("grafana-admin-password", 472, 0, _ONE_LINE, "one line"),
        Secret(
            "mongo-keyfile",
            *(999, 999),
            re.compile(r"[A-Za-z0-9+/=]{6,1024}"),
            "6 to 1024 characters of base64",
            _key,
        ),
        Secret("mongo-root-password", 999, 999, _ONE_LINE, "one line"),
        Secret("mongo-store-password", 10001, 10001, _ONE_LINE, "one line"),
        Secret("mongo-exporter-password", 10001, 10001, _ONE_LINE, "one line"),
    )
}


TLS_FILES = ("tls-cert", "tls-key")
TLS_OWNER = (10001, 10001)
MAX_TLS_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Folders:
    """Where the container sees the volumes and the operator's own secrets."""

    secrets: Path = Path("/run/agl/secrets")
    operator: Path = Path("/run/agl/operator-secrets")
    config: Path = Path("/etc/agl")
    tls: Path = Path("/run/agl/tls")


# Folders of the config volume, and those of the repository that they are rendered from.
RENDERED = {
    "prometheus": "prometheus",
    "grafana/provisioning": "grafana/provisioning",
    "grafana/dashboards": "grafana/dashboards",
    # As they are: `agl panels` serves the runbooks itself.
    "panels/dashboards": "grafana/dashboards",
    "docs/runbooks": "docs/runbooks",
}
# Configuration of tests, not of a running service.
_LEFT_OUT = frozenset({"tests"})


def main(argv: list[str], prog: str, environ: Mapping[str, str] | None = None) -> int:
    """Run ``init``, or ``init show NAME``; returns 0. ``environ`` says who is paged.

    Raises:
        UsageError: An option or secret that is unknown, or a host label that is no label.
        EnvironmentFault: A secret or a folder that cannot be read, used or written.
    """
    options = _parser(prog).parse_args(argv)
    folders = Folders(
        options.secrets_dir, options.operator_dir, options.config_dir, options.tls_dir
    )
    if options.action == "show":
        print(show(options.name, folders, options.compose_file))
        return 0
    try:
        _apply(options, folders, environ or {})
    except OSError as exc:
        raise EnvironmentFault(f"{exc.filename or 'init'}: {exc.strerror}") from exc
    return 0


def _apply(options: argparse.Namespace, folders: Folders, environ: Mapping[str, str]) -> None:
    if options.mongo_data:
        check_mongo_data(options.mongo_data, Source(options.mongo_volume, options.project))
    names: list[str] = options.secret
    for name in names:
        print(f"init: {name}: {ensure_secret(_known(name), folders)}")
    if names:
        print(
            f"init: secrets are in the volume mounted on {folders.secrets}; to read one: "
            f"docker compose -f {options.compose_file} run --rm --no-deps init show {names[-1]}"
        )
    for name in TLS_FILES:
        said = supply_tls(name, folders)
        if said:
            print(f"init: {name}: {said}")
    if options.render:
        runbooks = f"{options.runbooks_url.rstrip('/')}/runbooks"
        values = {
            "__AGL_HOST__": host_label(options.host_label),
            "__AGL_DEPLOYMENT__": deployment_label(options.deployment),
            "__AGL_NODE_PORT__": str(options.node_exporter_port),
            "__AGL_LINKS__": options.links_url.rstrip("/"),
            "__AGL_LINKS__/runbooks": runbooks,
        }
        for folder, source in RENDERED.items():
            target = folders.config / folder
            links = runbooks if folder == "grafana/dashboards" else ""
            changed = render(options.render / source, target, values, runbooks=links)
            print(f"init: {folder}: {_told(changed)}")
            # What our own pages show is read anew for everybody who looks.
            if changed.worth_loading and not folder.startswith(("docs/", "panels/")):
                print(f"init: {_how_to_load(folder, options.compose_file)}")
        _render_drill(options, folders)
    if options.alerting:
        from agl.ops.alertmanager import Drill
        from agl.ops.init_alertmanager import render_alertmanager

        drill = Drill(options.drill_url, options.drill_name) if options.drill_url else None
        print(f"init: alertmanager: {render_alertmanager(folders, environ, drill)}")


def _render_drill(options: argparse.Namespace, folders: Folders) -> None:
    """The rules of a drill, or none when there is no drill."""
    from agl.ops.drill.scaling import Scale, render_scaled

    target = folders.config / "drill"
    if options.drill_speed:
        scale = Scale(options.drill_speed, options.drill_name)
        render_scaled(folders.config / "prometheus", options.drill_config, target, scale)
    elif target.is_dir():
        shutil.rmtree(target)


def show(name: str, folders: Folders, compose_file: str) -> str:
    """The text of one secret. Raises UsageError or EnvironmentFault when there is none."""
    path = folders.secrets / _known(name).name
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as exc:
        raise EnvironmentFault(
            f"there is no {name} yet", remedy=f"start with: docker compose -f {compose_file} up"
        ) from exc
    except OSError as exc:
        raise EnvironmentFault(f"cannot read {path}: {exc.strerror}") from exc


# --- secrets ------------------------------------------------------------------------------------


def ensure_secret(secret: Secret, folders: Folders) -> str:
    """Make sure the secret is there, owned by its consumer, mode 0400; says what was done.

    The operator's own file wins over what is in the volume. Raises EnvironmentFault when that
    file cannot be used, OSError when the volume cannot be written.
    """
    folders.secrets.mkdir(parents=True, exist_ok=True)
    for leftover in folders.secrets.glob(f"{_TEMPORARY}*"):
        leftover.unlink()
    path = folders.secrets / secret.name
    current = content(path)
    supplied = operator_secret(secret, folders.operator)
    if supplied is not None:
        done = "yours is in use" if current == supplied else "taken from compose/secrets"
        wanted = supplied
    elif current:
        done, wanted = "there already", current
    else:
        done, wanted = "created", secret.make().encode()
    if current != wanted or not _belongs_to(path, secret):
        write_atomically(path, wanted, mode=0o400, owner=(secret.uid, secret.gid))
    return done


def supply_tls(name: str, folders: Folders) -> str:
    """Copy the operator's certificate or key to where the store reads it; says what was done.

    An empty file stands for none: a copy of earlier times is removed. Raises EnvironmentFault when
    the file is no PEM, OSError when it cannot be read or the volume cannot be written.
    """
    path = folders.secrets / name
    wanted = content(folders.tls / name)
    if not wanted:
        if not path.exists():
            return ""
        path.unlink()
        return "removed"
    if len(wanted) > MAX_TLS_BYTES or b"-----BEGIN " not in wanted:
        variable = f"AGL_{name.upper().replace('-', '_')}"
        raise EnvironmentFault(
            f"{variable} does not name a PEM file", remedy=f"set {variable}, or leave it empty"
        )
    if content(path) == wanted:
        return "there already"
    folders.secrets.mkdir(parents=True, exist_ok=True)
    write_atomically(path, wanted, mode=0o400, owner=TLS_OWNER)
    return "taken over"


def operator_secret(secret: Secret, folder: Path) -> bytes | None:
    """What the operator put into ``folder`` under the secret's name, or None.

    Raises EnvironmentFault when the file is unreadable, empty, too large or not usable text.
    """
    path = folder / secret.name
    shown = f"compose/secrets/{secret.name}"
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SECRET_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise EnvironmentFault(
            f"cannot read {shown}: {exc.strerror}", remedy="make it a readable file or remove it"
        ) from exc
    if len(raw) > MAX_SECRET_BYTES:
        raise EnvironmentFault(f"{shown} is larger than {MAX_SECRET_BYTES} bytes")
    text = _as_text(raw, shown).rstrip("\r\n")
    if not text:
        raise EnvironmentFault(
            f"{shown} is empty", remedy="write the secret into it, or remove it to have one made"
        )
    if not secret.pattern.fullmatch(text):
        raise EnvironmentFault(f"{shown} holds something else than {secret.rule}")
    return text.encode()


def _as_text(raw: bytes, shown: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise EnvironmentFault(f"{shown} is not UTF-8 text") from exc


def _known(name: str) -> Secret:
    try:
        return SECRETS[name]
    except KeyError:
        known = ", ".join(SECRETS)
        raise UsageError(f"unknown secret {name!r} (known: {known})") from None


def content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _belongs_to(path: Path, secret: Secret) -> bool:
    status = path.stat()
    owner = (status.st_uid, status.st_gid)
    return owner == (secret.uid, secret.gid) and stat.S_IMODE(status.st_mode) == 0o400


# --- configuration ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Changes:
    """Relative paths of files that ``render`` created, updated and removed."""

    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    first: bool = False

    @property
    def worth_loading(self) -> bool:
        """Whether a service that was started with the files before should load them anew."""
        return not self.first and bool(self.created or self.updated or self.removed)


def render(source: Path, target: Path, values: Mapping[str, str], *, runbooks: str = "") -> Changes:
    """Make ``target`` a copy of ``source`` that everybody can read, placeholders filled in.

    Placeholders are replaced in YAML files alone. With ``runbooks``, the address of the runbooks,
    links of dashboards (JSON) to ``/runbooks/...`` lead there, whoever serves the dashboards. Files
    that ``source`` no longer has are removed.

    Raises:
        EnvironmentFault: ``source`` holds no file, or a placeholder that ``values`` has not.
        OSError: A file cannot be read or written.
    """
    wanted = {path: _filled(source / path, values, runbooks) for path in _files(source)}
    if not wanted:
        raise EnvironmentFault(
            f"the repository's folder {source.parent.name}/{source.name} holds no file",
            remedy="the clone is incomplete: git checkout -- .",
        )
    make_folder(target)
    present = {path: (target / path).read_bytes() for path in _all_files(target)}
    for path, text in wanted.items():
        if present.get(path) != text:
            make_folder((target / path).parent, below=target)
            write_atomically(target / path, text, mode=0o644)
    removed = sorted(present.keys() - wanted.keys())
    for path in removed:
        (target / path).unlink()
    return Changes(
        created=tuple(sorted(wanted.keys() - present.keys())),
        updated=tuple(sorted(p for p in wanted if p in present and present[p] != wanted[p])),
        removed=tuple(path for path in removed if not Path(path).name.startswith(_TEMPORARY)),
        first=not present,
    )


def host_label(given: str) -> str:
    """The value of label ``host``: ``given``, or else the host's name.

    Raises UsageError when it has characters that a label of ours may not have.
    """
    label = given or socket.gethostname()
    if not _HOST_LABEL.fullmatch(label):
        raise UsageError(
            f"host label {label!r} has other characters than letters, digits and . _ : - "
            "(set AGL_HOST_LABEL)"
        )
    return label


def deployment_label(given: str) -> str:
    """The value of label ``deployment``. Raises UsageError when it cannot be one."""
    if not _HOST_LABEL.fullmatch(given):
        raise UsageError(
            f"deployment label {given!r} has other characters than letters, digits and . _ : - "
            "(set AGL_DEPLOYMENT)"
        )
    return given


def _files(folder: Path) -> Iterator[str]:
    for path in _all_files(folder):
        parts = Path(path).parts
        if not any(part.startswith(".") or part in _LEFT_OUT for part in parts):
            yield path


def _all_files(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix()


def _filled(path: Path, values: Mapping[str, str], runbooks: str) -> bytes:
    raw = path.read_bytes()
    if runbooks and path.suffix == ".json":
        return lead_to(_as_text(raw, str(path)), runbooks).encode()
    if path.suffix not in {".yml", ".yaml"}:
        return raw

    def value_of(match: re.Match[str]) -> str:
        try:
            return values[match[0]]
        except KeyError:
            raise EnvironmentFault(f"{path} has a placeholder unknown here: {match[0]}") from None

    return _PLACEHOLDER.sub(value_of, _as_text(raw, str(path))).encode()


def make_folder(folder: Path, below: Path | None = None) -> None:
    """Create the folder, and its parents as far as ``below``, so that everybody can enter it."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    if below is not None and folder != below:
        make_folder(folder.parent, below)


def _told(changes: Changes) -> str:
    counts = {
        "created": len(changes.created),
        "updated": len(changes.updated),
        "removed": len(changes.removed),
    }
    return ", ".join(f"{n} {what}" for what, n in counts.items() if n) or "up to date"


def _how_to_load(folder: str, compose_file: str) -> str:
    compose = f"docker compose -f {compose_file}"
    if folder == "prometheus":
        return f"a running Prometheus takes the new files on: {compose} kill -s HUP prometheus"
    if folder == "grafana/provisioning":
        return f"a running Grafana takes the new files on: {compose} restart grafana"
    return "a running Grafana takes the new dashboards within 30 s"


# --- files --------------------------------------------------------------------------------------


def write_atomically(
    path: Path, content: bytes, *, mode: int, owner: tuple[int, int] | None = None
) -> None:
    """Put ``content`` in place of ``path`` in one step, with this mode and (uid, gid) of owner.

    Raises OSError; then ``path`` is what it was.
    """
    handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            # Mode before owner: afterwards root without CAP_FOWNER may not change it any more.
            os.fchmod(file.fileno(), mode)
            if owner is not None:
                os.fchown(file.fileno(), *owner)
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _port(text: str) -> int:
    port = int(text)
    if not 0 < port < 65536:
        raise ValueError(text)
    return port


def _url(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s\"'<>()\\]+", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no address such as https://ops.example"
            " (AGL_GRAFANA_EXTERNAL_URL or AGL_RUNBOOKS_EXTERNAL_URL)"
        )
    return text


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = LineParser(
        prog=prog,
        description="Create missing secrets and render configuration. The init service of the "
        "compose files runs it; on a host use `docker compose run --rm --no-deps init show NAME`.",
    )
    parser.add_argument(
        "--secret", action="append", default=[], metavar="NAME", help="secret to make sure of"
    )
    parser.add_argument(
        "--mongo-data",
        type=Path,
        metavar="DIR",
        help="MongoDB's data folder, refused when MongoDB 8.0 cannot open it",
    )
    parser.add_argument("--mongo-volume", default=Source.data, help="where that comes from")
    parser.add_argument("--project", default=Source.project, help="name of the Compose project")
    parser.add_argument(
        "--render", type=Path, metavar="DIR", help="repository folder to take configuration from"
    )
    parser.add_argument("--host-label", default="", help="value of label host (default: host name)")
    parser.add_argument("--deployment", default="agl", help="value of label deployment")
    parser.add_argument("--drill-url", type=_url, metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument(
        "--alerting", action="store_true", help="write Alertmanager's file, from AGL_ALERT_..."
    )
    parser.add_argument("--drill-name", default="", help=argparse.SUPPRESS)
    parser.add_argument("--drill-speed", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--drill-config", default="prometheus.base.yml", help=argparse.SUPPRESS)
    parser.add_argument("--node-exporter-port", type=_port, default=9100, metavar="PORT")
    parser.add_argument("--links-url", type=_url, default="http://localhost:9091", metavar="URL")
    parser.add_argument("--runbooks-url", type=_url, default="http://localhost:9096", metavar="URL")
    parser.add_argument("--compose-file", default="compose.prometheus-memory-store.yml")
    default = Folders()
    parser.add_argument("--secrets-dir", type=Path, default=default.secrets, metavar="DIR")
    parser.add_argument("--operator-dir", type=Path, default=default.operator, metavar="DIR")
    parser.add_argument("--tls-dir", type=Path, default=default.tls, metavar="DIR")
    parser.add_argument("--config-dir", type=Path, default=default.config, metavar="DIR")
    actions = parser.add_subparsers(dest="action", metavar="")
    shown = actions.add_parser("show", help="print one secret")
    shown.add_argument("name", help=f"one of: {', '.join(SECRETS)}")
    return parser
