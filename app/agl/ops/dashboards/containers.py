"""A row of the ``agl-node`` board: what the containers of the stack use of what they may have."""

from __future__ import annotations

from agl.ops.dashboards.panels import (
    BYTES,
    NO_UNIT,
    RATIO,
    Query,
    Row,
    SeriesPanel,
    highest,
    only_some,
    selected,
)

HOST = 'host=~"$host"'
LABELS = ("host", "service")
LEGEND = "{{host}} {{service}}"
NO_CONTAINERS = "container-exporter tells nothing"


def _highest(metric: str) -> str:
    return highest(selected(metric, HOST), LABELS)


def _events(metric: str) -> str:
    """Events in the window of a point, where there were some."""
    return only_some(
        f"sum by (host, service) (increase({selected(metric, HOST)}[$__rate_interval]))"
    )


def row() -> Row:
    used = _highest("agl_container_memory_bytes")
    return Row(
        "Containers",
        (
            SeriesPanel(
                "Memory Used (Share of the Limit)",
                "What each service of the stack uses of the memory it may have, file pages left "
                "out. At 1 the kernel ends a process in it.",
                RATIO,
                8,
                (Query(f"{used} / {_highest('agl_container_memory_limit_bytes')}", LEGEND),),
                NO_CONTAINERS,
                alerts=("ContainerMemoryNearLimit",),
            ),
            SeriesPanel(
                "Memory Used by Containers",
                "What each service of the stack uses, file pages left out.",
                BYTES,
                8,
                (Query(used, LEGEND),),
                NO_CONTAINERS,
            ),
            SeriesPanel(
                "Containers That Started",
                "Starts in the window of a point. More than two in a quarter of an hour: the "
                "service dies again and again.",
                NO_UNIT,
                8,
                (Query(_events("agl_container_starts_total"), LEGEND),),
                "✓ None started",
                bars=True,
                alerts=("ContainerRestartLoop",),
                limits=(),
            ),
            SeriesPanel(
                "Processes Ended at Their Container's Limit",
                "Times the kernel ended a process because its container had reached its limit. Any "
                "is one too many: give the service more memory, or let it hold less.",
                NO_UNIT,
                8,
                (Query(_events("agl_container_oom_kills_total"), LEGEND),),
                "✓ None ended",
                bars=True,
                alerts=("ContainerOOMKilled",),
            ),
        ),
    )
