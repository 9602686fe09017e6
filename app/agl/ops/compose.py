"""``docker compose`` as a subprocess, always with the same project, files and variables."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from agl.errors import EnvironmentFault
from agl.ops.engine import Container, Engine
from agl.ops.layout import Layout
from agl.ops.shapes import mapping, parsed, texts

STOP_SECONDS = 15


@dataclass(frozen=True)
class Service:
    """One service of the resolved configuration."""

    name: str
    image: str
    one_shot: bool
    healthcheck: bool
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Compose:
    """One mode of the bundle; ``overrides`` are variables that win over everything else.

    Attributes:
        on_top: Names of further compose files, put on top of the mode's own and of overlays.
    """

    layout: Layout
    mode: str
    overrides: Mapping[str, str] = field(default_factory=dict[str, str])
    on_top: tuple[str, ...] = ()

    def command(self, *arguments: str) -> list[str]:
        """The full command line, as a list."""
        files = [part for path in self.layout.env_files for part in ("--env-file", str(path))]
        on_top = [*self.layout.overlays, *(self.layout.compose_dir / name for name in self.on_top)]
        return [
            "docker",
            "compose",
            "--project-directory",
            str(self.layout.compose_dir),
            *files,
            "--file",
            str(self.layout.compose_file(self.mode)),
            *(part for path in on_top for part in ("--file", str(path))),
            *arguments,
        ]

    def environ(self) -> dict[str, str]:
        return {**self.layout.environ, **self.overrides}

    def run(self, *arguments: str) -> str:
        """Run to its end and return what it printed. Raises EnvironmentFault with its last line."""
        answer = subprocess.run(
            self.command(*arguments),
            env=self.environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode != 0:
            raise EnvironmentFault(f"docker compose {arguments[0]}: {last_line(answer.stderr)}")
        return answer.stdout

    def program(self, name: str, *arguments: str) -> list[str]:
        """What to run for one of our programs in a container with the store's access to MongoDB."""
        run = ("run", "--rm", "--no-deps", "-T", "app", "agl-stack", "stack", name)
        return [*run, *arguments]

    def services(self, *, every_profile: bool = False) -> dict[str, Service]:
        """The services that this mode starts, or all that it could start."""
        profiles = ("--profile", "*") if every_profile else ()
        config = parsed(self.run(*profiles, "config", "--format", "json"))
        services = mapping(config.get("services"))
        one_shots = {
            dependency
            for service in services.values()
            for dependency, how in mapping(service.get("depends_on")).items()
            if mapping(how).get("condition") == "service_completed_successfully"
        }
        return {
            name: Service(
                name=name,
                image=service.get("image", ""),
                one_shot=name in one_shots,
                healthcheck=bool(service.get("healthcheck"))
                and not service["healthcheck"].get("disable", False),
                command=tuple(texts(service.get("command"))),
            )
            for name, service in services.items()
        }

    def would_recreate(self, engine: Engine, container: Container) -> bool:
        """Whether `up` replaces a container, since its settings or its image are others now."""
        _, _, config_hash = self.run("config", "--hash", container.service).strip().partition(" ")
        image = engine.image(container.image)
        return config_hash != container.config_hash or (
            image is not None and image.id != container.image_id
        )

    def start(self, *arguments: str) -> Running:
        """Run in the background, out of reach of the terminal's Ctrl-C."""
        output = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        process = subprocess.Popen(
            self.command(*arguments),
            env=self.environ(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return Running(process, output)


class Running:
    """A compose command under way; a context manager that never leaves it behind."""

    def __init__(self, process: subprocess.Popen[bytes], output: IO[str]) -> None:
        self._process = process
        self._output = output

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._output.close()

    def code(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._process.poll()

    def output(self) -> str:
        self._output.seek(0)
        return self._output.read()


def cause(said: str) -> str:
    """What one of our programs says is wrong, without its name before it."""
    return said.partition("error: ")[2] or said


def last_line(text: str) -> str:
    """The last line that says something."""
    lines: Sequence[str] = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it gave no reason"
