"""Files of dead processes: folded, once, whatever happens on the way."""

from __future__ import annotations

import errno
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector

from agl.utils import mapped_file
from agl.utils.folder_reader import FolderReader
from agl.utils.folder_text import metrics_of
from agl.utils.mapped_file import MappedFile, entry_bytes, locked, new_writer
from agl.utils.metrics_folding import (
    COMMIT_LOCK,
    FOLD_LOCK,
    MANIFEST,
    fold_dead,
    read_manifest,
)

MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory, where the folder is in the bundle, and fast."""
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name)


Values = dict[tuple[str, str], float]


def write(folder: Path, values: Values, *, alive: bool = False) -> MappedFile | None:
    """Files of one process, which has ended unless it is said to be alive."""
    writer = new_writer()
    kept: dict[str, MappedFile] = {}
    for (prefix, name), value in values.items():
        file = kept.get(prefix)
        if file is None:
            file = kept[prefix] = MappedFile(folder / f"{prefix}_{writer}.db")
        key = mmap_key(name.removesuffix("_total"), name, ["x"], ["1"], "help")
        file.put(*file.add(key.encode()), value, value)
    if alive:
        (file,) = kept.values()
        return file
    for file in kept.values():
        file.close()
    return None


def counted(folder: Path) -> dict[str, float]:
    metrics = metrics_of(FolderReader(folder).read())
    return {sample.name: sample.value for metric in metrics for sample in metric.samples}


def theirs(folder: Path) -> dict[str, float]:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(folder))
    return {s.name: s.value for metric in registry.collect() for s in metric.samples}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.db"))


def few(amount: float) -> Values:
    return {
        ("counter", "a_total"): amount,
        ("histogram", "h_sum"): amount,
        ("gauge_livesum", "g_live"): amount,
    }


def dead(amount: float) -> Values:
    return {
        ("counter", "a_total"): amount,
        ("counter", f"only_{amount:.0f}_total"): 1.0,
        ("histogram", "h_sum"): amount,
        ("summary", "s_count"): amount,
        ("gauge_sum", "g_sum"): amount,
        ("gauge_min", "g_min"): amount,
        ("gauge_max", "g_max"): amount,
        ("gauge_mostrecent", "g_recent"): amount,
        ("gauge_livesum", "g_live"): amount,
    }


def test_totals_stay_and_files_go(tmp_path: Path) -> None:
    for amount in (3.0, 1.0, 2.0):
        write(tmp_path, dead(amount))
    before = {name: value for name, value in theirs(tmp_path).items() if name != "g_live"}
    assert fold_dead(tmp_path) == 24
    prefixes = ["counter", "gauge_max", "gauge_min", "gauge_mostrecent", "gauge_sum"]
    prefixes += ["histogram", "summary"]
    assert names(tmp_path) == [f"{prefix}_folded-1.db" for prefix in prefixes]
    assert counted(tmp_path) == theirs(tmp_path) == before
    assert before["a_total"] == 6
    assert (before["g_min"], before["g_max"], before["g_recent"]) == (1, 3, 3)


def test_folding_goes_on_where_it_was(tmp_path: Path) -> None:
    for number in range(1, 21):
        write(tmp_path, {("counter", "a_total"): 1.0})
        assert fold_dead(tmp_path) > 0
        assert counted(tmp_path) == theirs(tmp_path) == {"a_total": number}
        assert names(tmp_path) == [f"counter_folded-{number}.db"]
    assert read_manifest(tmp_path).folded == 20
    assert fold_dead(tmp_path) == 0


def test_the_living_and_the_foreign_are_left_alone(tmp_path: Path) -> None:
    file = write(tmp_path, {("counter", "a_total"): 5.0}, alive=True)
    other = MmapedDict(str(tmp_path / "counter_17.db"))
    other.write_value(mmap_key("a", "a_total", ["x"], ["1"], "help"), 10.0, 0.0)
    before = names(tmp_path)
    assert fold_dead(tmp_path) == 0
    assert names(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".db"] == []
    assert file is not None
    file.close()
    assert fold_dead(tmp_path) == 1
    assert counted(tmp_path)["a_total"] == 15
    assert "counter_17.db" in names(tmp_path)
    other.close()


def test_gauges_that_stand_for_one_process_stay(tmp_path: Path) -> None:
    write(tmp_path, {("gauge_all", "g"): 5.0, ("gauge_liveall", "l"): 5.0})
    assert fold_dead(tmp_path) == 1
    assert [name.rsplit("_", 1)[0] for name in names(tmp_path)] == ["gauge_all"]


def test_a_damaged_file_is_left_where_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, {("counter", "a_total"): 5.0})
    bad = tmp_path / "counter_1-00000000000a.db"
    bad.write_bytes(b"\x40\0\0\0agl1\xff\xff\xff\x7f")
    assert fold_dead(tmp_path) == 1
    assert bad.exists()
    assert counted(tmp_path) == {"a_total": 5}
    assert "cannot be folded" in caplog.text


@pytest.mark.parametrize("text", ["", "{", "[]", '{"generation": 1}', "\x00"])
def test_a_damaged_manifest_stops_folding_and_is_seen(text: str, tmp_path: Path) -> None:
    write(tmp_path, {("counter", "a_total"): 5.0})
    fold_dead(tmp_path)
    write(tmp_path, {("counter", "a_total"): 2.0})
    (tmp_path / MANIFEST).write_text(text)
    assert fold_dead(tmp_path) == 0
    reader = FolderReader(tmp_path)
    reader.read()
    assert counted(tmp_path) == {"a_total": 7}
    assert MANIFEST in reader.report.bad


def test_no_room_to_fold_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for amount in (1.0, 2.0):
        write(tmp_path, dead(amount))
    before = names(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(mapped_file.os, "posix_fallocate", full)
        assert fold_dead(tmp_path) == 0
    assert names(tmp_path) == before
    assert not list(tmp_path.glob(".*.new"))
    assert "stay as they are for now (No space left on device)" in caplog.text
    assert fold_dead(tmp_path) == 16
    assert counted(tmp_path)["a_total"] == 3


def test_only_one_folds_at_a_time(tmp_path: Path) -> None:
    write(tmp_path, {("counter", "a_total"): 5.0})
    with locked(tmp_path / FOLD_LOCK) as got:
        assert got
        assert fold_dead(tmp_path) == 0
    assert fold_dead(tmp_path) == 1


def test_a_reader_waits_while_files_change_places(tmp_path: Path) -> None:
    write(tmp_path, {("counter", "a_total"): 5.0})
    fold_dead(tmp_path)
    reader = FolderReader(tmp_path)
    with locked(tmp_path / COMMIT_LOCK):  # a holder that hangs does not stop it for ever
        totals = reader.read()
    assert reader.report.seconds["list"] >= 1.0
    assert len(totals.numbers) == 1


class Crash(BaseException):
    """The process ends here."""


def steps(monkeypatch: pytest.MonkeyPatch, crash_at: int) -> Callable[[], int]:
    """Count everything that changes the folder, and crash before one of these steps."""
    count = 0

    def counting(original: Callable[..., object]) -> Callable[..., object]:
        def step(*arguments: object, **options: object) -> object:
            nonlocal count
            count += 1
            if count == crash_at:
                raise Crash
            return original(*arguments, **options)

        return step

    for name in ("unlink", "rename", "replace", "write_text"):
        monkeypatch.setattr(Path, name, counting(getattr(Path, name)))
    monkeypatch.setattr(MappedFile, "add", counting(MappedFile.add))
    monkeypatch.setattr(mapped_file.os, "posix_fallocate", counting(os.posix_fallocate))
    return lambda: count


def test_a_crash_at_any_step_loses_nothing_and_counts_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes = 0
    for crash_at in range(1, 500):
        folder = tmp_path / str(crash_at)
        folder.mkdir()
        write(folder, few(1.0))
        fold_dead(folder)
        for amount in (2.0, 4.0):
            write(folder, few(amount))
        before = {name: value for name, value in counted(folder).items() if name != "g_live"}
        assert before["a_total"] == 7
        watching = FolderReader(folder)
        watching.read()
        with monkeypatch.context() as patch:
            steps(patch, crash_at)
            try:
                fold_dead(folder)
                crashed = False
            except Crash:
                crashed = True
        crashes += crashed
        assert counted(folder) == before, crash_at
        watching.read()
        assert watching.report.resets == 0
        fold_dead(folder)
        assert counted(folder) == theirs(folder) == before, crash_at
        assert all("_folded-" in name for name in names(folder))
        if not crashed:
            break
    assert crashes > 15


@pytest.mark.slow
def test_ten_thousand_dead_files_at_start(tmp_path: Path) -> None:
    chance = random.Random(3)
    expected = 0
    for _ in range(10_000):
        amount = chance.randrange(100)
        expected += amount
        key = mmap_key("a", "a_total", ["x"], ["1"], "help").encode()
        size = entry_bytes(len(key))
        padded = key + b" " * (size - 20 - len(key))
        entry = struct.pack(f"i{len(padded)}sdd", len(key), padded, amount, 0.0)
        (tmp_path / f"counter_{new_writer()}.db").write_bytes(
            struct.pack("ii", 8 + len(entry), 0) + entry
        )
    assert counted(tmp_path) == {"a_total": expected}
    assert fold_dead(tmp_path) >= 10_000
    assert counted(tmp_path) == {"a_total": expected}
    assert len(names(tmp_path)) == 1
