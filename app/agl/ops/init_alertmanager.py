"""The part of ``init`` that puts Alertmanager's file and its secrets in place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agl.ops import alertmanager
from agl.ops.init_bundle import (
    Folders,
    Secret,
    content,
    make_folder,
    operator_secret,
    write_atomically,
)


def render_alertmanager(
    folders: Folders, environ: Mapping[str, str], drill: alertmanager.Drill | None = None
) -> str:
    """Write Alertmanager's file, and the secrets it names for it alone; says what was done.

    Raises UsageError or EnvironmentFault for a setting or secret that cannot be used; then
    Alertmanager's file is what it was.
    """
    texts = {
        secret.name: alertmanager.secret_text(secret, _supplied(secret, folders.operator), environ)
        for secret in alertmanager.FILE_SECRETS.values()
    }
    config = alertmanager.configuration(
        environ, {name for name, text in texts.items() if text}, drill
    )
    folders.secrets.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        _keep_secret(folders.secrets / name, text.encode())
    target = folders.config / "alertmanager" / "alertmanager.yml"
    wanted = alertmanager.rendered(config)
    if content(target) == wanted:
        return "up to date"
    make_folder(target.parent)
    write_atomically(target, wanted, mode=0o644)
    return "written"


def _keep_secret(path: Path, text: bytes) -> None:
    if not text:
        path.unlink(missing_ok=True)
    elif content(path) != text:
        write_atomically(path, text, mode=0o400, owner=alertmanager.OWNER)


def _supplied(secret: alertmanager.FileSecret, folder: Path) -> str | None:
    """The operator's own file as text. Raises EnvironmentFault when it is no such secret."""
    raw = operator_secret(
        Secret(secret.name, *alertmanager.OWNER, secret.pattern, secret.rule), folder
    )
    return None if raw is None else raw.decode()
