"""The ``agl-training`` board: model servers, Ray, the proxy and the trainer around the store."""

from __future__ import annotations

from collections.abc import Sequence

from grafana_foundation_sdk.models import dashboard as dashboard_model
from grafana_foundation_sdk.models import units

from agl.ops.dashboards.frame import Frame, assemble
from agl.ops.dashboards.panels import (
    BYTES,
    NO_UNIT,
    OPS,
    RATIO,
    SECONDS,
    Query,
    Row,
    SeriesPanel,
    State,
    StatesPanel,
    StatPanel,
    TextPanel,
    highest,
    legend_of,
    only_some,
    quantile,
    rate_by,
    selected,
    total,
)
from agl.ops.dashboards.thresholds import Alerts

UID = "agl-training"
FRAME = Frame(
    UID,
    "Training and Serving",
    "vLLM, Ray, LiteLLM and verl's rollout servers, as far as Prometheus scrapes them. What is not "
    "scraped says so; it is no fault.",
    ("training", "vllm", "ray", "litellm", "verl"),
    "up",
)
WATCHED = (
    State(1, "Answers", "green"),
    State(0, "Some do not answer", "red"),
    State(-1, "Absent", "#6e7687"),
)
# Product, the jobs that scrape it, a series it has under whatever job.
PRODUCTS = (
    ("vLLM", "vllm|rollout", "vllm:num_requests_running"),
    ("Ray", "ray", "ray_cluster_active_nodes"),
    ("LiteLLM", "litellm", "litellm_deployment_state"),
    ("verl rollout servers", "rollout", ""),
)
HOW = """\
Prometheus scrapes a product when `prometheus/*.yml` has a job for it; these names are looked for:

| Product | Job | Where |
|---|---|---|
| vLLM | `vllm` | port 8000, `/metrics` |
| Ray | `ray` | the head's `/tmp/ray/prom_metrics_service_discovery.json` |
| LiteLLM | `litellm` | port 4000, `/metrics`, with `callbacks: ["prometheus"]` |
| verl | `rollout` | its rollout servers (vLLM); ports are picked at start, so by file |

verl's own figures (rewards, entropy, idle ratios, stale samples) go to its logger only. Its option
`prometheus.file` **overwrites** the file it names: never name the bundle's `prometheus.yml`."""
MODEL = ("model_name",)


def _absent(product: str) -> str:
    return f"{product} absent"


def _seen(jobs: str, series: str) -> str:
    matcher = f'job=~"{jobs}"'
    up = f"min({selected('up', matcher)})"
    known = f" or (count({selected(series)}) > bool 0)" if series else ""
    return f"{up}{known} or vector(-1)"


def _watched_row() -> Row:
    tiles = tuple(
        StatPanel(
            product,
            f"Whether every {product} that is scraped answers. Absent: none is scraped, which is "
            "as it should be where there is none.",
            NO_UNIT,
            6,
            (Query(_seen(jobs, series), product),),
            states=WATCHED,
            alerts=("TargetDown",),
            limits=(),
        )
        for product, jobs, series in PRODUCTS
    )
    return Row("What Is Watched", tiles)


def _p95(histogram: str, name: str) -> Query:
    return Query(quantile(0.95, histogram), name)


def _newer(new: str, old: str, name: str) -> Query:
    """A histogram's P95 by its new name, or by the one it had before."""
    return Query(f"{quantile(0.95, new)} or {quantile(0.95, old)}", name)


def _either(new: str, old: str, labels: Sequence[str]) -> str:
    return f"{highest(selected(new), labels)} or {highest(selected(old), labels)}"


