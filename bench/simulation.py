"""Clients, server processes and MongoDB as queues: what they reach together, event by event.

Closed loop: a client plays rollouts (start, spans, finish) and sends its next request when it has
the answer. A server process is one event loop: it has one core at a time. A request needs CPU of
it, then a write of MongoDB; a start needs a read before. Reads, and writes, that come while one is
on its way gather for the next one, as the store does it (``store/collection/mongo/gathering.py``).
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import quantiles

MOST = 1000
"""Operations of one command, as in the store."""

_APART = 37e-6
"""Seconds between the first requests of two clients."""

_ROUNDS = 12
"""Requests of each client that a simulation lasts at least."""

Then = Callable[[], None]


@dataclass(frozen=True)
class Costs:
    """Seconds of CPU, but for the last three, which are seconds of waiting.

    Attributes:
        request: Of a server process for a request without its commands.
        command: Of a server process for a command, whatever is in it.
        mongo_command: Of MongoDB for a command, whatever is in it.
        read: Of MongoDB for a document read by its id.
        insert: Of MongoDB for a document inserted with its indexes.
        update: Of MongoDB for a conditional update with its indexes.
        guard: Of MongoDB for one that changes nothing.
        sync: Until a write is on disk and on the majority; syncs of commands overlap.
        trip: From a process to MongoDB and back.
        think: Of a client between two requests.
    """

    request: float = 330e-6
    command: float = 200e-6
    mongo_command: float = 400e-6
    read: float = 50e-6
    insert: float = 40e-6
    update: float = 290e-6
    guard: float = 100e-6
    sync: float = 1e-3
    trip: float = 0.2e-3
    think: float = 0.0


@dataclass(frozen=True)
class Site:
    """What there is: ``mongo_cores`` 0 means that MongoDB shares the cores of the store."""

    clients: int
    processes: int
    cores: int
    mongo_cores: int = 0
    spans: int = 4


@dataclass(frozen=True)
class Outcome:
    """A second of it; latencies in seconds, ``commands`` a request, cores as many as were busy."""

    requests: float
    rollouts: float
    p50: float
    p95: float
    commands: float
    store_cores: float
    mongo_cores: float


class Cores:
    """Some cores, taken in the order of asking."""

    def __init__(self, clock: Clock, number: int) -> None:
        self._clock = clock
        self._free = number
        self._waiting = deque[tuple[float, Then]]()
        self.busy = 0.0

    def use(self, seconds: float, then: Then) -> None:
        """Call ``then`` after a core has worked for so long."""
        if not self._free:
            self._waiting.append((seconds, then))
            return
        self._free -= 1
        self._begin(seconds, then)

    def _begin(self, seconds: float, then: Then) -> None:
        self.busy += seconds

        def end() -> None:
            if self._waiting:
                self._begin(*self._waiting.popleft())
            else:
                self._free += 1
            then()

        self._clock.after(seconds, end)


class Clock:
    """Simulated time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Then]] = []
        self._number = itertools.count()

    def after(self, seconds: float, then: Then) -> None:
        """Call ``then`` so much later."""
        heapq.heappush(self._events, (self.now + seconds, next(self._number), then))

    def run(self, until: float) -> None:
        """Let time pass."""
        while self._events and self._events[0][0] <= until:
            self.now, _, then = heapq.heappop(self._events)
            then()


@dataclass
class Gatherer:
    """Reads or writes of one process: one command is on its way at a time."""

    send: Callable[[list[tuple[float, Then]], Then], None]
    waiting: list[tuple[float, Then]] = field(default_factory=list[tuple[float, Then]])
    away: bool = False

    def add(self, mongo: float, then: Then) -> None:
        """Have an operation done that takes MongoDB so long."""
        self.waiting.append((mongo, then))
        if not self.away:
            self._next()

    def _next(self) -> None:
        if not self.waiting:
            return
        self.away = True
        batch, self.waiting = self.waiting[:MOST], self.waiting[MOST:]
        self.send(batch, self._back)

    def _back(self) -> None:
        self.away = False
        self._next()


