"""`agl stack grafana` against Grafana's HTTP API.

The API is that of `tests/support/grafana_double.py`, made from Grafana's documentation. Where
GRAFANA_URL and GRAFANA_TOKEN_FILE (role Editor) are set, the tests of `TestAnyGrafana` run against
that Grafana too; they leave nothing behind but annotations of the year 2001 and a dashboard called
`agl-sync-test`.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from grafana_double import TOKEN, VIEWER, GrafanaDouble, series, serving

from agl.bench.results import Figure, Result
from agl.cli import main
from agl.ops.alerting import load_alerts
from agl.ops.grafana.annotate import STARTS
from agl.ops.grafana.client import Grafana

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "grafana" / "dashboards"
BOARDS = {path.stem: json.loads(path.read_text("utf-8")) for path in FOLDER.glob("*.json")}
ALERTS = [alert.name for alert in load_alerts(ROOT / "prometheus" / "alerts")]
RUN = ("--from=2001-02-03T04:05:06Z", "--to=2001-02-03T04:06:06Z")
Capture = pytest.CaptureFixture[str]


def provisioned() -> GrafanaDouble:
    """A Grafana as the bundle provisions it."""
    return GrafanaDouble(
        dashboards={
            uid: {**copy.deepcopy(board), "id": number, "version": 1}
            for number, (uid, board) in enumerate(BOARDS.items(), 1)
        },
        provisioned=set(BOARDS),
        datasources={
            "agl-prometheus": {
                "uid": "agl-prometheus",
                "type": "prometheus",
                "url": "http://prometheus:9090",
            }
        },
        rules=[
            {"type": "alerting", "name": name, "state": "inactive", "health": "ok"}
            for name in ALERTS
        ],
    )


@dataclass
class Site:
    """A Grafana, and the command line that is used on it."""

    url: str
    token_file: Path
    double: GrafanaDouble = field(default_factory=GrafanaDouble)

    def run(self, *arguments: str) -> int:
        action, *rest = arguments
        words = [action, rest.pop(0)] if action == "annotate" else [action]
        where = [f"--url={self.url}", f"--token-file={self.token_file}"]
        return main(["stack", "grafana", *words, *where, *rest])

    @property
    def client(self) -> Grafana:
        return Grafana(self.url, self.token_file.read_text().strip())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    double = provisioned()
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    with serving(double) as url:
        yield Site(url, token, double)


@pytest.fixture(params=["double", "real"])
def any_grafana(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    if request.param == "double":
        token = tmp_path / "token"
        token.write_text(TOKEN)
        double = provisioned()
        with serving(double) as url:
            yield Site(url, token, double)
        return
    url, file = os.environ.get("GRAFANA_URL"), os.environ.get("GRAFANA_TOKEN_FILE")
    if not url or not file:
        pytest.skip("GRAFANA_URL and GRAFANA_TOKEN_FILE are not set")
    yield Site(url, Path(file))


class TestAnyGrafana:
    """What holds for the double and for a real Grafana that the bundle has provisioned."""

    def test_a_provisioned_one_is_verified(self, any_grafana: Site, capsys: Capture) -> None:
        code = any_grafana.run("verify", "--json")
        told = capsys.readouterr()
        report = json.loads(told.out)
        assert (code, report["problems"], told.err) == (0, [], "")
        assert report["ok"] is True
        assert report["boards"] == len(BOARDS)
        assert report["alerts"] == len(ALERTS)
        shown = json.dumps(list(BOARDS.values())).count('"expr"')
        assert report["queries"] == shown, "every query of every panel and annotation"

    def test_provisioned_boards_are_left_as_they_are(
        self, any_grafana: Site, capsys: Capture
    ) -> None:
        assert any_grafana.run("push") == 0
        assert capsys.readouterr().out.count("up to date, provisioned") == len(BOARDS)

    def test_a_board_is_created_and_replaced(
        self, any_grafana: Site, capsys: Capture, tmp_path: Path
    ) -> None:
        board = {**BOARDS["agl-store"], "uid": "agl-sync-test", "title": "agl sync test"}
        (tmp_path / "boards").mkdir()
        (tmp_path / "boards" / "one.json").write_text(json.dumps(board))
        arguments = (
            "push",
            f"--dashboards={tmp_path / 'boards'}",
            "--runbooks-url=https://books.example/",
        )
        assert any_grafana.run(*arguments) == 0
        assert any_grafana.run(*arguments) == 0
        assert "replaced: " in capsys.readouterr().out
        found = any_grafana.client.dashboard("agl-sync-test")
        assert found is not None
        text = json.dumps(found["dashboard"])
        assert text.count("https://books.example/runbooks/") == text.count("/runbooks/") > 0

    def test_a_run_is_marked_once(self, any_grafana: Site, capsys: Capture) -> None:
        arguments = ("annotate", "benchmark", *RUN, "--text=a run of a test")
        assert any_grafana.run(*arguments) == 0
        assert any_grafana.run(*arguments) == 0
        assert "there already: 2001-02-03T04:05:06Z a run of a test" in capsys.readouterr().out
        marks = any_grafana.client.annotations("agl-benchmark", 981173106000, 981173166000)
        (mark,) = [mark for mark in marks if mark["text"] == "a run of a test"]
        assert (mark["time"], mark["timeEnd"]) == (981173106000, 981173166000)

    def test_a_snapshot_is_made(self, any_grafana: Site, capsys: Capture) -> None:
        assert any_grafana.run("snapshot", "--dashboard=agl-store", "--expires=1m") == 0
        assert "/dashboard/snapshot/" in capsys.readouterr().out


class TestVerify:
    def test_variables_are_on_all_and_grafanas_own_are_left_to_it(self, site: Site) -> None:
        assert site.run("verify", "--dashboard=agl-store") == 0
        asked = [query["expr"] for query in site.double.asked]
        assert any("$__rate_interval" in expr and 'job=~".+"' in expr for expr in asked)
        assert {query["datasource"]["uid"] for query in site.double.asked} == {"agl-prometheus"}

    def test_panels_of_a_collapsed_row_are_asked_and_hidden_queries_are_not(
        self, site: Site, capsys: Capture, tmp_path: Path
    ) -> None:
        targets = [
            {"refId": "A", "expr": "up", "datasource": {"type": "prometheus", "uid": "$ds"}},
            {"refId": "B", "expr": "nonsense(", "hide": True},
        ]
        inside = {"id": 2, "type": "timeseries", "title": "Inside", "targets": targets}
        row = {"id": 1, "type": "row", "title": "Row", "collapsed": True, "panels": [inside]}
        board = {"uid": "folded", "title": "Folded", "panels": [row]}
        (tmp_path / "folded.json").write_text(json.dumps(board))
        site.double.dashboards["folded"] = board
        assert site.run("verify", f"--dashboards={tmp_path}", "--json") == 0
        assert json.loads(capsys.readouterr().out)["panels"] == 1
        assert [query["expr"] for query in site.double.asked] == ["up"]

    @pytest.mark.parametrize("multi_status", [True, False])
    def test_a_query_that_fails_is_named_with_its_panel(
        self, site: Site, capsys: Capture, multi_status: bool
    ) -> None:
        site.double.multi_status = multi_status
        board = site.double.dashboards["agl-store"]
        panel = next(p for p in board["panels"] if len(p.get("targets", [])) > 1)
        panel["targets"][0]["expr"] = "rate(agl_http_total[5m]"
        assert site.run("verify", "--json") == 1
        told = capsys.readouterr()
        problems = json.loads(told.out)["problems"]
        where = f'agl-store, panel "{panel["title"]}" (id {panel["id"]}), query A'
        found = next(problem for problem in problems if problem["where"] == where)
        assert "parse error" in found["message"]
        assert found["remedy"] == "rate(agl_http_total[5m]"
        assert len(problems) == 2, "the board differs from its file too, the other query is fine"
        assert "2 problems, the first: dashboard agl-store: it differs" in told.err

    def test_a_board_that_is_not_there_or_old_is_named(self, site: Site, capsys: Capture) -> None:
        del site.double.dashboards["agl-gpu"]
        site.double.dashboards["agl-node"]["panels"][1]["title"] = "As it was called once"
        assert site.run("verify") == 1
        out = capsys.readouterr().out
        assert "dashboard agl-gpu: there is none with this uid - agl stack grafana push" in out
        assert "dashboard agl-node: it differs from agl-node.json" in out
        assert f"dashboards   {len(BOARDS) - 2} there" in out

    def test_an_alert_that_is_missing_or_broken_is_named(self, site: Site, capsys: Capture) -> None:
        gone = site.double.rules.pop()
        site.double.rules[0] |= {"health": "err", "lastError": "many-to-many matching"}
        site.double.rules[1]["state"] = "firing"
        assert site.run("verify") == 1
        out = capsys.readouterr().out
        assert f"alert {gone['name']}: it is not visible" in out
        assert f"alert {site.double.rules[0]['name']}: many-to-many matching" in out
        assert f"{len(ALERTS) - 1} rules visible, 1 firing" in out

    def test_a_data_source_that_is_not_healthy(self, site: Site, capsys: Capture) -> None:
        site.double.health = (400, {"status": "ERROR", "message": "dial tcp: connection refused"})
        assert site.run("verify") == 1
        out = capsys.readouterr().out
        assert "data source agl-prometheus: dial tcp: connection refused - can Grafana reach" in out
        assert not site.double.asked, "nothing can be asked of it"
        assert f"dashboards   {len(BOARDS)} there" in out

    def test_a_data_source_with_another_uid_or_type(self, site: Site, capsys: Capture) -> None:
        assert site.run("verify", "--datasource=other") == 1
        assert "data source other: there is none with this uid" in capsys.readouterr().out
        site.double.datasources["other"] = {"uid": "other", "type": "loki"}
        assert site.run("verify", "--datasource=other") == 1
        assert "type 'loki', not prometheus" in capsys.readouterr().out

    def test_a_database_that_is_down(self, site: Site, capsys: Capture) -> None:
        site.double.database = "failing"
        assert site.run("verify") == 1
        assert "Grafana: its database is 'failing', not ok" in capsys.readouterr().out

    def test_empty_is_counted_and_no_problem(self, site: Site, capsys: Capture) -> None:
        assert site.run("verify", "--json") == 0
        report = json.loads(capsys.readouterr().out)
        assert report["empty"] == report["queries"]
        full = site.double.asked[0]["expr"]
        times = sum(query["expr"] == full for query in site.double.asked)
        site.double.results[full] = [series({}, [1000], [1.0])]
        assert site.run("verify", "--json") == 0
        assert json.loads(capsys.readouterr().out)["empty"] == report["queries"] - times


class TestPush:
    def test_a_provisioned_board_of_another_version_is_a_problem(
        self, site: Site, capsys: Capture
    ) -> None:
        site.double.dashboards["agl-gpu"]["title"] = "Old"
        assert site.run("push") == 1
        told = capsys.readouterr()
        assert "dashboard agl-gpu: Grafana reads it from a file of its own" in told.err
        assert "POST /api/dashboards/db" not in site.double.calls

    def test_one_that_is_refused_or_broken_keeps_none_away(
        self, site: Site, capsys: Capture, tmp_path: Path
    ) -> None:
        site.double.dashboards.clear()
        site.double.provisioned = {"agl-gpu"}
        for uid, board in BOARDS.items():
            (tmp_path / f"{uid}.json").write_text(json.dumps(board))
        (tmp_path / "broken.json").write_text("{")
        assert site.run("push", f"--dashboards={tmp_path}") == 1
        err = capsys.readouterr().err
        assert "dashboard agl-gpu: Cannot save provisioned dashboard (status 400)" in err
        assert "dashboard broken: broken.json" in err
        assert set(site.double.dashboards) == set(BOARDS) - {"agl-gpu"}
        assert all(board["version"] == 1 for board in site.double.dashboards.values())

    def test_without_the_right_to_write(self, site: Site, capsys: Capture) -> None:
        site.double.dashboards.clear()
        site.double.provisioned.clear()
        site.token_file.write_text(VIEWER)
        assert site.run("push") == 1
        err = capsys.readouterr().err
        assert "this token may not save dashboards (You'll need additional permissions" in err
        assert "role Editor" in err


class TestAnnotate:
    @pytest.mark.parametrize(("end", "time"), [("2001-02-03T04:05:06Z", 981173106000), ("now", 0)])
    def test_from_the_result_of_a_run(
        self, site: Site, tmp_path: Path, end: str, time: int
    ) -> None:
        file = tmp_path / "run.json"
        rate = Figure(name="rollouts_per_second", unit="1/s", better="higher", samples=(16.0,))
        Result(
            kind="scenario",
            name="minimal",
            parameters={},
            figures=(rate,),
            started=1000.0,
            ended=1012.5,
        ).write(file)
        assert site.run("annotate", "benchmark", f"--summary={file}", f"--to={end}") == 0
        (mark,) = site.double.annotations
        assert mark["tags"] == ["agl-benchmark"]
        assert mark["timeEnd"] == (time or 1012500)
        assert mark["timeEnd"] - mark["time"] == 12500
        assert mark["text"] == "benchmark scenario minimal: 16.0 rollouts/s, verified"

    def test_the_boards_ask_for_its_tag(self) -> None:
        for board in BOARDS.values():
            wanted = [entry.get("target", {}).get("tags") for entry in board["annotations"]["list"]]
            assert ["agl-benchmark"] in wanted

    def test_restarts_are_marked_where_they_were(self, site: Site, capsys: Capture) -> None:
        first, second = 981173100.0, 981173400.0
        before = 981170000.0
        labels = {"job": "app", "instance": "app:4747"}
        values = [before, first, first + 1, second, second]
        site.double.results[STARTS] = [series(labels, [1, 2, 3, 4, 5], values)]
        arguments = ("annotate", "restarts", "--from=2001-02-03T04:00:00Z")
        arguments = (*arguments, "--to=2001-02-03T05:00:00Z")
        assert site.run(*arguments) == 0
        assert [mark["time"] for mark in site.double.annotations] == [first * 1000, second * 1000]
        assert site.double.annotations[0]["tags"] == [
            "agl-restart",
            "job:app",
            "instance:app:4747",
        ]
        assert site.run(*arguments) == 0
        assert len(site.double.annotations) == 2
        assert capsys.readouterr().out.count("there already") == 2

    def test_a_time_without_restarts(self, site: Site, capsys: Capture) -> None:
        assert site.run("annotate", "restarts") == 0
        assert "no process was started" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("content", "message"),
        [("{}", "kind: Field required"), ("[", "Invalid JSON"), ('{"kind": 1}', "kind: Input")],
    )
    def test_a_file_that_is_no_summary(
        self, site: Site, tmp_path: Path, capsys: Capture, content: str, message: str
    ) -> None:
        (tmp_path / "run.json").write_text(content)
        assert site.run("annotate", "benchmark", f"--summary={tmp_path / 'run.json'}") == 2
        assert message in capsys.readouterr().err
        assert not site.double.annotations


class TestSnapshot:
    def test_it_holds_the_data_and_asks_nothing(self, site: Site) -> None:
        assert site.run("verify", "--dashboard=agl-store") == 0
        expr = site.double.asked[0]["expr"]
        site.double.results[expr] = [series({"job": "app"}, [1000, 2000], [3.0, 4.0])]
        assert site.run("snapshot", "--dashboard=agl-store", *RUN, "--expires=2d") == 0
        (kept,) = site.double.snapshots.values()
        assert kept["expires"] == 2 * 86400
        board = kept["dashboard"]
        assert board["time"]["from"] == "2001-02-03T04:05:06.000Z"
        text = json.dumps(board)
        assert '"expr"' not in text
        assert "label_values" not in text
        panels = [p for p in board["panels"] if p["type"] != "row"]
        (frame,) = next(p["snapshotData"] for p in panels if p["snapshotData"])
        assert [one["values"] for one in frame["fields"]] == [[1000, 2000], [3.0, 4.0]]
        assert frame["fields"][1]["labels"] == {"job": "app"}

    def test_a_query_that_fails_is_told_and_the_rest_is_kept(
        self, site: Site, capsys: Capture
    ) -> None:
        assert site.run("verify", "--dashboard=agl-store") == 0
        site.double.errors[site.double.asked[0]["expr"]] = "query timed out"
        assert site.run("snapshot", "--dashboard=agl-store") == 1
        assert "query timed out" in capsys.readouterr().err
        assert len(site.double.snapshots) == 1

    def test_a_board_that_grafana_has_not(self, site: Site, capsys: Capture) -> None:
        assert site.run("snapshot", "--dashboard=nothing") == 1
        assert "Grafana has no dashboard nothing" in capsys.readouterr().err


class TestErrors:
    def test_a_token_that_is_not_known(self, site: Site, capsys: Capture) -> None:
        site.token_file.write_text("glsa_old")
        assert site.run("verify") == 1
        err = capsys.readouterr().err
        assert "does not know this token - make a token of a service account" in err
        assert "glsa_old" not in err

    def test_nobody_answers(self, site: Site, capsys: Capture) -> None:
        site.url = "http://127.0.0.1:1"
        assert site.run("verify") == 1
        assert "http://127.0.0.1:1 does not answer (" in capsys.readouterr().err

    def test_what_answers_is_no_grafana(self, site: Site, capsys: Capture) -> None:
        site.url += "/elsewhere"
        assert site.run("verify") == 1
        assert "/elsewhere does not answer as Grafana does" in capsys.readouterr().err
        assert site.double.calls == ["GET /elsewhere/api/health"]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("verify", "--url=localhost:3000"), "is not an address"),
            (("verify", "--url=http://admin:admin@localhost"), "no user, password"),
            (("verify", "--dashboard=nothing"), "there is no 'nothing' (known: agl-gpu"),
            (("verify", "--from=yesterday"), "from: 'yesterday' is not a time"),
            (("verify", "--alerts=/nowhere"), "'/nowhere' is not a folder"),
            (("annotate", "benchmark"), "--summary FILE, or --from TIME and --text TEXT"),
            (("snapshot", "--expires=soon"), "'soon' is not a duration"),
            (("pull",), "invalid choice: 'pull'"),
        ],
    )
    def test_usage(
        self, site: Site, capsys: Capture, arguments: tuple[str, ...], message: str
    ) -> None:
        assert site.run(*arguments) == 2
        assert message in capsys.readouterr().err
        assert not site.double.calls

    def test_address_and_token_come_from_the_environment(
        self, site: Site, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        monkeypatch.delenv("GRAFANA_URL", raising=False)
        monkeypatch.delenv("GRAFANA_TOKEN_FILE", raising=False)
        assert main(["stack", "grafana", "push"]) == 2
        assert "GRAFANA_URL" in capsys.readouterr().err
        monkeypatch.setenv("GRAFANA_URL", site.url)
        assert main(["stack", "grafana", "push"]) == 2
        assert "GRAFANA_TOKEN_FILE" in capsys.readouterr().err
        monkeypatch.setenv("GRAFANA_TOKEN_FILE", str(site.token_file))
        assert main(["stack", "grafana", "push"]) == 0
