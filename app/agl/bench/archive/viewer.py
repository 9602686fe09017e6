"""``compose.grafana.yml`` around an unpacked archive: a Prometheus of its own, and dashboards."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from agl.bench.archive.manifest import Manifest
from agl.bench.archive.read import unpack
from agl.bench.archive.view import prepare
from agl.errors import EnvironmentFault
from agl.ops.compose import last_line
from agl.ops.layout import Layout

COMPOSE_FILE = "compose.grafana.yml"
PROJECT = "agl-view"
HOME = "agl-overview"


@dataclass(frozen=True)
class Viewer:
    """One opened archive; ``project`` tells it from others that are open."""

    layout: Layout
    project: str = PROJECT
    ports: Mapping[str, str] | None = None
    """Variables of ports that win over ``compose/.env``."""

    @property
    def folder(self) -> Path:
        """Where the archive lies unpacked while it is open."""
        return self.layout.root / ".cache" / "view" / self.project

    def open(self, archive: Path) -> Manifest:
        """Unpack it, start the viewer and wait until Prometheus answers.

        Raises:
            EnvironmentFault: one is open already, the archive is no good, or Docker fails.
        """
        if self.folder.exists():
            raise EnvironmentFault(
                f"an archive is open as {self.project!r}",
                remedy="close it (agl bench open --close), or give another --project",
            )
        self.folder.mkdir(parents=True)
        try:
            manifest = unpack(archive, self.folder)
            prepare(self.folder, manifest, self.layout.root / "grafana" / "provisioning")
            self._start()
        except BaseException:
            self.close()
            raise
        return manifest

    def _start(self) -> None:
        try:
            self._compose("up", "--detach", "--no-build", "--wait")
        except EnvironmentFault as fault:
            said = last_line(self._compose("logs", "--no-log-prefix", "--tail", "3", "samples"))
            words = f"{fault.message}; the samples: {said}" if said else fault.message
            raise EnvironmentFault(words, remedy=fault.remedy) from fault

    def close(self) -> bool:
        """Stop it and delete the scratch copy; whether there was anything."""
        there = self.folder.exists()
        if there:
            self._compose("down", "--volumes", "--timeout", "5")
            shutil.rmtree(self.folder, ignore_errors=True)
        return there

    def addresses(self, manifest: Manifest) -> dict[str, str]:
        """Where to look: dashboards at the archive's time, and Prometheus."""
        variables = {**self.layout.variables(), **(self.ports or {})}
        ahead = manifest.clock_ahead
        span = urlencode(
            {
                "from": round((manifest.start + ahead) * 1000),
                "to": round((manifest.end + ahead) * 1000),
            }
        )
        return {
            "dashboards": f"http://127.0.0.1:{variables['AGL_VIEW_PORT']}/d/{HOME}?{span}",
            "Prometheus": f"http://127.0.0.1:{variables['AGL_VIEW_PROMETHEUS_PORT']}",
        }

    def _compose(self, *arguments: str) -> str:
        layout = self.layout
        files = [part for path in layout.env_files for part in ("--env-file", str(path))]
        command = ["docker", "compose", "--project-name", self.project, *files]
        command += ["--file", str(layout.compose_dir / COMPOSE_FILE), *arguments]
        environ = {**layout.environ, **(self.ports or {})}
        environ["COMPOSE_PROJECT_NAME"] = self.project
        environ["AGL_VIEW_ARCHIVE"] = str(self.folder)
        try:
            done = subprocess.run(
                command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True
            )
        except OSError as error:
            raise EnvironmentFault(f"docker cannot be run: {error.strerror}") from error
        if done.returncode:
            raise EnvironmentFault(
                f"docker compose {arguments[0]}: {last_line(done.stderr) or done.stdout.strip()}",
                remedy="are its images there? scripts/images makes them; are its ports taken?"
                " see --port",
            )
        return done.stdout