class Process:
    """One server process: an event loop that has a core while it works."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tasks = deque[tuple[float, Then]]()
        self._working = False
        self.reads = Gatherer(lambda batch, back: self._command(batch, back, 0.0))
        self.writes = Gatherer(lambda batch, back: self._command(batch, back, world.costs.sync))

    def work(self, seconds: float, then: Then) -> None:
        """Have the event loop do something, after what it has to do already."""
        self._tasks.append((seconds, then))
        if not self._working:
            self._turn()

    def _turn(self) -> None:
        self._working = bool(self._tasks)
        if not self._tasks:
            return
        seconds, then = self._tasks.popleft()

        def done() -> None:
            then()
            self._turn()

        self._world.cores.use(seconds, done)

    def _command(self, batch: list[tuple[float, Then]], back: Then, sync: float) -> None:
        world, costs = self._world, self._world.costs
        world.commands += 1
        mongo = costs.mongo_command + sum(seconds for seconds, _ in batch)

        def answered() -> None:
            back()
            for _, then in batch:
                then()

        def served() -> None:
            world.clock.after(sync + costs.trip / 2, answered)

        def sent() -> None:
            world.clock.after(costs.trip / 2, lambda: world.mongo.use(mongo, served))

        self.work(costs.command, sent)


class World:
    """Everything at once."""

    def __init__(self, site: Site, costs: Costs) -> None:
        self.costs = costs
        self.clock = Clock()
        self.cores = Cores(self.clock, site.cores)
        self.mongo = Cores(self.clock, site.mongo_cores) if site.mongo_cores else self.cores
        self.commands = 0
        self.latencies: list[float] = []
        self._site = site
        processes = [Process(self) for _ in range(site.processes)]
        for number in range(site.clients):
            self._begin(processes[number % site.processes], number)

    def _begin(self, process: Process, number: int) -> None:
        """Clients come one after the other, each at another step, or all would walk in step."""
        at = number * _APART
        self.clock.after(at, lambda: self._client(process, number % (self._site.spans + 2)))

    def _client(self, process: Process, step: int) -> None:
        began = self.clock.now
        costs = self.costs
        last = self._site.spans + 1

        def done() -> None:
            self.latencies.append(self.clock.now - began)
            self.clock.after(costs.think, lambda: self._client(process, (step + 1) % (last + 1)))

        def write() -> None:
            process.writes.add(self._write(step), done)

        def start() -> None:
            process.reads.add(costs.read, write)

        process.work(costs.request, start if step == 0 else write)

    def _write(self, step: int) -> float:
        costs = self.costs
        if step == 0:
            return costs.insert
        if step > self._site.spans:
            return costs.update
        return costs.insert + (costs.update if step == 1 else costs.guard)  # the first makes it run


def simulate(site: Site, costs: Costs, least: float = 0.5) -> Outcome:
    """Let a site work for ``least`` seconds or some requests of each client, after a warm-up."""
    each = site.clients * (costs.request + 2 * costs.command / 8) / min(site.processes, site.cores)
    seconds = max(least, _ROUNDS * each)
    world = World(site, costs)
    world.clock.run(seconds / 3)
    world.latencies.clear()
    commands, store, mongo = world.commands, world.cores.busy, world.mongo.busy
    world.clock.run(seconds * 4 / 3)
    cuts = quantiles(world.latencies, n=20) if len(world.latencies) > 1 else [0.0] * 19
    requests = len(world.latencies) / seconds
    return Outcome(
        requests=requests,
        rollouts=requests / (site.spans + 2),
        p50=cuts[9],
        p95=cuts[18],
        commands=(world.commands - commands) / max(len(world.latencies), 1),
        store_cores=(world.cores.busy - store) / seconds,
        mongo_cores=(world.mongo.busy - mongo) / seconds,
    )
