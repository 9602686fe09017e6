"""Starting and stopping the bundle."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agl.errors import EnvironmentFault
from agl.ops import docker_install, dockercli
from agl.ops.choices import Choices
from agl.ops.compose import Compose, cause, last_line
from agl.ops.console import Console, can_ask
from agl.ops.engine import Container, Engine, Leftovers
from agl.ops.health import FAILED, STARTING, ServiceHealth
from agl.ops.images import ImageOptions, ImageStep
from agl.ops.layout import Layout
from agl.ops.mongo_data import NEED_DOWNGRADE, Source, too_new
from agl.ops.permission import with_docker_group
from agl.ops.preflight import INSTALL, JOIN_GROUP, WARN, Check, failures, render, run_checks
from agl.ops.transport import Transport
from agl.ops.turn import interruptible, turn
from agl.ops.view import (
    View,
    Watcher,
    lab_stand_ins,
    progress_lines,
    running_mode,
    summary,
    watcher,
)

LOOK_SECONDS = 0.5
DAEMON_SECONDS = 15
LOG_LINES = 15
ERROR_LINES = 3
_BAD_FILE = re.compile(r"\s*\S+\.ya?ml: ")
READ_ON_HUP = ("prometheus", "alertmanager")
_ERROR = re.compile(r"\b(error|fatal|panic|exception|cannot|failed)\b", re.IGNORECASE)


@dataclass(frozen=True)
class UpOptions:
    """What ``up`` was told.

    Attributes:
        mode: One of ``layout.MODES``.
        yes: Questions are taken as answered with yes.
        images: How images may be come by.
        offline: Archive to take the images from; ``None`` for none.
        timeout: Seconds to wait until everything is healthy.
        keep: Containers of a failed start are left to be looked at.
    """

    mode: str
    yes: bool = False
    images: ImageOptions = field(default_factory=ImageOptions)
    offline: Path | None = None
    timeout: float = 300.0
    keep: bool = False


def up(layout: Layout, console: Console, options: UpOptions) -> None:
    """Preflight, Docker, images, start, wait, summary; run twice it changes nothing.

    Raises EnvironmentFault with one clear line at the first thing in the way; what this run
    started is stopped then. KeyboardInterrupt passes through after the same.
    """
    compose_file = layout.compose_file(options.mode)
    if not compose_file.is_file():
        raise EnvironmentFault(f"{compose_file} is missing", remedy="git checkout compose")
    with turn(layout, console), interruptible():
        ready_machine(layout, console, options)
        engine = Engine.connect(layout)
        choices = _images(layout, engine, console, options)
        compose = Compose(layout, options.mode, choices.overrides())
        agree_to_loss(engine, compose, console, options)
        check_mongo_elsewhere(engine, compose, console, options)
        before = engine.containers()
        view = Start(engine, compose, console, options).run(watcher(layout, engine, compose))
        take_on(engine, before, view)
    console.line()
    lab = " on LAB STAND-INS, for trials and tests only" if lab_stand_ins(view.containers) else ""
    console.heading(f"The bundle is up{lab}.")
    for line in summary(layout, engine, view):
        console.line(line)


def ready_machine(layout: Layout, console: Console, options: UpOptions) -> None:
    """Preflight, and Docker installed if that is all that is missing and it is agreed to."""
    lab = options.images.lab
    checks = run_checks(layout, options.mode, lab=lab)
    wrong = failures(checks)
    if wrong and all(check.by_up == INSTALL for check in wrong):
        install_docker(layout, console, yes=options.yes)
        checks = run_checks(layout, options.mode, lab=lab)
        wrong = failures(checks)
    if [check.by_up for check in wrong] == [JOIN_GROUP]:
        with_docker_group(layout.environ, console, yes=options.yes)
    if wrong:
        raise _not_ready(wrong)
    console.mark("ok", f"this machine is ready ({len(checks)} checks)")
    for check in checks:
        # What is lowered is told with the images, once and where it is done.
        if check.status == WARN and check.name != "AGL_NOFILE":
            console.mark("warn", f"{check.name}: {check.found}")


def _not_ready(wrong: list[Check]) -> EnvironmentFault:
    if len(wrong) == 1:
        return EnvironmentFault(f"{wrong[0].name}: {wrong[0].found}", remedy=wrong[0].fix)
    print(render(wrong), file=sys.stderr)
    names = ", ".join(check.name for check in wrong)
    return EnvironmentFault(f"this machine is not ready: {names}", remedy="see the fixes above")


def install_docker(layout: Layout, console: Console, *, yes: bool) -> None:
    """Say what would be installed and install it after consent. Raises EnvironmentFault."""
    plan = docker_install.plan_here(dockercli.read_docker(layout.environ))
    console.heading("Docker with Compose and buildx is needed. This would be done as root:")
    for line in plan.describe():
        console.line(f"  - {line}")
    if not yes:
        if not can_ask():
            raise EnvironmentFault(
                "Docker is not complete, and there is no terminal to ask whether to install it",
                remedy="run it again with --yes",
            )
        if not console.ask("Do that now?"):
            raise EnvironmentFault("nothing was installed", remedy="install Docker, or say yes")
    with console.step("installing Docker") as progress:
        docker_install.carry_out(plan, layout.environ, lambda line: progress.update([line]))
        _wait_for_daemon(layout)
        progress.conclude("installed Docker")


def _wait_for_daemon(layout: Layout) -> None:
    """A daemon that was just installed needs a moment; one that never comes is found later."""
    deadline = time.monotonic() + DAEMON_SECONDS
    while time.monotonic() < deadline:
        docker = dockercli.read_docker(layout.environ)
        if docker.reachable or docker.denied:
            return
        time.sleep(LOOK_SECONDS)


def _images(layout: Layout, engine: Engine, console: Console, options: UpOptions) -> Choices:
    if options.offline:
        return Transport(layout, engine, console).load(options.offline)
    return ImageStep(layout, engine, console, options.images).prepare(options.mode)


def agree_to_loss(engine: Engine, compose: Compose, console: Console, options: UpOptions) -> None:
    """Before a store is made anew: what it holds may be missed afterwards.

    One on MongoDB need not run: it may be down just when somebody types ``up`` to bring it back.
    """
    stores = _stores(engine)
    mode = running_mode(stores)
    if not stores or mode == options.mode == "mongo":
        return
    running = any(item.running for item in stores)
    if mode != "mongo" and not (running and _makes_store_anew(engine, compose)):
        return
    loss, remedy = what_is_lost(mode, options.mode)
    if options.yes:
        console.mark("warn", loss)
    elif not can_ask():
        raise EnvironmentFault(loss, remedy=f"nothing was changed; {remedy}")
    elif not console.ask(f"{loss}. Go on?"):
        raise EnvironmentFault("nothing was changed", remedy=remedy)


def check_mongo_elsewhere(
    engine: Engine, compose: Compose, console: Console, options: UpOptions
) -> None:
    """Before a store on MongoDB makes room for one on the site's own: whether that can be used.

    Raises EnvironmentFault with the cause; the store that runs stays.
    """
    if options.mode != "mongo" or not compose.layout.external_mongo:
        return
    # Without one on MongoDB there are no secrets yet, and no store that must not be lost.
    stores = [item for item in _stores(engine) if item.running]
    if running_mode(stores) != "mongo" or not _makes_store_anew(engine, compose):
        return
    with console.step("looking whether MongoDB can be used") as progress:
        try:
            compose.run(*compose.program("mongo-check"))
        except EnvironmentFault as fault:
            raise EnvironmentFault(
                f"AGL_MONGO_URI: {cause(str(fault))} (the store that runs stays)"
            ) from fault
        progress.conclude("MongoDB can be used")


def _stores(engine: Engine) -> list[Container]:
    return [item for item in engine.containers() if item.service == "app"]


def _makes_store_anew(engine: Engine, compose: Compose) -> bool:
    """Compose makes anew what depends on a container that is made anew."""
    made_from = {"app", "init", "rules-check"}
    containers = [item for item in engine.containers() if item.service in made_from]
    return any(compose.would_recreate(engine, item) for item in containers)


def what_is_lost(mode: str, wanted: str) -> tuple[str, str]:
    """What clients miss when a store of mode ``mode`` makes room for one of mode ``wanted``.

    Returns:
        The loss, and what to do instead where nobody can be asked.
    """
    if mode == "mongo":
        return (
            "the store that is here keeps its rollouts in MongoDB: going on puts an empty one"
            f" (mode {wanted}) in its place, and they stay in MongoDB's volume",
            "type scripts/up mongo, or run it again with --yes if that is meant",
        )
    return (
        "the store's settings or image changed: going on makes it anew,"
        " and the rollouts it holds in memory are lost",
        "after the training, run it again with --yes",
    )


@dataclass
class Start:
    """One start of the bundle; undoes itself when it fails."""

    engine: Engine
    compose: Compose
    console: Console
    options: UpOptions

    def run(self, watch: Watcher) -> View:
        """Start and wait until everything is ready. Raises EnvironmentFault when it does not."""
        before = self.engine.containers()
        watch.restarts_before = {container.id: container.restarts for container in before}
        try:
            with self.console.step("starting") as progress:
                view = self._wait(watch, before, progress.update)
                progress.conclude(f"{len(view.health)} services are healthy{_targets(view)}")
        except (EnvironmentFault, KeyboardInterrupt):
            if not self.options.keep:
                self._undo(before)
            raise
        return view

    def _wait(
        self, watch: Watcher, before: list[Container], show: Callable[[list[str]], None]
    ) -> View:
        deadline = time.monotonic() + self.options.timeout
        past = {(container.id, container.started_at) for container in before}
        arguments = ("up", "--detach", "--no-build", "--pull", "never", "--remove-orphans")
        with self.compose.start(*arguments) as running:
            while True:
                # Asked first: what is seen after the end of `compose up` is the outcome.
                code = running.code()
                view = watch.look()
                show(progress_lines(view))
                failed = view.of(FAILED) if code is not None else _new(view, past)
                if failed:
                    self._fail(view, failed[0].service, failed[0].detail)
                if code:
                    said = last_line(running.output())
                    for container in view.containers:
                        if f"container {container.name} is unhealthy" in said:
                            self._fail(view, container.service, "it does not become healthy")
                    raise EnvironmentFault(f"docker compose up: {said}")
                if code == 0 and view.ready:
                    return view
                if time.monotonic() > deadline:
                    self._fail(view, *self._late(view))
                time.sleep(LOOK_SECONDS)

    def _late(self, view: View) -> tuple[str, str]:
        """The service that is not ready in time, and how that shows."""
        after = f"after {self.options.timeout:.0f} s"
        for item in view.of(STARTING):
            return item.service, f"{item.detail} {after}"
        for target in view.own_targets:
            if target.health != "up":
                reason = target.error or "not scraped yet"
                return "prometheus", f"its target {target.job} is not up {after}: {reason}"
        return "prometheus", f"no scrape target shows {after}"

    def _fail(self, view: View, service: str, detail: str) -> None:
        container = next((item for item in view.containers if item.service == service), None)
        if container and service == "mongo" and container.exit_code == NEED_DOWNGRADE:
            layout = self.compose.layout
            data = layout.variables().get("AGL_MONGO_DATA") or Source.data
            raise too_new(Source(data, layout.project))
        see = ""
        if container and service == "rules-check":
            raise _bad_rules(self.engine.logs(container.id, LOG_LINES * 100))
        if container:
            lines = telling(self.engine.logs(container.id, LOG_LINES * 20))
            if lines:
                print(f"last lines of {service}:", file=sys.stderr)
                print("\n".join(f"      {line}" for line in lines), file=sys.stderr)
                see = "see its last lines above; "
        kept = "its containers were kept" if self.options.keep else "what was started is stopped"
        raise EnvironmentFault(
            f"{service}: {detail} ({kept})",
            remedy=f"{see}--keep leaves the containers to be looked at",
        )

    def _undo(self, before: list[Container]) -> None:
        """Stop what this run started: containers that are new, or that did not run before.

        A one-shot of an earlier start that has ended again is left as the sign that it was there.
        """
        ran = {container.id for container in before if container.running}
        known = {container.id for container in before}
        started = [
            item
            for item in self.engine.containers()
            if item.id not in ran and (item.running or item.id not in known)
        ]
        with self.console.step("stopping what was started"):
            if ran:
                self.engine.stop(item.id for item in started)
            else:
                self.compose.run("down", "--remove-orphans")


def take_on(engine: Engine, before: list[Container], view: View) -> None:
    """Let services that ran before read the configuration that ``init`` has rendered by now."""
    ran = {(item.id, item.started_at) for item in before if item.running}
    for item in view.containers:
        if item.service in READ_ON_HUP and (item.id, item.started_at) in ran:
            engine.hang_up(item.id)


def _bad_rules(lines: list[str]) -> EnvironmentFault:
    """What promtool says of a file, with the line in it."""
    found = next((line.strip() for line in lines if _BAD_FILE.match(line)), "promtool refused them")
    return EnvironmentFault(
        f"Prometheus' files are not in order: {found}",
        remedy="correct that file; what was there before stays in use",
    )


def telling(lines: list[str]) -> list[str]:
    """The last lines of a log, and before them the last ones that speak of an error.

    A program that answers a bad option with its whole help says what was wrong far above.
    """
    early, tail = lines[:-LOG_LINES], lines[-LOG_LINES:]
    errors = list(dict.fromkeys(line for line in early if _ERROR.search(line)))[-ERROR_LINES:]
    return [*errors, *(["..."] if errors else []), *tail]


def _new(view: View, past: set[tuple[str, str]]) -> list[ServiceHealth]:
    """Failures of this start; a container that ended in an earlier one is about to be restarted."""
    old = {item.service for item in view.containers if (item.id, item.started_at) in past}
    return [item for item in view.of(FAILED) if item.service not in old]


def _targets(view: View) -> str:
    return f", {view.targets_up} scrape targets are up" if view.targets else ""


def down(layout: Layout, console: Console, *, volumes: bool) -> None:
    """Stop and remove the bundle, with its data if ``volumes``; fine when nothing is there."""
    engine = Engine.connect(layout)
    with turn(layout, console), console.step("stopping") as progress:
        containers = engine.containers()
        _compose_down(layout, containers)
        for container in engine.containers():
            engine.stop([container.id])
        left = engine.leftovers()
        for network in left.networks:
            engine.remove_network(network)
        # A tmpfs is empty by now, and made again by the next start with the size that is set then.
        for volume in (*left.in_memory, *(left.volumes if volumes else ())):
            engine.remove_volume(volume)
        progress.conclude(_removed(len(containers), left, volumes=volumes))


def _compose_down(layout: Layout, containers: list[Container]) -> None:
    """Compose stops services in the order of their dependencies."""
    if containers:
        compose = Compose(layout, running_mode(containers))
        compose.run("--profile", "*", "down", "--remove-orphans")


def _removed(containers: int, left: Leftovers, *, volumes: bool) -> str:
    parts = [
        f"{containers} containers stopped and removed" if containers else "nothing was running"
    ]
    if volumes:
        parts.append(f"{len(left.volumes) + len(left.in_memory)} volumes deleted")
    elif left.volumes:
        parts.append(f"{len(left.volumes)} volumes with data kept (--volumes deletes them)")
    return ", ".join(parts)
