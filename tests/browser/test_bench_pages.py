"""Pages of measurements in a real browser: in both themes, on a desk and on a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from chromium import Page
from conftest import PICTURES

from agl.bench.analysis.model import Analysis, Course, Group, Growth, Layer, Row, Slice, Value
from agl.bench.pages.report import report_of
from agl.bench.results import Figure, Machine, Result

MACHINE = Machine(
    system="Linux", processor="one", cores=2, memory=1 << 34, python="3.11.7", load=0.1
)
WIDTHS = {"desk": 1280, "phone": 390}
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
EMPTY = """
[...document.querySelectorAll('svg path, .bars .track i, .shares i')].filter((part) => {
  const box = part.getBoundingClientRect();
  return box.width + box.height < 1;
}).length
"""
GREY = """
[...document.querySelectorAll('svg path')].map((path) => getComputedStyle(path).stroke)
  .filter((color) => color === 'none' || color === 'rgb(0, 0, 0)').length
"""


def results() -> list[Result]:
    """A load and an analysis, with everything a page can draw."""
    rates = [
        Figure(name=f"{who}: rollouts a second", unit="1/s", better="higher", samples=samples)
        for who, samples in (("A", (100.0, 130.0)), ("B", (150.0, 160.0)))
    ]
    long = Row(labels=("/v1/agl/rollouts/{rollout_id}/attempts/{attempt_id}", "POST"), rate=9.0,
               peak=20.0, p50=0.001, p95=0.004, p99=0.02, time=0.3, mean=0.002)  # fmt: skip
    analysis = Analysis(
        start=1_767_225_600.0,
        end=1_767_229_200.0,
        prometheus="http://127.0.0.1:9090",
        groups=(Group(section="HTTP requests", metric="x", by=("path", "method"), rows=(long,)),),
        values=(Value(section="Throughput", name="requests a second", value=9.0, unit="1/s"),),
        layers=(
            Layer(name="HTTP framing", time=0.2, share=0.4),
            Layer(name="store", time=0.3, share=0.6),
        ),
        growth=(
            Growth(
                method="add_span",
                slices=tuple(Slice(size=n * 1000.0, latency=1e-4 * n) for n in range(1, 9)),
                ratio=1.1,
                smallest=1000,
                largest=8000,
            ),
        ),
        courses=tuple(
            Course(
                chart="Latency of requests",
                name=name,
                unit="s",
                points=tuple((1_767_225_600.0 + 60 * n, n * size) for n in range(60)),
            )
            for name, size in (("p50", 1e-4), ("p99", 9e-4))
        ),
        absent=("mongodb_ss_opcounters (operations)",),
    )
    common = {"parameters": {}, "started": 1_767_225_600.0, "ended": 1_767_229_200.0}
    return [
        Result(kind="pair", name="load", figures=tuple(rates), machine=MACHINE, **common),
        Result(kind="analysis", name="window", figures=(), machine=MACHINE,
               details=analysis.model_dump(mode="json"), **common),
    ]  # fmt: skip


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_the_page_is_drawn_and_asks_nobody(page: Page, tmp_path: Path, theme: str) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_of("How the store does", results(), ["mongo: left out"]), "utf-8")
    await page.call(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}]
    )
    for name, width in WIDTHS.items():
        await page.size(width, 900)
        await page.open(file.as_uri())
        await page.until("document.querySelectorAll('svg path').length >= 2", "charts")
        assert await page.run(OVERFLOW) <= 0, name
        assert await page.run(EMPTY) == 0, name
        assert await page.run(GREY) == 0, name
        await page.picture(PICTURES / f"bench-{theme}-{name}.png", whole=True)
    background = await page.run("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(17, 18, 23)") == (theme == "dark")
    assert page.errors == []
    assert {url.partition(":")[0] for url in page.requests} <= {"file", "data"}
