"""The stack that is drilled, and what a drill may do to it.

Every deed registers how it is undone before it is done, so that the end of a drill, however it
comes, leaves the stack as it was.
"""

from __future__ import annotations

import shlex
import time
from contextlib import ExitStack
from dataclasses import dataclass

from agl.errors import EnvironmentFault
from agl.ops.drill.receiver import METRICS_FILE
from agl.ops.drill.scaling import NODE
from agl.ops.engine import Container, Engine

RECEIVER, PROMETHEUS = "drill-receiver", "drill-prometheus"
METRICS_FOLDER, TEXT_FOLDER = "/run/agl/multiproc", "/run/agl/textfile"
FREEZE_SECONDS = 30.0
OURS, ROOT = "10001", "0"


@dataclass(frozen=True)
class Site:
    """One stack: only containers of its Compose project are ever touched.

    Attributes:
        engine: The daemon, for that project alone.
        secure: The store has a certificate.
        scrape_seconds: How often the Prometheus of the drill looks.
    """

    engine: Engine
    secure: bool = False
    scrape_seconds: float = 5.0

    def container(self, service: str) -> Container:
        """The service's container. Raises EnvironmentFault when it is not there."""
        for container in self.engine.containers():
            if container.service == service:
                return container
        raise EnvironmentFault(f"{service} is not part of {self.engine.project!r} as it runs now")

    def run(self, service: str, *command: str, user: str = "") -> str:
        """Run a command in a service's container. Raises EnvironmentFault when it fails."""
        code, said = self.engine.execute(self.container(service).id, list(command), user)
        if code:
            lines = said.strip().splitlines() or [f"{command[0]} ended with code {code}"]
            raise EnvironmentFault(f"{service}: {lines[-1]}")
        return said.strip()

    def shell(self, service: str, script: str, user: str = "") -> str:
        return self.run(service, "/bin/sh", "-ec", script, user=user)

    def freeze(self, undo: ExitStack, service: str) -> None:
        """Let a service hang: it keeps what it has in memory, and answers nobody."""
        container = self.container(service)
        undo.callback(self.engine.unpause, container.id)
        deadline = time.monotonic() + FREEZE_SECONDS
        while True:
            try:
                self.engine.pause(container.id)
            except EnvironmentFault:
                # cgroup version 1 gives up while a process, such as a probe, is being started.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
            else:
                return

    def restart(self, service: str) -> None:
        """Stop and start a service."""
        self.engine.restart(self.container(service).id)

    def put(self, undo: ExitStack, path: str, text: str, user: str) -> None:
        """Write a file into a folder of the receiver's container, in one step."""
        undo.callback(self.shell, RECEIVER, f"rm -f {path} {path}.tmp", user)
        self.shell(
            RECEIVER,
            f"printf %s {shlex.quote(text)} > {path}.tmp; chmod 0644 {path}.tmp;"
            f" mv {path}.tmp {path}",
            user,
        )

    def put_text_file(self, undo: ExitStack, name: str, text: str) -> None:
        """A text file of node-exporter."""
        self.put(undo, f"{TEXT_FOLDER}/{name}", text, ROOT)

    def fill_metrics_folder(self, undo: ExitStack, share: float) -> None:
        """A file as large as it takes to fill the metrics folder to that share."""
        path = f"{METRICS_FOLDER}/agl-drill.fill"
        undo.callback(self.shell, RECEIVER, f"rm -f {path}", OURS)
        total, used = self.shell(RECEIVER, f"df -B1 --output=size,used {METRICS_FOLDER}").split()[
            -2:
        ]
        wanted = int(int(total) * share) - int(used)
        self.shell(RECEIVER, f"head -c {max(wanted, 0)} /dev/zero > {path}", OURS)

    def play_node(self, text: str) -> None:
        """What the host that only drills have tells from now on."""
        self.shell(NODE, f"printf %s {shlex.quote(text)} > {METRICS_FILE}")

    def fill_queue(self, undo: ExitStack) -> None:
        """Rollouts that nobody takes, cancelled in the end."""
        drill = ("agl-stack", "stack", "drill-queue")
        scheme = f"--scheme={'https' if self.secure else 'http'}"
        ids = self.run("app", *drill, "fill", scheme).split()
        undo.callback(self.run, "app", *drill, "cancel", scheme, *ids)
