"""The dashboards in a real browser, from a real Prometheus: drawn, legible, usable, honest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import history
import pytest
from chromium import Page
from conftest import PICTURES, Site, panels
from ports import free_port
from processes import run_agl

pytestmark = pytest.mark.timeout(300)

WIDTHS = {"wide": (1600, 900), "narrow": (820, 1000), "phone": (390, 844)}
KINDS = {
    "timeseries", "stat", "gauge", "bargauge", "heatmap", "state-timeline", "status-history",
    "piechart", "table", "text", "alertlist",
}  # fmt: skip

SETTLED = """
document.querySelector('.panel') && !document.querySelector('.spinner:not([hidden]), .chart:not(:has(canvas))')
&& ![...document.querySelectorAll('.panel')].some((panel) => panel.getBoundingClientRect().top < innerHeight
  && !panel.querySelector('.panel-body').firstChild)
"""  # noqa: E501
# Chromium tells of a handler in a dashboard's HTML when its parser meets it, before it is removed.
HARMLESS = "Executing inline event handler violates"
# Charts in which hardly any column has a coloured pixel; axes are grey.
BLANK = """
[...document.querySelectorAll('.chart canvas')].filter((canvas) => {
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const columns = new Set();
  for (let i = 0; i < pixels.length; i += 4) {
    const [r, g, b, opacity] = [pixels[i], pixels[i + 1], pixels[i + 2], pixels[i + 3]];
    const colored = opacity > 100 && Math.max(r, g, b) - Math.min(r, g, b) > 40;
    if (colored) columns.add((i / 4) % canvas.width);
  }
  return columns.size < canvas.width * 0.04;
}).map((canvas) => canvas.closest('.panel').querySelector('h3').textContent)
"""
FAINT = """
import('panels/palette.js').then(({contrast}) => {
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const hex = (color) => '#' + parts(color).slice(0, 3).map((n) => Math.round(n).toString(16).padStart(2, '0')).join('');
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.backgroundImage !== 'none') return null;
      const found = parts(style.backgroundColor);
      if (found.length < 4 || found[3] === 1) return hex(style.backgroundColor);
    }
    return '#ffffff';
  };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || !element.checkVisibility() || element.closest('script, noscript, svg, .off')) continue;
    const back = behind(element);
    const ratio = back && contrast(hex(getComputedStyle(element).color), back);
    if (ratio && ratio < 4.5) faint.push(`${element.className || element.tagName}: ${node.textContent.trim().slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return faint;
})
"""  # noqa: E501


async def shown(page: Page, url: str, *, whole: bool = False) -> None:
    """Opens a page and waits until every panel has its data; all panels when ``whole``."""
    await page.open(url)
    await page.until(SETTLED, "the panels have loaded")
    if whole:
        size = await page.run("[innerWidth, document.documentElement.scrollHeight]")
        await page.size(size[0], min(9000, size[1] + 50))
        await page.until(
            "![...document.querySelectorAll('.panel-body')].some((b) => !b.firstChild)"
        )
        await page.until(SETTLED)
    await page.run("new Promise((done) => setTimeout(() => requestAnimationFrame(done), 200))")


def errors(page: Page) -> list[str]:
    return [error for error in page.errors if HARMLESS not in error]


async def titles(page: Page, selector: str) -> list[str]:
    return await page.run(
        f"[...document.querySelectorAll({json.dumps(selector)})]"
        ".map((p) => p.querySelector('h3').textContent)"
    )


async def body(page: Page, title: str) -> str:
    """What a panel says, notes included."""
    return await page.run(
        "[...document.querySelectorAll('.panel')]"
        f".find((p) => p.querySelector('h3').textContent === {json.dumps(title)}).innerText"
    )


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("width", WIDTHS)
async def test_every_kind_of_panel_is_drawn(page: Page, site: Site, width: str, theme: str) -> None:
    await page.size(*WIDTHS[width])
    await shown(page, f"{site.url}/d/gallery?theme={theme}", whole=True)
    await page.picture(PICTURES / f"gallery-{width}-{theme}.png")
    kinds = await page.run(
        "[...document.querySelectorAll('.panel')].map((p) => p.className.match(/type-(\\S+)/)[1])"
    )
    assert set(kinds) >= KINDS
    assert await titles(page, ".panel.failed, .panel.empty") == []
    assert await page.run(BLANK) == []
    assert await page.run(FAINT) == []
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert await page.run(overflow) <= 0
    cut = "[...document.querySelectorAll('.panel')].filter((p) => p.getBoundingClientRect().width < 100).length"  # noqa: E501
    assert await page.run(cut) == 0
    assert errors(page) == []
    assert [url for url in page.requests if not url.startswith((site.url, "data:"))] == []


async def test_a_chart_says_its_values_with_their_units(page: Page, site: Site) -> None:
    await page.size(1400, 1000)
    await shown(page, f"{site.url}/d/gallery")
    assert "1.77 GiB" in await body(page, "Memory by service")
    assert "req/s" in await body(page, "Requests / Sec")
    place = await page.run(
        "(() => { const b = document.querySelector('.u-over').getBoundingClientRect();"
        " return [b.left + b.width / 3, b.top + b.height / 2]; })()"
    )
    await page.mouse("mouseMoved", *place)
    told = await page.until("document.querySelector('.tooltip:not([hidden])')?.innerText")
    assert told.startswith("2025-12-31 ")
    assert "/v1/traces" in told
    assert "req/s" in told


async def test_the_keyboard_reaches_everything(page: Page, site: Site) -> None:
    await page.size(1400, 1000)
    await shown(page, f"{site.url}/d/gallery?theme=dark")
    seen: set[str] = set()
    for _ in range(60):
        await page.press("Tab")
        seen.add(
            await page.run(
                "document.activeElement.className + '|' + (document.activeElement.ariaLabel"
                " ?? document.activeElement.textContent.slice(0, 40))"
            )
        )
        outlined = "getComputedStyle(document.activeElement).outlineStyle !== 'none'"
        assert await page.run(outlined), seen
    assert any("Skip to the panels" in name for name in seen)
    assert any("Refresh now" in name for name in seen)
    assert any(name.startswith("chart|Requests / Sec, stacked, 4 series") for name in seen)
    await page.run("document.querySelector('.chart').focus()")
    await page.press("ArrowLeft")
    first = await page.until("document.querySelector('.tooltip:not([hidden])')?.innerText")
    await page.press("ArrowLeft")
    second = f"(t => t !== {json.dumps(first)} && t)(document.querySelector('.tooltip').innerText)"
    assert await page.until(second)
    await page.press("Escape")
    assert await page.run("document.querySelector('.tooltip').hidden")
    await page.press("t")
    assert await page.run("document.documentElement.dataset.theme") == "light"
    await page.run("document.querySelector('.time-picker summary').focus()")
    await page.press("Enter")
    assert await page.run("document.querySelector('.time-picker').open")
    await page.press("Escape")
    assert not await page.run("document.querySelector('.time-picker').open")


async def test_time_and_variables_are_in_the_address(page: Page, site: Site) -> None:
    await page.size(1400, 1000)
    await shown(page, f"{site.url}/d/gallery")
    await page.run(
        "(() => { const pop = [...document.querySelectorAll('.variable-pop')][1]; pop.open = true;"
        " pop.querySelector('input[value=val]').click();"
        " pop.querySelector('button.primary').click(); })()"
    )
    await page.until("location.search.includes('var-mode=val')")
    await page.until("document.querySelectorAll('.type-timeseries h3').length > 0")
    await page.run(
        "(() => { const pop = document.querySelector('.time-picker'); pop.open = true;"
        " pop.querySelector('#time-from').value = '2025-12-31 20:00:00';"
        " pop.querySelector('form').requestSubmit(); })()"
    )
    await page.until("location.search.includes('from=1767211200000')")
    await page.until(SETTLED)
    await page.run("history.back()")
    await page.until("!location.search.includes('from=') && location.search.includes('var-mode')")


async def test_dragging_over_a_chart_zooms(page: Page, site: Site) -> None:
    await page.size(1400, 1000)
    await shown(page, f"{site.url}/d/gallery")
    left, top, width = await page.run(
        "(() => { const b = document.querySelector('.u-over').getBoundingClientRect();"
        " return [b.left, b.top + b.height / 2, b.width]; })()"
    )
    await page.mouse("mouseMoved", left + width / 4, top)
    await page.mouse("mousePressed", left + width / 4, top)
    for share in (0.3, 0.4, 0.5):
        await page.mouse("mouseMoved", left + width * share, top)
    await page.mouse("mouseReleased", left + width / 2, top)
    found = await page.until("new URLSearchParams(location.search).get('from')")
    wanted = history.START + (history.END - history.START) / 4
    assert abs(int(found) / 1000 - wanted) < 300


class TestFaults:
    async def test_each_panel_says_what_is_wrong_and_the_rest_is_drawn(
        self, page: Page, site: Site
    ) -> None:
        await page.size(1400, 1000)
        await shown(page, f"{site.url}/d/odd", whole=True)
        await page.picture(PICTURES / "odd.png")
        failed = await titles(page, ".panel.failed")
        assert set(failed) >= {"Bad query", "Odd thresholds", "Elsewhere", "Panel 11 of the file"}
        assert not set(failed) & {"Good", "Half", "Missing", "Thousand", "Unknown kind"}
        assert "parse error" in await body(page, "Bad query")
        assert "no such series in this time range" in await body(page, "Missing")
        assert "query B failed" in await body(page, "Half")
        assert "1,000 series; the 200 with the largest values" in await body(page, "Thousand")
        assert 'steps" is not a list but int' in await body(page, "Odd thresholds")
        assert "'loki'; only Prometheus" in await body(page, "Elsewhere")
        assert "shown as a table" in await body(page, "Unknown kind")
        assert "is not an object but str" in await body(page, "Panel 11 of the file")
        assert "parse error" in await page.run("document.querySelector('.variable-problem').title")
        notes = await page.run("document.querySelector('.page-notes').innerText")
        assert "annotation Broken" in notes
        assert await page.run(BLANK) == []

    async def test_a_month_is_drawn(self, page: Page, site: Site) -> None:
        await page.size(1400, 600)
        await shown(page, f"{site.url}/d/month")
        assert await page.run(BLANK) == []
        assert await titles(page, ".panel.failed, .panel.empty") == []

    async def test_prometheus_down(self, page: Page, site: Site) -> None:
        port = free_port()
        with panels(f"http://127.0.0.1:{port}", site.boards) as url:
            await page.size(1400, 900)
            await shown(page, f"{url}/d/gallery", whole=True)
            await page.picture(PICTURES / "down.png")
            told = await body(page, "Error share")
        assert "Prometheus cannot be reached" in told
        assert f"127.0.0.1:{port}: Connection refused" in told
        assert "On call" in await body(page, "What to do")
        assert errors(page) == []

    async def test_no_such_dashboard_and_a_broken_one(self, page: Page, site: Site) -> None:
        await page.open(f"{site.url}/d/none")
        assert "there is no dashboard" in await page.until(
            "document.querySelector('.note.error')?.innerText"
        )
        await page.open(f"{site.url}/dashboards")
        cards = await page.until("document.querySelector('.cards')?.innerText")
        assert "broken.json: Expecting property name" in cards
        assert "Gallery" in cards

    async def test_a_text_shows_and_does_nothing(self, page: Page, site: Site) -> None:
        await page.size(1400, 1000)
        await shown(page, f"{site.url}/d/gallery", whole=True)
        inside = "document.querySelector('.panel.type-text .text')"
        assert await page.run(f"{inside}.querySelectorAll('script, [onerror]').length") == 0
        assert "agl store stuck" in await page.run(f"{inside}.innerText")


class TestReport:
    @pytest.fixture
    def report(self, site: Site, tmp_path: Path) -> Path:
        path = tmp_path / "incident.html"
        done = run_agl(
            "report", "--from", str(history.START * 1000), "--to", str(history.END * 1000),
            "--dashboard", "gallery", "--dashboard", "odd", "--dashboards", str(site.boards),
            "--prometheus-url", site.prometheus, "--scrape-interval", "15s", "-o", str(path),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "3 alerts fired" in done.stdout
        assert "not drawn: Odd / Bad query:" in done.stderr
        return path

    async def test_the_file_alone_shows_it_all(self, page: Page, report: Path) -> None:
        await page.size(1400, 1000)
        await shown(page, report.as_uri(), whole=True)
        await page.picture(PICTURES / "report.png")
        assert set(await titles(page, ".panel.failed")) >= {"Bad query", "Elsewhere"}
        assert not await page.run("document.querySelector('#board-gallery .panel.failed')")
        assert await page.run(BLANK) == []
        assert await page.run(FAINT) == []
        alerts = await page.run("document.querySelector('#alerts').innerText")
        for text in ("StoreDown", "critical", "2025-12-31 21:33:00", "QueueDeep", "24 minutes"):
            assert text in alerts
        values = await page.run("document.querySelector('#values').innerText")
        assert "1.77 GiB" in values
        assert "/v1/traces" in values
        assert [u for u in page.requests if not u.startswith(("file:", "data:"))] == []
        foreign = [url for url in page.requests if url.startswith("file:") and "html" not in url]
        assert all(url.endswith("/x") for url in foreign), foreign

    async def test_it_draws_what_the_page_draws(self, page: Page, site: Site, report: Path) -> None:
        async def told() -> dict[str, Any]:
            return await page.run(
                "Object.fromEntries([...document.querySelectorAll('.panel .chart')].map((c) =>"
                " [c.closest('.panel').dataset.key, c.ariaLabel]).filter(([k]) => k < 'z'))"
            )

        await page.size(1400, 1000)
        await shown(page, f"{site.url}/d/gallery", whole=True)
        live = await told()
        await shown(page, report.as_uri(), whole=True)
        recorded = await told()
        same = [key for key in live if recorded.get(key) == live[key]]
        assert len(same) >= 3, (live, recorded)
