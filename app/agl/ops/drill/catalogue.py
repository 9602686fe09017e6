"""Which alerts can be drilled, and how each condition is brought about."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from agl.errors import EnvironmentFault
from agl.ops.drill.scaling import NODE
from agl.ops.drill.site import METRICS_FOLDER, OURS, RECEIVER, Site

Deed = Callable[[Site, ExitStack], None]
GPU = 'gpu="0",UUID="GPU-agl-drill",modelName="drill"'
NODE_EXPORTER, APP_EXPORTER = frozenset({"node-exporter"}), frozenset({"app-exporter"})
APP, CONTAINER_EXPORTER = frozenset({"app"}), frozenset({"container-exporter"})
RESTARTS = 3


@dataclass(frozen=True)
class Drill:
    """How one alert is drilled.

    Attributes:
        alert: Its name.
        does: What is done, in a few words.
        deed: Does it.
        disturbs: Services that do not work as usual meanwhile.
        needs: Services that have to; a drill that disturbs one of them has another turn.
        symptom: Name of a drill whose alert has to be silent as soon as this one fires.
        scaled_only: It needs what only a drill's own Prometheus looks at.
    """

    alert: str
    does: str
    deed: Deed
    disturbs: frozenset[str] = field(default_factory=frozenset[str])
    needs: frozenset[str] = field(default_factory=frozenset[str])
    symptom: str = ""
    scaled_only: bool = False

    def collides(self, other: Drill) -> bool:
        """Whether the two cannot be drilled at the same time."""
        mine, theirs = self.disturbs | self.needs, other.disturbs | other.needs
        return bool(self.disturbs & theirs or other.disturbs & mine)


def _frozen(service: str) -> Deed:
    def deed(site: Site, undo: ExitStack) -> None:
        site.freeze(undo, service)

    return deed


def _text_file(name: str, text: str) -> Deed:
    def deed(site: Site, undo: ExitStack) -> None:
        site.put_text_file(undo, name, text)

    return deed


def _kill_for_memory(site: Site, _: ExitStack) -> None:
    """A process that wants more than its container may have; the kernel ends it."""
    limit = site.container(RECEIVER).memory_limit
    try:
        site.run(RECEIVER, "python", "-c", f"bytearray({limit * 4}).find(1)")
    except EnvironmentFault:
        return
    raise EnvironmentFault("the kernel did not end a process that wanted too much memory")


def _restart_again(site: Site, _: ExitStack) -> None:
    for _time in range(RESTARTS):
        site.restart("node-exporter")
        # Each start has to be seen by a scrape.
        time.sleep(3 * site.scrape_seconds)


def _bad_metrics_file(site: Site, undo: ExitStack) -> None:
    site.put(undo, f"{METRICS_FOLDER}/counter_999999999.db", "no metrics at all", OURS)


def _full_metrics_folder(site: Site, undo: ExitStack) -> None:
    site.fill_metrics_folder(undo, 0.9)


def _memory_errors_of_the_drills_host(site: Site, _: ExitStack) -> None:
    site.play_node(f"DCGM_FI_DEV_ECC_DBE_AGG_TOTAL{{{GPU}}} 0\n")
    time.sleep(5)
    site.play_node(f"DCGM_FI_DEV_ECC_DBE_AGG_TOTAL{{{GPU}}} 2\n")


def _fill_queue(site: Site, undo: ExitStack) -> None:
    site.fill_queue(undo)


_XID = 'DCGM_EXP_XID_ERRORS_COUNT{%s,xid="%d",window_size_in_ms="300000"} 1\n'

QUEUE_STUCK = Drill(
    "QueueStuck",
    "puts rollouts into the queue that nobody takes",
    _fill_queue,
    needs=APP_EXPORTER | APP,
)
SYMPTOMS = {
    drill.alert: drill
    for drill in (
        QUEUE_STUCK,
        Drill(
            "GpuDoubleBitEcc",
            "a GPU of a host that only the drill has counts memory errors",
            _memory_errors_of_the_drills_host,
            scaled_only=True,
        ),
    )
}
DRILLS = {
    drill.alert: drill
    for drill in (
        Drill(
            "StoreDown",
            "freezes the store while its queue is stuck, which must be silent then",
            _frozen("app"),
            APP,
            needs=APP_EXPORTER,
            symptom="QueueStuck",
        ),
        QUEUE_STUCK,
        Drill("ExporterDown", "freezes app-exporter", _frozen("app-exporter"), APP_EXPORTER),
        Drill(
            "ExporterBadFiles",
            "puts a file into the metrics folder that is none",
            _bad_metrics_file,
            needs=APP_EXPORTER,
        ),
        Drill(
            "ExporterFolderFilling",
            "fills the metrics folder to 90 %",
            _full_metrics_folder,
            needs=APP_EXPORTER,
        ),
        Drill(
            "MongoDBDown",
            "freezes MongoDB",
            _frozen("mongo"),
            frozenset({"mongo"}) | APP,
        ),
        Drill(
            "TargetDown",
            "freezes container-exporter",
            _frozen("container-exporter"),
            CONTAINER_EXPORTER,
        ),
        Drill(
            "NodeDown",
            "freezes a host that only the drill has; its GPUs' alerts must be silent then",
            _frozen(NODE),
            symptom="GpuDoubleBitEcc",
            scaled_only=True,
        ),
        Drill(
            "GpuXidCritical",
            "a text file of node-exporter tells XID 79",
            _text_file("agl-drill-xid.prom", _XID % (GPU, 79)),
            needs=NODE_EXPORTER,
        ),
        Drill(
            "GpuTemperatureCritical",
            "a text file of node-exporter tells 99 degrees",
            _text_file("agl-drill-temperature.prom", f"DCGM_FI_DEV_GPU_TEMP{{{GPU}}} 99\n"),
            needs=NODE_EXPORTER,
        ),
        Drill(
            "NodeTextFileCollectorScrapeError",
            "a text file of node-exporter that is none",
            _text_file("agl-drill-bad.prom", "this is no metric\n"),
            needs=NODE_EXPORTER,
        ),
        Drill(
            "OOMKilled",
            "a process in a container of the drill wants more memory than it may have",
            _kill_for_memory,
            needs=NODE_EXPORTER,
        ),
        Drill(
            "ContainerOOMKilled",
            "likewise; the alert names the container",
            _kill_for_memory,
            needs=CONTAINER_EXPORTER,
        ),
        Drill(
            "ProcessRestartLoop",
            f"restarts node-exporter {RESTARTS} times",
            _restart_again,
            NODE_EXPORTER,
        ),
    )
}
