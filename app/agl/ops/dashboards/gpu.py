"""The ``agl-gpu`` board: every GPU of every host, and what an error of one asks for."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as dashboard_model
from grafana_foundation_sdk.models import units

from agl.ops.dashboards.frame import Choice, Frame, assemble
from agl.ops.dashboards.panels import (
    NO_UNIT,
    RATIO,
    Column,
    Query,
    Row,
    SeriesPanel,
    State,
    StatPanel,
    TablePanel,
    only_some,
    selected,
)
from agl.ops.dashboards.thresholds import Alerts

UID = "agl-gpu"
XIDS = "gpu:xid_errors:count"
TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"
FRAME = Frame(
    UID,
    "GPU Cluster",
    "GPUs expected and seen, what errors they report and what to do about each, and how they work. "
    "Empty where no GPU is watched.",
    ("gpu",),
    TEMPERATURE,
    (Choice("host", TEMPERATURE), Choice("gpu", TEMPERATURE)),
)
CELSIUS, WATT = units.Celsius, units.Watt
HOST = 'host=~"$host"'
CHOSEN = 'host=~"$host", gpu=~"$gpu"'
UNSUPPORTED = "< 1e18"
"""What a GPU cannot tell comes as a number near 2^63."""
LEGEND = "{{host}} gpu {{gpu}}"
HOT = ("GpuTemperatureHigh", "GpuTemperatureCritical")
NO_GPU = "No GPU is watched"
URGENCIES = (
    State(3, "critical", "red"),
    State(2, "warning", "orange"),
    State(1, "info", "blue"),
)


def _gpu(metric: str, matchers: str = "") -> str:
    """The value of each GPU, those of its parts as their largest."""
    chosen = f"{CHOSEN}, {matchers}" if matchers else CHOSEN
    return f"max by (host, gpu) ({selected(metric, chosen)} {UNSUPPORTED})"


def _growth(metric: str) -> str:
    return f"sum by (host, gpu) (increase({selected(metric, CHOSEN)}[$__rate_interval]))"


def _seen() -> str:
    counted = f"count by (host, UUID) ({selected(TEMPERATURE, HOST)})"
    return f"count by (host) ({counted})"


EXPECTED = f"max by (host) (agl_node_gpus_expected{{{HOST}}})"


def _count_row() -> Row:
    missing = f"({EXPECTED} - {_seen()} or {EXPECTED})"
    columns = (
        Column("host", "Host", link="/d/agl-gpu?var-host=${__value.text}"),
        Column("Value #A", "Expected", NO_UNIT),
        Column("Value #B", "Seen", NO_UNIT),
        Column("Value #C", "Missing", NO_UNIT, alerts=("GpuCountUnexpected",)),
        Column("Value #D", "Hottest", CELSIUS, alerts=HOT),
        Column("Value #E", "Busiest", RATIO),
    )
    hottest = f"max by (host) ({_gpu(TEMPERATURE)})"
    busiest = f"max by (host) ({_gpu('DCGM_FI_DEV_GPU_UTIL')}) / 100"
    return Row(
        "Are They All There?",
        (
            StatPanel(
                "GPUs Expected",
                "What the inventory promises, of all hosts chosen.",
                NO_UNIT,
                3,
                (Query(f"sum({EXPECTED})", "expected"),),
                "No inventory",
                height=7,
            ),
            StatPanel(
                "GPUs Seen",
                "GPUs that their exporter tells of, of all hosts chosen.",
                NO_UNIT,
                3,
                (Query(f"sum({_seen()})", "seen"),),
                NO_GPU,
                height=7,
            ),
            StatPanel(
                "GPUs Missing",
                "Expected and not seen. A GPU that fell off the bus is missing until the host is "
                "rebooted.",
                NO_UNIT,
                3,
                (Query(f"sum({missing})", "missing"),),
                "No inventory",
                height=7,
                alerts=("GpuCountUnexpected",),
            ),
            TablePanel(
                "Hosts",
                "Each host's GPUs: expected, seen, missing, the hottest and the busiest. A click "
                "on a host shows it alone.",
                NO_UNIT,
                15,
                tuple(
                    Query(expr, "{{host}}")
                    for expr in (EXPECTED, _seen(), missing, hottest, busiest)
                ),
                NO_GPU,
                height=7,
                alerts=("GpuCountUnexpected",),
                limits=(),
                columns=columns,
                sort="-Missing",
            ),
        ),
    )


def _of_urgency(urgency: str) -> str:
    matcher = f'{CHOSEN}, urgency="{urgency}"'
    return selected(XIDS, matcher)


def _errors_row() -> Row:
    labels = "host, gpu, xid, class, action"
    recorded = selected(XIDS, CHOSEN)
    urgency = " or ".join(
        f"max by ({labels}) ({_of_urgency(state.text)} > 0) * 0 + {state.value}"
        for state in URGENCIES
    )
    columns = (
        Column("Value #B", "Urgency", states=URGENCIES, width=90),
        Column("host", "Host", width=120),
        Column("gpu", "GPU", width=60),
        Column("xid", "XID", width=60),
        Column("Value #A", "Times", NO_UNIT, width=70),
        Column("action", "What to do"),
        Column("class", "Class", width=110),
    )
    return Row(
        "What Is Wrong With Them?",
        (
            TablePanel(
                "XIDs and What to Do",
                "Errors that the driver reported within the exporter's window (5 minutes unless "
                "set). What to do comes from prometheus/data/xid.yml.",
                NO_UNIT,
                16,
                (
                    Query(f"max by ({labels}) ({recorded} > 0)", "__auto"),
                    Query(urgency, "__auto"),
                ),
                "✓ No XID",
                alerts=("GpuXidCritical", "GpuXidWarning", "GpuXidInfo"),
                limits=(),
                columns=columns,
                sort="-Urgency",
            ),
            SeriesPanel(
                "XIDs Over Time",
                "How many errors each GPU reported within the exporter's window, by number.",
                NO_UNIT,
                8,
                (
                    Query(
                        only_some(f"max by (host, gpu, xid) ({recorded})"),
                        "{{host}} gpu {{gpu}} XID {{xid}}",
                    ),
                ),
                "✓ No XID",
                alerts=("GpuXidCritical", "GpuXidWarning", "GpuXidInfo"),
                limits=(),
            ),
            SeriesPanel(
                "Memory Errors of Two Bits",
                "Errors that memory could not correct, since the last reset. Data are wrong.",
                NO_UNIT,
                6,
                (Query(only_some(_gpu("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL")), LEGEND),),
                "✓ None",
                alerts=("GpuDoubleBitEcc",),
            ),
            SeriesPanel(
                "Rows That Could Not Be Remapped",
                "1 when a GPU has no spare memory row left: replace it.",
                NO_UNIT,
                6,
                (Query(only_some(_gpu("DCGM_FI_DEV_ROW_REMAP_FAILURE")), LEGEND),),
                "✓ None",
                alerts=("GpuRowRemapFailure",),
            ),
            SeriesPanel(
                "Rows Waiting to Be Remapped",
                "1 while a GPU wants a reset to put a spare row in the place of a bad one.",
                NO_UNIT,
                6,
                (Query(only_some(_gpu("DCGM_FI_DEV_ROW_REMAP_PENDING")), LEGEND),),
                "✓ None",
                alerts=("GpuRowRemapPending",),
            ),
            SeriesPanel(
                "NVLink Errors",
                "Errors on the links between GPUs in the window of a point, of all kinds.",
                NO_UNIT,
                6,
                tuple(
                    Query(
                        only_some(_growth(f"DCGM_FI_DEV_NVLINK_{kind}_ERROR_COUNT_TOTAL")),
                        f"{LEGEND} {name}",
                    )
                    for kind, name in (
                        ("CRC_DATA", "CRC"),
                        ("REPLAY", "replay"),
                        ("RECOVERY", "recovery"),
                    )
                ),
                "✓ None",
                alerts=("GpuNvlinkErrors",),
            ),
        ),
    )


def _heat_row() -> Row:
    slow = 'clock_event=~"hw_slowdown|hw_thermal|sw_thermal|hw_power_brake"'
    throttled = (
        "max by (host, gpu, clock_event) "
        f"({selected('DCGM_EXP_CLOCK_EVENTS_COUNT', f'{CHOSEN}, {slow}')})"
    )
    return Row(
        "Heat and Power",
        (
            SeriesPanel(
                "GPU Temperature",
                "Temperature of the 20 hottest GPUs.",
                CELSIUS,
                8,
                (Query(f"topk(20, {_gpu(TEMPERATURE)})", LEGEND),),
                NO_GPU,
                alerts=HOT,
            ),
            SeriesPanel(
                "Memory Temperature",
                "Temperature of the memory of the 20 GPUs where it is hottest.",
                CELSIUS,
                8,
                (Query(f"topk(20, {_gpu('DCGM_FI_DEV_MEMORY_TEMP')})", LEGEND),),
                NO_GPU,
                alerts=("GpuMemoryTemperatureHigh",),
            ),
            SeriesPanel(
                "Slowed Down By",
                "How often a GPU slowed down for heat or power, within the exporter's window. The "
                "power cap and idling are not counted: they are usual.",
                NO_UNIT,
                8,
                (Query(only_some(throttled), f"{LEGEND} {{{{clock_event}}}}"),),
                "✓ None slowed down",
                alerts=("GpuThrottled",),
            ),
            SeriesPanel(
                "Power",
                "Power that each host's GPUs draw, all together.",
                WATT,
                8,
                (Query(f"sum by (host) ({_gpu('DCGM_FI_DEV_POWER_USAGE')})", "{{host}}"),),
                NO_GPU,
            ),
            SeriesPanel(
                "Slowest Clock",
                "The lowest clock of a host's GPUs, in Hz. One that stays below its neighbours "
                "holds up the whole job.",
                units.Hertz,
                8,
                (
                    Query(
                        f"min by (host) ({_gpu('DCGM_FI_DEV_SM_CLOCK')}) * 1e6",
                        "{{host}}",
                    ),
                ),
                NO_GPU,
            ),
            SeriesPanel(
                "Memory Used",
                "Share of the GPU's memory that is taken, of the 20 fullest GPUs.",
                RATIO,
                8,
                (
                    Query(
                        f"topk(20, {_gpu('DCGM_FI_DEV_FB_USED')} / "
                        f"({_gpu('DCGM_FI_DEV_FB_USED')} + {_gpu('DCGM_FI_DEV_FB_FREE')}))",
                        LEGEND,
                    ),
                ),
                NO_GPU,
                maximum=1,
            ),
        ),
    )


def _work_row() -> Row:
    engine = _gpu("DCGM_FI_PROF_GR_ENGINE_ACTIVE")
    blind = f"({_gpu('DCGM_FI_DEV_GPU_UTIL')} > 90) and on (host, gpu) ({engine} == 0)"
    return Row(
        "Do They Work?",
        (
            SeriesPanel(
                "A Kernel Was There (by Host)",
                "Share of time in which some kernel was on the GPU, mean of a host. A job that "
                "hangs in a collective shows 100 %: see the next panel.",
                RATIO,
                8,
                (Query(f"avg by (host) ({_gpu('DCGM_FI_DEV_GPU_UTIL')}) / 100", "{{host}}"),),
                NO_GPU,
                maximum=1,
            ),
            SeriesPanel(
                "Engines at Work (by Host)",
                "Share of time in which the graphics engine, and the tensor cores, really worked, "
                "mean of a host. Not there for GPUs without profiling.",
                RATIO,
                8,
                (
                    Query(f"avg by (host) ({engine})", "{{host}} engine"),
                    Query(
                        f"avg by (host) ({_gpu('DCGM_FI_PROF_PIPE_TENSOR_ACTIVE')})",
                        "{{host}} tensor",
                    ),
                ),
                "No profiling",
                alerts=("GpuEnergyFlat",),
                limits=(),
                maximum=1,
            ),
            SeriesPanel(
                "Profiling Blind",
                "Utilisation of GPUs that are busy while profiling shows nothing at all: the "
                "exporter's profiling is stuck, not the GPU.",
                units.Percent,
                8,
                (Query(f"topk(20, {blind})", LEGEND),),
                "✓ None blind",
                alerts=("GpuProfilingBlind",),
            ),
        ),
    )


def build(alerts: Alerts) -> dashboard_model.Dashboard:
    """Return the board, ready to be rendered."""
    return assemble(FRAME, (_count_row(), _errors_row(), _heat_row(), _work_row()), alerts)
