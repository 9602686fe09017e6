"""A user who may use sudo, but not yet the Docker socket: into the group, and on with the run."""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import shutil
import sys
from collections.abc import Mapping

from agl.errors import EnvironmentFault
from agl.ops.console import Console, can_ask
from agl.ops.docker_install import as_root

GROUP = "docker"
MARK = "AGL_IN_DOCKER_GROUP"
REMEDY = "type: sudo usermod -aG docker $USER && newgrp docker, or run this with sudo"


def with_docker_group(environ: Mapping[str, str], console: Console, *, yes: bool) -> None:
    """Start this very command again with the rights of the group ``docker``.

    The user is made a member first, after consent, if he is none; a login that is older than the
    membership needs no new one. Returns only when there is nothing to be gained by it, which
    leaves the failed check as it is. Raises EnvironmentFault when it is not agreed to.
    """
    if os.geteuid() == 0 or environ.get(MARK) or not shutil.which("sg"):
        return
    try:
        members = grp.getgrnam(GROUP).gr_mem
    except KeyError:
        return
    user = pwd.getpwuid(os.getuid()).pw_name
    if user not in members:
        _join(user, environ, console, yes=yes)
    console.mark("ok", f"going on with the rights of the group {GROUP}")
    command = shlex.join([sys.executable, *sys.orig_argv[1:]])
    sys.stdout.flush()
    os.execvpe("sg", ["sg", GROUP, "-c", command], {**environ, MARK: "1"})  # noqa: S606


def _join(user: str, environ: Mapping[str, str], console: Console, *, yes: bool) -> None:
    what = f"{user} may not use Docker; members of the group {GROUP} may (and can become root)"
    if not yes:
        if not can_ask():
            raise EnvironmentFault(what, remedy=f"run it again with --yes; or {REMEDY}")
        if not console.ask(f"{what}. Make {user} a member now?"):
            raise EnvironmentFault("no permission to use Docker", remedy=REMEDY)
    answer = as_root(["usermod", "-aG", GROUP, user], environ)
    if answer.returncode != 0:
        raise EnvironmentFault(f"usermod: {answer.stderr.strip()}", remedy=REMEDY)
    console.mark("ok", f"made {user} a member of the group {GROUP}")