def _vllm_row() -> Row:
    waiting = total(selected("vllm:num_requests_waiting"), MODEL)
    tokens = rate_by("vllm:generation_tokens_total", MODEL)
    hits = rate_by("vllm:prefix_cache_hits_total", MODEL)
    absent = _absent("vLLM")
    return Row(
        "Model Servers (vLLM)",
        (
            SeriesPanel(
                "Requests Running and Waiting",
                "Requests that are answered, and requests that wait for room. Waiting growing "
                "while running stays: the servers are full.",
                NO_UNIT,
                8,
                (
                    Query(
                        total(selected("vllm:num_requests_running"), MODEL),
                        "{{model_name}} running",
                    ),
                    Query(waiting, "{{model_name}} waiting"),
                ),
                absent,
            ),
            SeriesPanel(
                "Stalled: Waiting Without a Token",
                "Requests that wait while not one token is made. Latencies show nothing of it, "
                "since they are told when a request ends.",
                NO_UNIT,
                8,
                (Query(f"({waiting} > 0) and on (model_name) ({tokens} == 0)", "{{model_name}}"),),
                "✓ Not stalled",
            ),
            SeriesPanel(
                "Tokens / Sec",
                "Tokens read (prompt) and made (generation) per second.",
                OPS,
                8,
                (
                    Query(rate_by("vllm:prompt_tokens_total", MODEL), "{{model_name}} prompt"),
                    Query(tokens, "{{model_name}} generation"),
                ),
                absent,
            ),
            SeriesPanel(
                "Key-Value Cache Used",
                "Share of the cache that is taken, of each model's fullest server. Near 100 % "
                "requests are put off; the figure may stick when all requests were cancelled.",
                RATIO,
                8,
                (
                    Query(
                        _either("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", MODEL),
                        "{{model_name}}",
                    ),
                ),
                absent,
                maximum=1,
            ),
            SeriesPanel(
                "Latency (P95)",
                "95 % are faster: the first token, each further one, waiting for room, and whole "
                "requests.",
                SECONDS,
                8,
                (
                    _p95("vllm:time_to_first_token_seconds", "first token"),
                    _newer(
                        "vllm:inter_token_latency_seconds",
                        "vllm:time_per_output_token_seconds",
                        "each further token",
                    ),
                    _p95("vllm:request_queue_time_seconds", "waiting"),
                    _p95("vllm:e2e_request_latency_seconds", "whole request"),
                ),
                absent,
            ),
            SeriesPanel(
                "Requests Ended / Sec (by Reason)",
                "Stop: the model ended. Length: it was cut off. Abort: the client hung up, which "
                "is what timeouts of attempts look like here.",
                OPS,
                8,
                (
                    Query(
                        rate_by("vllm:request_success_total", ("finished_reason",)),
                        "{{finished_reason}}",
                    ),
                ),
                absent,
            ),
            SeriesPanel(
                "Preemptions / Sec",
                "Requests thrown out of the cache, to be computed again: it is too small.",
                OPS,
                12,
                (Query(only_some(rate_by("vllm:num_preemptions_total", MODEL)), "{{model_name}}"),),
                "✓ None",
            ),
            SeriesPanel(
                "Prompt Cache Hits",
                "Share of prompt tokens that were known already.",
                RATIO,
                12,
                (
                    Query(
                        f"{hits} / {rate_by('vllm:prefix_cache_queries_total', MODEL)}",
                        "{{model_name}}",
                    ),
                ),
                absent,
                maximum=1,
            ),
        ),
    )


def _ray_row() -> Row:
    absent = _absent("Ray")
    nodes = tuple(
        Query(highest(selected(f"ray_cluster_{name}_nodes")), name)
        for name in ("active", "pending", "failed")
    )
    return Row(
        "Ray",
        (
            SeriesPanel(
                "Ray Nodes",
                "Nodes that work, are awaited, or have failed.",
                NO_UNIT,
                8,
                nodes,
                absent,
            ),
            SeriesPanel(
                "Ray Tasks (by State)",
                "Tasks by state. Many pending for placement: the cluster is too small, or a node "
                "is missing.",
                NO_UNIT,
                8,
                (Query(total(selected("ray_tasks"), ("State",)), legend_of(("State",))),),
                absent,
            ),
            SeriesPanel(
                "Ray Actors (by State)",
                "Actors by state. Actors that are restarting again and again have lost their "
                "process; look at their log.",
                NO_UNIT,
                8,
                (Query(total(selected("ray_actors"), ("State",)), legend_of(("State",))),),
                absent,
            ),
            SeriesPanel(
                "Workers Killed for Memory / Sec",
                "Workers that Ray's memory monitor killed: a task takes more than the node has.",
                OPS,
                8,
                (
                    Query(
                        only_some(rate_by("ray_memory_manager_worker_eviction_total", ())), "killed"
                    ),
                ),
                "✓ None",
            ),
            SeriesPanel(
                "Object Store (by Place)",
                "Objects in shared memory, and those spilled to disk, which are slow to get back.",
                BYTES,
                8,
                (
                    Query(
                        total(selected("ray_object_store_memory"), ("Location",)),
                        legend_of(("Location",)),
                    ),
                ),
                absent,
            ),
            SeriesPanel(
                "Busy as Ray Sees It",
                "Share of CPU, and of the GPUs, that is busy, mean of all nodes.",
                units.Percent,
                8,
                (
                    Query(f"avg({selected('ray_node_cpu_utilization')})", "CPU"),
                    Query(f"avg({selected('ray_node_gpus_utilization')})", "GPU"),
                ),
                absent,
            ),
        ),
    )


