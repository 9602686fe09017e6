"""Archives: what is unpacked is what was packed, and everything else is refused in words."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from agl.bench.archive import snapshot
from agl.bench.archive.manifest import Manifest, Run, is_member, member_of
from agl.bench.archive.read import unpack
from agl.bench.archive.view import MARK, at_its_time, marks, prepare
from agl.bench.archive.write import pack
from agl.errors import EnvironmentFault

BLOCK = "data/01M8NAC2AQSS803F36AYAHH5NH"
FILES = {
    f"{BLOCK}/meta.json": b"{}",
    f"{BLOCK}/index": bytes(range(256)) * 40,
    f"{BLOCK}/chunks/000001": b"chunk" * 2000,
    "dashboards/agl-overview.json": json.dumps({"uid": "agl-overview", "refresh": "10s"}).encode(),
    "results/01-scenario.json": b"{}",
}
RUNS = (
    Run(kind="scenario", name='mini"mal', started=100.0, ended=112.0, file="results/01.json"),
    Run(kind="analysis", name="window", started=90.0, ended=120.0, file="results/02.json"),
)
Header = Callable[[tarfile.TarInfo], None]


def manifest_of(stage: Path, **changed: object) -> Manifest:
    values: dict[str, object] = {
        "made": 200.0,
        "start": 90.0,
        "end": 130.0,
        "clock_ahead": 0.0,
        "prometheus": {"version": "2.53.3"},
        "runs": RUNS,
        "members": {
            str(path.relative_to(stage)): member_of(path)
            for path in sorted(stage.rglob("*"))
            if path.is_file()
        },
    }
    return Manifest.model_validate({**values, **changed})


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    folder = tmp_path / "stage"
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


@pytest.fixture
def archive(stage: Path, tmp_path: Path) -> Path:
    path = tmp_path / "run.tar.gz"
    pack(path, stage, manifest_of(stage))
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def with_members(path: Path, manifest: Manifest, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    """An archive with this manifest and whatever else."""
    with tarfile.open(path, "w:gz") as made:
        text = manifest.model_dump_json().encode()
        for header, content in ((tarfile.TarInfo("manifest.json"), text), *members):
            header.size = len(content)
            made.addfile(header, io.BytesIO(content))
    return path


def test_what_is_unpacked_is_what_was_packed(archive: Path, target: Path) -> None:
    manifest = unpack(archive, target)
    assert {name: (target / name).read_bytes() for name in manifest.members} == FILES
    assert manifest.runs == RUNS
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in target.rglob("*"))


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.7, 0.99, 0.9999])
def test_an_archive_cut_short_is_refused(archive: Path, target: Path, share: float) -> None:
    content = archive.read_bytes()
    archive.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(EnvironmentFault, match="cut short or damaged"):
        unpack(archive, target)


def test_files_that_are_missing_at_the_end_are_named(
    stage: Path, tmp_path: Path, target: Path
) -> None:
    manifest = manifest_of(stage)
    with pytest.raises(EnvironmentFault, match="5 files are missing, dashboards/"):
        unpack(with_members(tmp_path / "a.tar.gz", manifest), target)


def test_a_changed_file_is_named(stage: Path, tmp_path: Path, target: Path) -> None:
    manifest = manifest_of(stage)
    index = stage / BLOCK / "index"
    index.write_bytes(index.read_bytes()[::-1])
    path = tmp_path / "a.tar.gz"
    pack(path, stage, manifest)
    with pytest.raises(EnvironmentFault, match="checksum of index does not match"):
        unpack(path, target)


@pytest.mark.parametrize(
    "name",
    ["../evil.json", "/etc/evil.json", "dashboards/../../evil.json", "data/../evil", "evil",
     "dashboards/.hidden.json", f"{BLOCK}/chunks/../index", "results/a/b.json"],
)  # fmt: skip
def test_no_name_leads_out_of_the_folder(
    name: str, stage: Path, tmp_path: Path, target: Path
) -> None:
    assert not is_member(name)
    manifest = manifest_of(stage, members={})
    smuggled = with_members(tmp_path / "a.tar.gz", manifest, (tarfile.TarInfo(name), b"x"))
    with pytest.raises(EnvironmentFault, match="is not in its manifest"):
        unpack(smuggled, target)
    listed = manifest_of(stage, members={name: {"size": 1, "sha256": "0" * 64}})
    listed_too = with_members(tmp_path / "b.tar.gz", listed, (tarfile.TarInfo(name), b"x"))
    with pytest.raises(EnvironmentFault, match="which is no file of an archive"):
        unpack(listed_too, target)
    assert not list(tmp_path.rglob("evil*"))


def test_a_link_in_the_place_of_a_file_is_refused(
    stage: Path, tmp_path: Path, target: Path
) -> None:
    link = tarfile.TarInfo("dashboards/agl-overview.json")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    path = with_members(tmp_path / "a.tar.gz", manifest_of(stage), (link, b""))
    with pytest.raises(EnvironmentFault, match="no plain file"):
        unpack(path, target)


def test_an_archive_that_unfolds_without_end_is_refused(
    archive: Path, stage: Path, tmp_path: Path, target: Path
) -> None:
    archive.write_bytes(archive.read_bytes() + gzip.compress(bytes(3 << 20)))
    with pytest.raises(EnvironmentFault, match="more follows behind its last file"):
        unpack(archive, target)
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
        long = tarfile.TarInfo("x")
        long.type = kind
        path = with_members(tmp_path / "a.tar.gz", manifest_of(stage), (long, bytes(1 << 17)))
        shutil.rmtree(target)
        target.mkdir()
        with pytest.raises(EnvironmentFault, match="an extended header of 131072 bytes"):
            unpack(path, target)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"format": "agl-bench-archive/2"}, "is of the format 'agl-bench-archive/2', which this"),
        ({"start": 1e18}, "start: Input should be less"),
        ({"runs": [{**RUNS[0].model_dump(), "ended": 1e10}]}, "more than 366 days later"),
        ({"runs": [{**RUNS[0].model_dump(), "ended": 99.0}]}, "ended before it started"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(
    changed: dict[str, object], words: str, stage: Path, tmp_path: Path, target: Path
) -> None:
    told = {**json.loads(manifest_of(stage).model_dump_json()), **changed}
    path, text = tmp_path / "a.tar.gz", json.dumps(told).encode()
    with tarfile.open(path, "w:gz") as made:
        header = tarfile.TarInfo("manifest.json")
        header.size = len(text)
        made.addfile(header, io.BytesIO(text))
    with pytest.raises(EnvironmentFault, match=words):
        unpack(path, target)


def test_a_dashboard_that_is_none_is_named(archive: Path, target: Path) -> None:
    manifest = unpack(archive, target)
    (target / "dashboards" / "agl-overview.json").write_bytes(b"{")
    with pytest.raises(EnvironmentFault, match=r"agl-overview\.json .* is no dashboard"):
        prepare(target, manifest, target)


@pytest.mark.parametrize("data", [{}, {"name": ".."}, {"name": "../../wal"}, {"name": "a/b"}])
def test_a_snapshot_without_a_name_touches_no_folder(
    data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wal").mkdir()
    told = {"status": "success", "data": data}
    monkeypatch.setattr(snapshot, "_ask", lambda *_: told)
    with (
        pytest.raises(EnvironmentFault, match="which is no name"),
        snapshot.taken("http://127.0.0.1:9", snapshot.Folder(tmp_path), tmp_path / "x"),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["wal"]


def test_what_is_no_archive_is_said_to_be_none(tmp_path: Path, target: Path) -> None:
    path = tmp_path / "a.tar.gz"
    with pytest.raises(EnvironmentFault, match="there is no file"):
        unpack(path, target)
    path.write_bytes(b"hello")
    with pytest.raises(EnvironmentFault, match="is no archive of agl bench"):
        unpack(path, target)
    with tarfile.open(path, "w:gz") as other:
        other.addfile(tarfile.TarInfo("readme"), io.BytesIO(b""))
    with pytest.raises(EnvironmentFault, match=r"does not begin with manifest\.json"):
        unpack(path, target)


def test_boards_open_at_the_time_of_the_archive_and_show_its_runs(stage: Path) -> None:
    manifest = manifest_of(stage, clock_ahead=3.0)
    mine = {"name": "Benchmark runs", "datasource": {"type": "grafana"}}
    board = {"title": "x", "annotations": {"list": [{"name": "Alerts"}, mine]}}
    found = at_its_time(board, manifest)
    assert found["time"] == {"from": "93000", "to": "133000"}
    assert found["refresh"] == ""
    assert [one["name"] for one in found["annotations"]["list"]] == ["Alerts", "Benchmark runs"]
    assert MARK in found["annotations"]["list"][1]["expr"]


def test_marks_are_of_loads_in_the_clock_of_prometheus(stage: Path) -> None:
    lines = marks(manifest_of(stage, clock_ahead=3.0)).splitlines()
    samples = [line for line in lines if line.startswith(f"{MARK}{{")]
    assert samples[0] == f'{MARK}{{run="1: scenario mini\\"mal"}} 1 103'
    assert samples[-2].endswith(" 1 115")
    assert samples[-1].endswith(" 0 116")
    assert not any("analysis" in line for line in samples)
    assert lines[-1] == "# EOF"
    assert marks(manifest_of(stage, runs=())) == ""


def test_the_viewer_gets_configuration_that_scrapes_nothing(archive: Path, target: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    prepare(target, unpack(archive, target), root / "grafana" / "provisioning")
    assert "scrape_configs" not in (target / "prometheus.yml").read_text()
    text = "".join(path.read_text() for path in (target / "grafana").rglob("*.yml"))
    assert "path: /run/agl/archive/dashboards" in text
