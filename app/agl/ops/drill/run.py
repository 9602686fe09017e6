"""``agl stack drill``: faults into a running stack, and the time until their pages arrive."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any, cast
from urllib.parse import quote

from agl.errors import EnvironmentFault, UsageError
from agl.ops import alertmanager
from agl.ops.choices import remember
from agl.ops.compose import Compose
from agl.ops.console import Console, can_ask
from agl.ops.drill.catalogue import DRILLS, SYMPTOMS, Drill
from agl.ops.drill.scaling import MINIMUM_INTERVAL, NODE, PORT
from agl.ops.drill.site import PROMETHEUS, RECEIVER, Site
from agl.ops.engine import Engine
from agl.ops.health import endpoints, fetch, read_receivers
from agl.ops.layout import Layout
from agl.ops.shapes import items, mapping, parsed
from agl.ops.turn import interruptible, turn
from agl.ops.view import as_running, require_containers, running_mode

COMPOSE_FILE = "compose.drill.yml"
LOOK_SECONDS = 0.5
READY_SECONDS = 90
SCRAPE_SECONDS = 5.0
"""scrape_interval of prometheus.base.yml."""
LOG_LINES = 5000
SEEN_OFTEN = "min(count_over_time(up[5m])) >= 5 and min(up) == 1"


@dataclass(frozen=True)
class Options:
    """What ``drill`` was told.

    Attributes:
        alerts: Names of the alerts, without duplicates.
        speed: By how much windows are shorter; 1 is the stack's own Prometheus as it is.
        timeout: Seconds to wait for one page.
        yes: People may be paged.
    """

    alerts: tuple[str, ...]
    speed: float
    timeout: float
    yes: bool = False

    @property
    def scaled(self) -> bool:
        return self.speed > 1


@dataclass(frozen=True)
class Page:
    """One alert of one page, as the receiver took it."""

    at: float
    name: str
    status: str
    drill: str
    host: str


@dataclass(frozen=True)
class Outcome:
    """How one drill went.

    Attributes:
        seconds: From the fault to its page; ``None`` when none came in time.
        silenced: Alerts that were held back because of this one, as they should be.
        fault: Why there is no page, or what was not silenced; empty when all is well.
    """

    alert: str
    speed: float
    seconds: float | None
    silenced: tuple[str, ...] = ()
    fault: str = ""


def chosen(names: Iterable[str], *, scaled: bool) -> list[Drill]:
    """The drills of those names. Raises UsageError for one that is unknown, or not possible."""
    drills: list[Drill] = []
    wanted = dict.fromkeys(names)
    # Alertmanager sends no second page for what it has held back meanwhile.
    covered = {DRILLS[name].symptom for name in wanted if scaled and name in DRILLS}
    for name in [name for name in wanted if name not in covered]:
        drill = DRILLS.get(name)
        if drill is None:
            raise UsageError(f"no drill for {name!r} (--list shows what can be drilled)")
        if drill.scaled_only and not scaled:
            raise UsageError(f"{name} needs --speed above 1: the host that is lost is the drill's")
        drills.append(drill)
    return drills


def rounds(drills: Iterable[Drill]) -> list[list[Drill]]:
    """The drills side by side, as far as they do not get in each other's way."""
    found: list[list[Drill]] = []
    for drill in drills:
        for group in found:
            if not any(drill.collides(other) for other in group):
                group.append(drill)
                break
        else:
            found.append([drill])
    return found


def run(layout: Layout, console: Console, options: Options) -> list[Outcome]:
    """Drill, and put everything back as it was.

    Raises UsageError or EnvironmentFault where nothing could be drilled.
    """
    drills = chosen(options.alerts, scaled=options.scaled)
    with turn(layout, console), interruptible():
        engine = Engine.connect(layout)
        rig = Rig.find(layout, engine, options)
        rig.agree(console)
        with ExitStack() as undo:
            with console.step("getting ready for the drill") as progress:
                rig.put_up(undo)
                progress.conclude(_windows(options))
            rig.refuse_if_firing(drills)
            outcomes: list[Outcome] = []
            for group in rounds(drills):
                outcomes += _together(rig, group, console)
    return outcomes


def _windows(options: Options) -> str:
    if not options.scaled:
        return "ready; windows are as long as in earnest (factor 1), and pages go to everybody"
    return f"ready; windows are {options.speed:g} times shorter than in earnest"