def _litellm_row() -> Row:
    absent = _absent("LiteLLM")
    deployment = ("litellm_model_name",)
    cooled = rate_by("litellm_deployment_cooled_down_total", deployment)
    failures = rate_by(
        "litellm_deployment_failure_responses_total", ("litellm_model_name", "exception_status")
    )
    return Row(
        "Proxy (LiteLLM)",
        (
            StatesPanel(
                "Deployments",
                "What the proxy thinks of each model server behind it.",
                NO_UNIT,
                8,
                (
                    Query(
                        highest(selected("litellm_deployment_state"), deployment),
                        "{{litellm_model_name}}",
                    ),
                ),
                absent,
                height=8,
                states=(
                    State(0, "Healthy", "green"),
                    State(1, "Partly out", "orange"),
                    State(2, "Out", "red"),
                ),
            ),
            SeriesPanel(
                "Proxy Requests / Sec",
                "Requests to the proxy, and those of them that failed.",
                OPS,
                8,
                (
                    Query(rate_by("litellm_proxy_total_requests_metric_total", ()), "all"),
                    Query(rate_by("litellm_proxy_failed_requests_metric_total", ()), "failed"),
                ),
                absent,
            ),
            SeriesPanel(
                "Proxy Failures / Sec (by Deployment)",
                "Failed answers of the servers behind the proxy, and how often one was left out "
                "for a while because of it. 429: it is asked too much.",
                OPS,
                8,
                (
                    Query(only_some(failures), "{{litellm_model_name}} {{exception_status}}"),
                    Query(only_some(cooled), "{{litellm_model_name}} left out"),
                ),
                "✓ None",
            ),
            SeriesPanel(
                "Proxy Latency (P95)",
                "95 % of requests are faster: in all, what the model server took of it, what the "
                "proxy itself added, and until the first token.",
                SECONDS,
                24,
                (
                    _p95("litellm_request_total_latency_metric", "in all"),
                    _p95("litellm_llm_api_latency_metric", "model server"),
                    _p95("litellm_overhead_latency_metric", "proxy"),
                    _p95("litellm_llm_api_time_to_first_token_metric", "first token"),
                ),
                absent,
            ),
        ),
    )


def _verl_row() -> Row:
    answers = Query(highest(selected("up", 'job="rollout"'), ("instance",)), "{{instance}}")
    return Row(
        "Trainer (verl)",
        (
            StatesPanel(
                "Rollout Servers",
                "Whether each of verl's rollout servers answers. Their load is with vLLM above.",
                NO_UNIT,
                10,
                (answers,),
                _absent("verl"),
                height=10,
                states=(State(1, "Answers", "green"), State(0, "No answer", "red")),
                alerts=("TargetDown",),
                limits=(),
            ),
            TextPanel("How to Have These Watched", HOW, 14, 10),
        ),
    )


def build(alerts: Alerts) -> dashboard_model.Dashboard:
    """Return the board, ready to be rendered."""
    rows = (_watched_row(), _vllm_row(), _ray_row(), _litellm_row(), _verl_row())
    return assemble(FRAME, rows, alerts)
