"""Two results beside each other: scatter, direction, gate, and what else differs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agl.bench.compare import as_result, compare
from agl.bench.results import Better, Figure, Machine, Result
from agl.cli import main
from agl.errors import UsageError

MACHINE = Machine(
    system="Linux", processor="one", cores=2, memory=1 << 34, python="3.11.7", load=0.1
)


def figure(name: str, better: Better, *samples: float, unit: str = "1/s") -> Figure:
    return Figure(name=name, unit=unit, better=better, samples=samples)


def result(*figures: Figure, machine: Machine = MACHINE, **changed: object) -> Result:
    values: dict[str, object] = {
        "kind": "load",
        "name": "closed",
        "parameters": {"clients": 32, "store_url": "http://here"},
        "figures": figures,
        "started": 1.0,
        "ended": 2.0,
        "machine": machine,
    }
    return Result.model_validate({**values, **changed})


@pytest.mark.parametrize(
    ("better", "a", "b", "verdict"),
    [
        ("higher", (100, 110, 105), (80, 85, 90), "worse"),
        ("lower", (100, 110, 105), (80, 85, 90), "better"),
        ("neither", (100, 110, 105), (80, 85, 90), "changed"),
        ("higher", (100, 110, 80), (79, 85, 90), "same"),
        ("higher", (100,), (50, 51), "unknown"),
        ("lower", (0, 0), (1, 2), "worse"),
    ],
)
def test_a_difference_counts_when_it_exceeds_the_scatter(
    better: Better, a: tuple[float, ...], b: tuple[float, ...], verdict: str
) -> None:
    found = compare(result(figure("rate", better, *a)), result(figure("rate", better, *b)))
    assert found.rows[0].verdict == verdict


def test_ratios_are_of_medians_and_their_ends_of_any_two_samples() -> None:
    row = compare(
        result(figure("rate", "higher", 10, 20, 40)), result(figure("rate", "higher", 20, 40, 80))
    ).rows[0]
    assert (row.ratio, row.low, row.high) == (2.0, 0.5, 8.0)


@pytest.mark.parametrize(
    ("better", "a", "b", "fails"),
    [
        ("higher", (100, 101), (80, 81), True),
        ("lower", (80, 81), (100, 101), True),
        ("higher", (100, 101), (95, 96), False),  # worse, but not by so much
        ("higher", (100, 60), (80, 55), False),  # scatter
        ("higher", (100,), (80,), True),  # counted once, and compared as it is
        ("neither", (100, 101), (10, 11), False),
        ("lower", (0, 0), (5, 6), True),  # there is no ratio to nothing
        ("higher", (0, 0), (5, 6), False),
    ],
)
def test_the_gate_closes_on_a_regression_alone(
    better: Better, a: tuple[float, ...], b: tuple[float, ...], fails: bool
) -> None:
    found = compare(result(figure("rate", better, *a)), result(figure("rate", better, *b)))
    assert bool(found.regressions(0.9)) is fails


def test_the_gate_closes_on_what_cannot_be_held_against_a() -> None:
    rate = figure("rate", "higher", 1, 2)
    a = result(rate, figure("gone", "higher", 1), figure("share", "neither", 1))
    other = rate.model_copy(update={"unit": "s"})
    assert compare(a, result(rate, *a.figures[1:])).failings(0.9) == []
    assert compare(a, result(rate)).failings(0.9) == [
        "gone of A has nothing in B to be held against it"
    ]
    found = compare(a, result(other, *a.figures[1:], partial="away", problems=("3 failed",)))
    assert found.failings(0.9) == [
        "rate of A has nothing in B to be held against it",
        "B is partial: away",
        "B has a problem: 3 failed",
    ]
    assert (
        "rate is not compared: it is in 1/s (higher) in A and in s (higher) in B" in found.remarks
    )


def test_ratios_beyond_all_numbers_are_none() -> None:
    found = compare(
        result(figure("rate", "higher", 1e-300)), result(figure("rate", "higher", 1e300))
    )
    assert found.rows[0].ratio is None
    assert as_result(found, 0.9).figures == ()


def test_what_else_differs_is_said() -> None:
    a = result(figure("rate", "higher", 1), figure("gone", "higher", 1))
    b = result(
        figure("rate", "higher", 1),
        machine=MACHINE.model_copy(update={"cores": 64}),
        parameters={"clients": 4, "store_url": "http://there"},
        partial="interrupted by SIGINT",
        problems=("3 requests failed",),
    )
    told = "\n".join(compare(a, b).remarks)
    assert "clients is 32 in A and 4 in B" in told
    assert "cores is 2 in A and 64 in B" in told
    assert "B is partial: interrupted" in told
    assert "B has a problem: 3 requests failed" in told
    assert "only A has gone" in told
    assert "store_url" not in told


def test_different_measurements_are_not_compared() -> None:
    with pytest.raises(UsageError, match="A is load closed, B is scenario minimal"):
        compare(
            result(figure("rate", "higher", 1)),
            result(figure("rate", "higher", 1), kind="scenario", name="minimal"),
        )
    with pytest.raises(UsageError, match="share no figure"):
        compare(result(figure("one", "higher", 1)), result(figure("two", "higher", 1)))


def test_the_command_gates_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    for path, rate in zip(paths, (100.0, 50.0), strict=True):
        result(figure("rate", "higher", rate, rate + 1)).write(path)
    names = [str(path) for path in paths]
    html, out = tmp_path / "c.html", tmp_path / "c.json"
    assert main(["bench", "compare", *names]) == 0
    options = ("--gate", "0.8", "--json", str(out), "--html", str(html))
    assert main(["bench", "compare", *names, *options]) == 1
    assert "rate is worse" in capsys.readouterr().err
    assert json.loads(out.read_text())["details"]["verdicts"] == {"rate": "worse"}
    assert "Two runs compared" in html.read_text()
    assert main(["bench", "compare", names[0], str(tmp_path / "none.json")]) == 2
    assert "none.json: No such file" in capsys.readouterr().err
    assert main(["bench", "compare", *names, "--gate", "2"]) == 2