def _together(rig: Rig, group: list[Drill], console: Console) -> list[Outcome]:
    with ThreadPoolExecutor(max_workers=len(group)) as pool:
        try:
            found = [outcome for some in pool.map(rig.drill, group) for outcome in some]
        except BaseException:
            rig.over.set()
            raise
    for outcome in found:
        tell(console, outcome)
    return found


def tell(console: Console, outcome: Outcome) -> None:
    """One line for one drill."""
    if outcome.fault:
        console.mark("fail", f"{outcome.alert}: {outcome.fault}")
        return
    also = f"; {', '.join(outcome.silenced)} is held back by it" if outcome.silenced else ""
    factor = f"windows {outcome.speed:g} times shorter" if outcome.speed > 1 else "factor 1"
    console.mark(
        "ok", f"{outcome.alert}: page {outcome.seconds:.1f} s after the fault ({factor}){also}"
    )


@dataclass
class Rig:
    """What a drill adds to a stack: a receiver, and for short windows a Prometheus and a host."""

    site: Site
    compose: Compose
    options: Options
    urls: Mapping[str, str]
    init: tuple[str, ...]
    config: str
    name: str
    over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _pages: tuple[float, list[Page]] = (0.0, [])

    @classmethod
    def find(cls, layout: Layout, engine: Engine, options: Options) -> Rig:
        """For the stack as it runs. Raises EnvironmentFault where it cannot be drilled."""
        containers = engine.containers()
        require_containers(containers, layout.project)
        running = {item.service: item for item in containers if item.running}
        for service in ("prometheus", "alertmanager"):
            if service not in running:
                raise EnvironmentFault(f"{service} does not run", remedy="start it: scripts/up")
        overrides = {**remember(layout).names, **as_running(containers)}
        compose = Compose(layout, running_mode(containers), overrides, (COMPOSE_FILE,))
        variables = {**layout.variables(), **overrides}
        known = endpoints(variables, running)
        config = next(
            word.rpartition("/")[2]
            for word in running["prometheus"].command
            if word.startswith("--config.file=")
        )
        return cls(
            site=Site(
                engine,
                secure=bool(variables.get("AGL_TLS_CERT")),
                scrape_seconds=max(SCRAPE_SECONDS / options.speed, MINIMUM_INTERVAL),
            ),
            compose=compose,
            options=options,
            urls={name: item.url for name, item in known.items()},
            init=compose.services()["init"].command,
            config=config,
            name=f"{time.time_ns() // 1_000_000:x}",
        )

    def agree(self, console: Console) -> None:
        """Unscaled alerts page people. Raises EnvironmentFault unless that is agreed to."""
        ways = alertmanager.ways(read_receivers(self.urls["alertmanager"]) or [])
        if self.options.scaled or self.options.yes or not ways:
            return
        if not can_ask():
            raise EnvironmentFault(f"people would be paged ({ways})", remedy="if meant: --yes")
        if not console.ask(f"People are paged for real ({ways}). Go on?"):
            raise EnvironmentFault("nothing was done")

    def put_up(self, undo: ExitStack) -> None:
        """Start what the drill needs; ``undo`` takes it away again."""
        # First who takes pages, then who sends them: a page that is refused is an alert itself.
        targets = [RECEIVER, *([NODE] if self.options.scaled else [])]
        self._start(undo, targets)
        undo.callback(self._tell_alertmanager)
        self._tell_alertmanager(f"--drill-url=http://{RECEIVER}:{PORT}/page", self._named)
        self._until(self._alertmanager_knows, READY_SECONDS, "Alertmanager does not know the drill")
        if self.options.scaled:
            undo.callback(self._init, "init", *self.init)
            scale = (f"--drill-config={self.config}", f"--drill-speed={self.options.speed:g}")
            self._init("init", *self.init, *scale, self._named)
            self._start(undo, [PROMETHEUS])
            self._until(self._prometheus_has_seen, READY_SECONDS, "a target is not up")

    @property
    def _named(self) -> str:
        return f"--drill-name={self.name}"

    def _start(self, undo: ExitStack, services: list[str]) -> None:
        undo.callback(self.compose.run, "rm", "--stop", "--force", "--volumes", *services)
        self.compose.run(
            *("up", "--detach", "--no-build", "--pull", "never", "--no-deps", "--wait"), *services
        )

    def _tell_alertmanager(self, *drill: str) -> None:
        """Have Alertmanager's file written, and read."""
        self._init("alertmanager-init", *drill)
        self.site.engine.hang_up(self.site.container("alertmanager").id)

    def _init(self, service: str, *arguments: str) -> None:
        self.compose.run("run", "--rm", "--no-deps", "-T", service, *arguments)

    def _alertmanager_knows(self) -> bool:
        return f"{alertmanager.DRILL} {self.name}" in (
            read_receivers(self.urls["alertmanager"]) or []
        )

    def _prometheus_has_seen(self) -> bool:
        said = self.site.run(
            PROMETHEUS, "promtool", "query", "instant", "http://127.0.0.1:9090", SEEN_OFTEN
        )
        return "=>" in said

    def _until(self, condition: Callable[[], object], seconds: float, otherwise: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if self.over.wait(LOOK_SECONDS):
                raise EnvironmentFault("the drill was ended")
            if time.monotonic() > deadline:
                raise EnvironmentFault(f"{otherwise} after {seconds:.0f} s")

    def refuse_if_firing(self, drills: Iterable[Drill]) -> None:
        """Raises EnvironmentFault when one of the alerts fires without a drill."""
        already = sorted(drill.alert for drill in drills if self._active(drill.alert))
        if already:
            raise EnvironmentFault(
                f"{', '.join(already)} fires already", remedy="drill when its cause is gone"
            )

    @property
    def mark(self) -> str:
        """Label ``drill`` of the alerts that this drill is about."""
        return self.name if self.options.scaled else ""

    def pages(self) -> list[Page]:
        """What the receiver has taken up to now, from the alerts that this drill is about.

        Drills side by side share one look.
        """
        with self._lock:
            looked, found = self._pages
            if time.monotonic() - looked > LOOK_SECONDS:
                found = self._read_pages()
                self._pages = (time.monotonic(), found)
            return found

    def _read_pages(self) -> list[Page]:
        found = [
            Page(at=float(line["at"]), **cast("dict[str, str]", alert))
            for line in map(
                parsed, self.site.engine.logs(self.site.container(RECEIVER).id, LOG_LINES)
            )
            for alert in items(line.get("alerts"))
        ]
        return [page for page in found if page.drill == self.mark]

    def drill(self, drill: Drill) -> list[Outcome]:
        """One drill from its fault to its page, its symptom's first; undone at its end."""
        speed = self.options.speed
        # In earnest a symptom may take many minutes.
        silenced = (drill.symptom,) if drill.symptom and self.options.scaled else ()
        found: list[Outcome] = []
        try:
            with ExitStack() as undo:
                for name in silenced:
                    symptom = self._paged(SYMPTOMS[name], undo)
                    found.append(Outcome(name, speed, symptom))
                seconds = self._paged(drill, undo)
                for name in silenced:
                    self._until(
                        lambda name=name: self._held_back(name),
                        self.options.timeout,
                        f"{name} is not held back",
                    )
        except EnvironmentFault as fault:
            return [*found, Outcome(drill.alert, speed, None, fault=str(fault))]
        return [*found, Outcome(drill.alert, speed, seconds, silenced)]

    def _paged(self, drill: Drill, undo: ExitStack) -> float:
        """Seconds from the fault to the page."""
        since = time.time()
        drill.deed(self.site, undo)
        self._until(
            lambda: self._times(drill, since), self.options.timeout, f"no page of {drill.alert}"
        )
        return min(self._times(drill, since)) - since

    def _times(self, drill: Drill, since: float) -> list[float]:
        """When pages of that drill came; those of the drill's own host are another drill's."""
        return [
            page.at
            for page in self.pages()
            if page.name == drill.alert
            and page.status == "firing"
            and page.at >= since
            and (page.host == NODE) == drill.scaled_only
        ]

    def _held_back(self, name: str) -> bool:
        """Whether Alertmanager holds back every active alert of that name, for another one."""
        states = self._active(name)
        return bool(states) and all(state.get("inhibitedBy") for state in states)

    def _active(self, name: str) -> list[dict[str, Any]]:
        """States of the alerts of that name which Alertmanager has, as far as this drill goes."""
        wanted = (f'alertname="{name}"', f'drill="{self.mark}"')
        query = "&".join(f"filter={quote(matcher)}" for matcher in wanted)
        body = fetch(f"{self.urls['alertmanager']}/api/v2/alerts?{query}")
        return [mapping(alert.get("status")) for alert in items(json.loads(body or b"[]"))]


def as_json(outcomes: Iterable[Outcome]) -> str:
    """The outcomes as a list of objects."""
    return json.dumps([asdict(outcome) for outcome in outcomes], indent=2)
