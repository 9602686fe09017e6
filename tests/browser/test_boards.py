"""The shipped boards over a cluster with a past: drawn, legible, nothing failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fleet
import history
import pytest
from chromium import Page
from conftest import PICTURES, ROOT, panels
from test_panels import BLANK, FAINT, WIDTHS, errors, shown, titles

pytestmark = pytest.mark.timeout(600)

END = history.END
START = END - 2 * 3600 - 900
NOW_AND_THEN = {"Processes That Started"}
"""Panels of events, of which this past has two."""
BOARDS = sorted(path.stem for path in (ROOT / "grafana" / "dashboards").glob("*.json"))


@pytest.fixture(scope="module")
def url(tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The panels over that past."""
    folder: Path = tmp_path_factory.mktemp("fleet")
    history.build_blocks(folder / "tsdb", fleet.past(START, END, 15))
    with (
        history.prometheus(folder / "tsdb") as prometheus,
        panels(prometheus, ROOT / "grafana" / "dashboards") as address,
    ):
        yield address


async def test_a_request_that_the_network_ends_is_sent_again(page: Page, url: str) -> None:
    await page.size(*WIDTHS["wide"])
    await page.open(f"{url}/dashboards")
    await page.run("""
      window.times = 0;
      const real = window.fetch;
      window.fetch = (...given) => (++window.times > 3 ? real(...given) : Promise.reject(new TypeError("gone")));
      import('panels/source.js').then(({Live}) => new Live('x', () => new URLSearchParams()).boards())
        .then(({boards}) => (window.found = boards.length));
    """)  # noqa: E501
    await page.until(f"window.found === {len(BOARDS)}")
    assert await page.run("window.times") == 4


@pytest.mark.parametrize("part", ["units.js", "uplot/uPlot.iife.min.js", "style.css"])
async def test_a_part_that_the_network_ends_is_asked_for_again(
    page: Page, url: str, part: str
) -> None:
    cards = "document.querySelectorAll('.card').length"
    again = "performance.getEntriesByType('navigation')[0].type"
    shown_note = "document.querySelector('body > .note.error')?.textContent"
    async with page.refusing(f"*/static/{part}*", times=1):
        await page.open(f"{url}/dashboards")
        await page.until(f"{again} === 'reload' && {cards} === {len(BOARDS)}")
    assert len([one for one in page.requests if f"/static/{part}?" in one]) == 2
    assert await page.run(shown_note) is None
    async with page.refusing(f"*/static/{part}*", times=2):
        await page.open(f"{url}/runbooks")
        told = await page.until(shown_note)
    assert "did not arrive" in told
    assert len([one for one in page.requests if f"/static/{part}?" in one]) == 2


async def test_a_panel_leads_to_runbooks_and_boards(page: Page, url: str) -> None:
    await page.size(*WIDTHS["wide"])
    await shown(page, f"{url}/d/agl-node?from={(END - 3600) * 1000}&to={END * 1000}")
    ways = (
        "[...document.querySelectorAll('.panel')].find((p) =>"
        " p.querySelector('h3').textContent === 'Disk Space Left').querySelector('.ways')"
    )
    await page.run(f"{ways}.querySelector('summary').click()")
    found = await page.run(f"[...{ways}.querySelectorAll('a')].map((a) => a.getAttribute('href'))")
    assert found[:2] == [
        "/runbooks/NodeFilesystemAlmostOutOfSpace",
        "/runbooks/NodeFilesystemOutOfSpace",
    ]
    await page.run("document.querySelector('.board-links .pop summary').click()")
    boards = "[...document.querySelectorAll('.boards a')].map((a) => a.textContent)"
    await page.until(f"{boards}.length === {len(BOARDS)}")
    assert "Overview" in await page.run(boards)
    assert errors(page) == []


@pytest.mark.parametrize(
    ("width", "theme"), [("wide", "dark"), ("narrow", "light"), ("phone", "light")]
)
@pytest.mark.parametrize("uid", BOARDS)
async def test_every_board_is_drawn(page: Page, url: str, uid: str, width: str, theme: str) -> None:
    await page.size(*WIDTHS[width])
    span = f"from={(END - 3600) * 1000}&to={END * 1000}"
    await shown(page, f"{url}/d/{uid}?{span}&theme={theme}", whole=True)
    await page.picture(PICTURES / f"{uid}-{width}-{theme}.png")
    assert await titles(page, ".panel.failed") == []
    assert set(await page.run(BLANK)) <= NOW_AND_THEN
    assert await page.run(FAINT) == []
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert await page.run(overflow) <= 0
    assert errors(page) == []


async def test_titles_of_the_overview_are_whole_on_a_laptop(page: Page, url: str) -> None:
    await page.size(1280, 860)
    await shown(page, f"{url}/d/agl-overview?from={(END - 3600) * 1000}&to={END * 1000}")
    small = "[...document.querySelectorAll('.panel.small h3')]"
    assert await page.run(f"{small}.length") >= 20
    cut = f"{small}.filter((title) => title.scrollWidth > title.clientWidth)"
    assert await page.run(f"{cut}.map((title) => title.textContent)") == []
    icon = "document.querySelector('.panel.small .icon')"
    assert await page.run(f"{icon}.offsetWidth") == 0
    await page.run(f"{icon}.focus()")
    assert await page.run(f"{icon}.offsetWidth") >= 24
