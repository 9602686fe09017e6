"""The web server: who may look, what is answered, and that every fault says what it is."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer
from panels_support import FakePrometheus, answering
from ports import free_port
from processes import run_agl

from agl.ops.panels.boards import Library
from agl.ops.panels.server import Site, create_app, linked

RUNBOOKS = Path(__file__).resolve().parents[2] / "docs" / "runbooks"

BOARD: dict[str, Any] = {
    "uid": "b",
    "title": "Board",
    "time": {"from": "now-1h", "to": "now"},
    "templating": {"list": [{"name": "j", "type": "query", "query": "label_values(j)"}]},
    "panels": [
        {"type": "stat", "title": "One", "targets": [{"refId": "A", "expr": 'x{j="$j"}'}]},
        {"type": "stat", "targets": 5},
        {"type": "stat", "targets": [{"expr": "y"}], "timeFrom": "soon"},
    ],
}
MATRIX = {"resultType": "matrix", "result": [{"metric": {"j": "a"}, "values": [[0, "1"]]}]}


class Visitor:
    """Asks a server that stands before a Prometheus."""

    def __init__(self, client: TestClient[Any, Any], prometheus: FakePrometheus) -> None:
        self.client = client
        self.prometheus = prometheus

    async def get(self, path: str, **headers: str) -> ClientResponse:
        return await self.client.get(path, headers=headers, allow_redirects=False)

    async def json(self, path: str, status: int = 200) -> Any:
        answer = await self.get(path)
        assert answer.status == status, await answer.text()
        return await answer.json()


async def visiting(folder: Path, password: str | None) -> AsyncIterator[Visitor]:
    (folder / "b.json").write_text(json.dumps(BOARD))
    (folder / "broken.json").write_text("{")
    (folder / "Some.md").write_text("# Some\n")
    prometheus = FakePrometheus({"label/j/values": ["a", "b"], "query_range": MATRIX})
    async with answering(prometheus) as reader:
        site = Site(Library(folder), reader.url, 15, "b", password, folder)
        async with TestClient(TestServer(create_app(site))) as client:
            yield Visitor(client, prometheus)


@pytest.fixture
async def visitor(tmp_path: Path) -> AsyncIterator[Visitor]:
    async for found in visiting(tmp_path, None):
        yield found


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Visitor]:
    async for found in visiting(tmp_path, "pass:wörd"):
        yield found


class TestWhoMayLook:
    @pytest.mark.parametrize("path", ["/", "/d/b", "/api/boards", "/static/main.js", "/nothing"])
    async def test_without_the_password_nothing_is_shown(self, guarded: Visitor, path: str) -> None:
        answer = await guarded.get(path)
        assert answer.status == 401
        assert "Basic" in answer.headers["WWW-Authenticate"]

    @pytest.mark.parametrize(
        ("header", "status"),
        [
            ("Basic " + base64.b64encode("admin:pass:wörd".encode()).decode(), 200),
            ("basic " + base64.b64encode("any:pass:wörd".encode()).decode(), 200),
            ("Basic " + base64.b64encode(b"admin:wrong").decode(), 401),
            ("Basic !!!", 401),
            ("Basic " + base64.b64encode(b"\xff\xfe").decode(), 401),
            ("Digest x", 401),
            ("", 401),
        ],
    )
    async def test_the_password_is_asked_for(
        self, guarded: Visitor, header: str, status: int
    ) -> None:
        assert (await guarded.get("/api/boards", Authorization=header)).status == status

    async def test_health_needs_none(self, guarded: Visitor) -> None:
        assert (await guarded.get("/api/health")).status == 200

    @pytest.mark.parametrize(
        ("host", "status"),
        [("localhost:9091", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("evil.example", 403),
         ("localhost.evil.example", 403), ("", 403)],
    )  # fmt: skip
    async def test_without_a_password_only_this_machine(
        self, visitor: Visitor, host: str, status: int
    ) -> None:
        assert (await visitor.get("/api/boards", Host=host)).status == status

    async def test_nothing_can_be_changed(self, visitor: Visitor) -> None:
        for method in ("post", "put", "delete", "patch"):
            for path in ("/api/boards/b", "/api/boards/b/data", "/d/b"):
                assert (await visitor.client.request(method, path)).status == 405


class TestPages:
    async def test_paths_are_those_of_grafana(self, visitor: Visitor) -> None:
        home = await visitor.get("/")
        assert (home.status, home.headers["Location"]) == (302, "/d/b/board")
        assert (await visitor.get("/d/b/board")).status == 200
        assert (await visitor.get("/d/b")).status == 200
        assert (await visitor.get("/d/none")).status == 404

    async def test_nothing_foreign_is_loaded_or_run(self, visitor: Visitor) -> None:
        answer = await visitor.get("/d/b")
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "://" not in await answer.text()

    async def test_files_are_kept_by_the_browser(self, visitor: Visitor) -> None:
        answer = await visitor.get("/static/uplot/uPlot.iife.min.js")
        assert answer.status == 200
        assert "immutable" in answer.headers["Cache-Control"]
        for path in ("/static/../server.py", "/static/package.json", "/static/%2e%2e/server.py"):
            assert (await visitor.get(path)).status == 404


class TestData:
    async def test_a_board_with_its_variables(self, visitor: Visitor) -> None:
        board = await visitor.json("/api/boards/b?var-j=b")
        assert board["variables"][0]["chosen"] == ["b"]
        assert [p["title"] for r in board["rows"] for p in r["panels"]] == [
            "One",
            "Panel 2 of the file",
            "",
        ]

    async def test_a_panel(self, visitor: Visitor) -> None:
        data = await visitor.json(
            "/api/boards/b/data?panel=1&width=300&from=0000000000&to=3600&var-j=b"
        )
        assert visitor.prometheus.asked[-1] == {
            "query": 'x{j="b"}', "start": "0", "end": "3600", "step": "15",
        }  # fmt: skip
        result = data["results"][0]
        assert (result["expression"], result["step"], result["total"]) == ('x{j="b"}', 15, 1)
        assert result["series"][0]["values"][:2] == [1.0, None]

    async def test_what_does_not_fit_is_told(self, visitor: Visitor) -> None:
        faults = {
            "/api/boards/none": (404, "no dashboard 'none'"),
            "/api/boards/broken": (422, "broken.json"),
            "/api/boards/b?from=soon": (400, "from: 'soon' is not a time"),
            "/api/boards/b?from=now&to=now-1h": (400, "must be before"),
            "/api/boards/b/data?panel=99": (404, "this panel is gone"),
            "/api/boards/b/data?panel=3": (400, "'now-soon' is not a time"),
            "/api/runbooks/none": (404, "no runbook"),
        }
        for path, (status, reason) in faults.items():
            assert reason in (await visitor.json(path, status))["error"], path

    async def test_a_panel_of_nonsense_asks_nothing(self, visitor: Visitor) -> None:
        assert (await visitor.json("/api/boards/b/data?panel=2"))["results"] == []

    async def test_prometheus_down(self, visitor: Visitor) -> None:
        visitor.prometheus.status = 503
        board = await visitor.json("/api/boards/b")
        assert "503" in board["variables"][0]["problem"]
        result = (await visitor.json("/api/boards/b/data?panel=1"))["results"][0]
        assert (result["kind"], "503" in result["error"]) == ("down", True)
        assert (await visitor.json("/api/alerts", 502))["kind"] == "down"

    async def test_runbooks(self, visitor: Visitor) -> None:
        assert (await visitor.json("/api/runbooks"))["runbooks"] == ["Some"]
        assert (await visitor.json("/api/runbooks/Some"))["text"] == "# Some\n"
        assert (await visitor.json("/api/runbooks/..%2Fb", 404))["error"]

    async def test_runbooks_lead_to_each_other(self, tmp_path: Path, visitor: Visitor) -> None:
        (tmp_path / "Other.md").write_text("[the\nfirst](Some.md), [a table](../xid.md)")
        text = (await visitor.json("/api/runbooks/Other"))["text"]
        assert text == "[the\nfirst](/runbooks/Some), a table"

    def test_every_link_of_our_runbooks_leads_somewhere(self) -> None:
        runbooks = {path.stem: path.read_text() for path in RUNBOOKS.glob("*.md")}
        to_runbooks = re.findall(r"\]\((\w+)\.md\)", "".join(runbooks.values()))
        served = "".join(linked(text, runbooks) for text in runbooks.values())
        assert ".md)" not in served
        assert re.findall(r"\]\(/runbooks/(\w+)\)", served) == to_runbooks != []


class TestCommandLine:
    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
    def test_beyond_loopback_a_password_is_needed(self, tmp_path: Path, host: str) -> None:
        answer = run_agl("panels", "--host", host, "--dashboards", str(tmp_path))
        assert answer.returncode == 2
        assert "add --auth-file FILE" in answer.stderr
        told = run_agl("panels", "--published-on", "192.0.2.7", "--dashboards", str(tmp_path))
        assert told.returncode == 2

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            (("--dashboards", "/nowhere"), "--dashboards: '/nowhere' is not a folder"),
            (("--prometheus-url", "ftp://x"), "is not an address such as http"),
            (("--scrape-interval", "often"), "is not a duration"),
            (("--runbooks", "/nowhere"), "--runbooks: '/nowhere' is not a folder"),
            (("--port", "0"), "not a port"),
            (("--published-on", "here"), "is not an IP address"),
        ],
    )
    def test_options_that_make_no_sense(self, arguments: tuple[str, ...], reason: str) -> None:
        answer = run_agl("panels", *arguments)
        assert answer.returncode == 2
        assert reason in answer.stderr

    def test_an_empty_password_file(self, tmp_path: Path) -> None:
        file = tmp_path / "password"
        file.write_text("\n")
        answer = run_agl("panels", "--host", "0.0.0.0", "--auth-file", str(file))
        assert answer.returncode == 1
        assert "is empty" in answer.stderr

    def test_a_report_needs_prometheus(self, tmp_path: Path) -> None:
        dead = f"http://127.0.0.1:{free_port()}"
        page = str(tmp_path / "x.html")
        answer = run_agl("report", "--from", "now-1h", "-o", page, "--prometheus-url", dead)
        assert answer.returncode == 1
        assert "Prometheus does not answer" in answer.stderr
        assert not Path(page).exists()

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            (("--from", "soon"), "from: 'soon' is not a time"),
            (
                ("--from", "now-1h", "--dashboard", "none"),
                "'none' is not one (choose from agl-gpu, agl-mongodb, agl-monitoring",
            ),
            (("--from", "now-1h", "--var", "x"), "--var: 'x' is not NAME=VALUE"),
        ],
    )
    def test_a_report_of_nonsense(self, arguments: tuple[str, ...], reason: str) -> None:
        answer = run_agl("report", "-o", "x.html", *arguments)
        assert answer.returncode == 2
        assert reason in answer.stderr
