"""What a process writes into the shared folder, and what happens when that does not work."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import environment
from prometheus_client.mmap_dict import MmapedDict

from agl.utils import mapped_file, mapped_values
from agl.utils.folder_reader import FolderReader
from agl.utils.folder_text import metrics_of
from agl.utils.mapped_file import OWN_FILE, is_abandoned
from agl.utils.mapped_values import DROPPED, FolderWriter, MappedValue


def end(writer: FolderWriter) -> None:
    """What the end of its process does."""
    writer.retire()
    writer._let_go()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[FolderWriter]:
    made = FolderWriter(tmp_path)
    yield made
    end(made)


def counter(writer: FolderWriter, number: int = 0) -> MappedValue:
    return MappedValue(writer, "counter", "a", "a_total", ("x",), (str(number),), "help")


def files(folder: Path, prefix: str = "") -> list[Path]:
    return sorted(folder.glob(f"{prefix}*.db"))


def stored(folder: Path) -> dict[str, float]:
    """As prometheus_client reads it."""
    return {
        key: value
        for path in files(folder)
        for key, value, _, _ in MmapedDict.read_all_values_from_file(str(path))
    }


def total(folder: Path, name: str) -> float:
    metrics = metrics_of(FolderReader(folder).read())
    return sum(s.value for metric in metrics for s in metric.samples if s.name == name)


def make_full(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(mapped_file.os, "posix_fallocate", full)


def test_prometheus_client_reads_it(writer: FolderWriter, tmp_path: Path) -> None:
    first, second = counter(writer, 1), counter(writer, 2)
    first.inc(2)
    second.set(7, 3.5)
    assert stored(tmp_path)['["a", "a_total", {"x": "1"}, "help"]'] == 2
    assert stored(tmp_path)['["a", "a_total", {"x": "2"}, "help"]'] == 7
    assert (first.get(), second.get()) == (2, 7)


def test_files_grow_and_are_never_larger_than_what_is_backed(
    writer: FolderWriter, tmp_path: Path
) -> None:
    values = [counter(writer, number) for number in range(5000)]
    for value in values:
        value.inc(1)
    assert total(tmp_path, "a_total") == 5000
    assert sum(value == 1 for value in stored(tmp_path).values()) == 5000
    (path,) = files(tmp_path)
    assert path.stat().st_blocks * 512 < 2_000_000  # the hole before the numbers takes no room


def test_sums_of_ours_add_up_exactly_in_any_order(writer: FolderWriter) -> None:
    amounts = [0.1, 1e-5, 123.456, 0.3, 7e-4] * 100
    forth, back = (
        MappedValue(writer, "histogram", "agl_h", "agl_h_sum", ("x",), (x,), "") for x in "ab"
    )
    for amount in amounts:
        forth.inc(amount)
    for amount in reversed(amounts):
        back.inc(amount)
    assert forth.get() == back.get() == pytest.approx(sum(amounts), rel=1e-4)


@pytest.mark.parametrize("amount", [float("inf"), float("nan")])
def test_sums_take_what_is_no_number(writer: FolderWriter, amount: float) -> None:
    value = MappedValue(writer, "histogram", "agl_h", "agl_h_sum", (), (), "")
    value.inc(amount)
    assert value.get() == pytest.approx(amount, nan_ok=True)


def test_a_full_folder_costs_no_count_once_there_is_room(
    writer: FolderWriter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    known = counter(writer)
    with monkeypatch.context() as patch:
        make_full(patch)
        late = [counter(writer, number) for number in range(1, 3000)]
        for value in (known, *late):
            value.inc(1)
        assert all(value.get() == 1 for value in late)
        written = total(tmp_path, "a_total")
        assert written < 3000
        assert total(tmp_path, f"{DROPPED}_total") == 3000 - written
    assert caplog.text.count("takes no more metrics (No space left on device)") == 1
    monkeypatch.setattr(writer, "_retry_at", 0.0)
    writer.tend()
    assert total(tmp_path, "a_total") == 3000
    assert caplog.text.count("takes metrics again") == 1


def test_a_folder_full_from_the_start_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        make_full(patch)
        writer = FolderWriter(tmp_path)
        value = counter(writer)
        value.inc(4)
        assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(writer, "_retry_at", 0.0)
    value.inc(1)
    assert total(tmp_path, "a_total") == 5
    assert total(tmp_path, f"{DROPPED}_total") == 1
    end(writer)


def test_a_deleted_folder_is_made_again_with_all_counts(tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    writer = FolderWriter(folder)
    value = counter(writer)
    value.inc(5)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    value.inc(1)
    assert not folder.exists()
    writer.tend()
    value.inc(1)
    assert total(folder, "a_total") == 7
    end(writer)


def test_a_deleted_file_is_made_again_under_another_name(
    writer: FolderWriter, tmp_path: Path
) -> None:
    counter(writer).inc(5)
    (before,) = files(tmp_path)
    before.unlink()
    writer.tend()
    (after,) = files(tmp_path)
    assert after != before
    assert total(tmp_path, "a_total") == 5


def test_names_are_not_bare_pids_and_the_living_hold_locks(
    writer: FolderWriter, tmp_path: Path
) -> None:
    other = FolderWriter(tmp_path)  # as in another container, where the pid may be the same
    counter(writer).inc(1)
    counter(other).inc(10)
    first, second = files(tmp_path)
    assert first != second
    assert OWN_FILE.fullmatch(first.name)
    assert total(tmp_path, "a_total") == 11
    assert not is_abandoned(first)
    assert not is_abandoned(second)
    end(other)
    assert sorted([is_abandoned(first), is_abandoned(second)]) == [False, True]


def test_nobody_ever_sees_an_unfinished_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    allocate = os.posix_fallocate

    def look(*arguments: int) -> None:
        seen.append([path.name for path in files(tmp_path)])
        allocate(*arguments)

    monkeypatch.setattr(mapped_file.os, "posix_fallocate", look)
    writer = FolderWriter(tmp_path)
    assert seen == [[], []]
    assert len(files(tmp_path)) == 1
    end(writer)


def test_at_the_end_live_gauges_go(tmp_path: Path) -> None:
    writer = FolderWriter(tmp_path)
    MappedValue(writer, "gauge", "g", "g", (), (), "", "livesum").set(3)
    MappedValue(writer, "gauge", "k", "k", (), (), "", "sum").set(3)
    counter(writer).inc(1)
    assert len(files(tmp_path, "gauge_livesum")) == 1
    writer.retire()
    assert [p.name.split("_")[:-1] for p in files(tmp_path)] == [["counter"], ["gauge", "sum"]]
    end(writer)


def test_a_folder_without_locks_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(mapped_file.fcntl, "flock", no_locks)
    writer = FolderWriter(tmp_path)
    counter(writer).inc(2)
    assert total(tmp_path, "a_total") == 2
    assert not is_abandoned(files(tmp_path)[0])
    end(writer)


def run(code: str, folder: Path) -> str:
    head = """
    import os, sys
    from pathlib import Path
    from agl.utils.metrics import PrometheusMetricsBackend, setup_multiprocess_prometheus
    from agl.utils.mapped_file import is_abandoned
    folder = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])
    def names():
        return {p.name for p in folder.glob("*.db")}
    backend = PrometheusMetricsBackend()
    backend.register_counter("a.total", ["x"])
    """
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(head) + textwrap.dedent(code)],
        env=environment({"PROMETHEUS_MULTIPROC_DIR": str(folder)}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_forks_write_files_of_their_own_and_leave_the_parents_alone(tmp_path: Path) -> None:
    run(
        """
        backend.inc("a.total", {"x": "1"}, 5)
        mine = names()
        for amount in (1, 2):
            if os.fork() == 0:
                assert names() >= mine
                backend.inc("a.total", {"x": "1"}, amount)
                own = names() - mine
                assert own
                os._exit(0)
            os.wait()
        assert not any(is_abandoned(folder / name) for name in mine)
        assert all(is_abandoned(folder / name) for name in names() - mine)
        assert len(names()) == 3 * len(mine)
        """,
        tmp_path,
    )
    assert total(tmp_path, "a_total") == 8


def test_the_death_of_a_parent_is_seen_while_its_children_live(tmp_path: Path) -> None:
    out = run(
        """
        import signal, time
        backend.inc("a.total", {"x": "1"}, 5)
        mine = names()
        ready, go = os.pipe(), os.pipe()
        parent = os.fork()
        if parent == 0:  # whose files its own child would keep locked, if it took them along
            backend.inc("a.total", {"x": "1"}, 1)
            if os.fork() == 0:
                os.write(ready[1], b"x")
                os.read(go[0], 1)
                os._exit(0)
            signal.pause()
        os.read(ready[0], 1)
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        theirs = names() - mine
        print(bool(theirs) and all(is_abandoned(folder / name) for name in theirs))
        os.write(go[1], b"x")
        """,
        tmp_path,
    )
    assert out == "True\n"


def test_a_fork_that_counts_nothing_leaves_no_trace(tmp_path: Path) -> None:
    out = run(
        """
        backend.inc("a.total", {"x": "1"})
        before = names()
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        print(names() == before)
        """,
        tmp_path,
    )
    assert out == "True\n"


def test_install_twice_is_once(tmp_path: Path) -> None:
    out = run(
        """
        from agl.utils.mapped_values import install
        print(install(folder) is install(folder))
        """,
        tmp_path,
    )
    assert out == "True\n"
    assert mapped_values.installed() is None  # this process has no shared folder
