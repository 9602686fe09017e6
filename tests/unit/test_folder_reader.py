"""The exporter's reader: the same samples as prometheus_client's, and nothing that breaks it."""

from __future__ import annotations

import math
import os
import random
import struct
import threading
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from agl.utils.folder_reader import FolderReader, Totals
from agl.utils.folder_text import Template, metrics_of
from agl.utils.mapped_file import MappedFile

ACCEPTED = (
    "",
    "application/openmetrics-text;version=1.0.0;q=0.5",
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8",
    "text/plain;version=1.0.0;escaping=dots",
    "text/plain;version=1.0.0;escaping=values",
)
MODES = ("all", "liveall", "min", "livemin", "max", "livemax", "sum", "livesum")
MODES += ("mostrecent", "livemostrecent")

Write = tuple[str, str, str, dict[str, str], float, float]
"""File prefix, metric, sample, labels, value, timestamp."""

counts = st.integers(0, 2**40).map(float) | st.floats(0, 1e9)
label_values = st.text(max_size=5) | st.sampled_from(
    ('a"b', "a\\b", "a\nb", 'x "le": "1"', "", "ü")
)
labels = st.dictionaries(st.sampled_from(("a", "b", "method")), label_values, max_size=2)
bounds = st.sets(st.sampled_from((0.001, 0.5, 1.0, 2.5, 1e6, 1e21, math.inf)), min_size=1)


@st.composite
def counters(draw: st.DrawFn) -> list[Write]:
    name = draw(st.sampled_from(("c_one", "c_two")))
    return [("counter", name, f"{name}_total", draw(labels), draw(counts), 0.0)]


@st.composite
def summaries(draw: st.DrawFn) -> list[Write]:
    shown = draw(labels)
    return [
        ("summary", "s", f"s_{part}", shown, draw(counts), 0.0)
        for part in draw(st.sampled_from((("sum", "count"), ("count",))))
    ]


@st.composite
def histograms(draw: st.DrawFn) -> list[Write]:
    name = draw(st.sampled_from(("h_one", "h_two")))
    shown = draw(labels)
    sums = st.floats(-1e9, 1e9) | st.sampled_from((math.nan, math.inf))
    writes: list[Write] = [("histogram", name, f"{name}_sum", shown, draw(sums), 0.0)]
    for bound in sorted(draw(bounds)):
        le = {**shown, "le": "+Inf" if bound == math.inf else repr(bound)}
        writes.append(("histogram", name, f"{name}_bucket", le, draw(counts), 0.0))
    return writes


@st.composite
def gauges(draw: st.DrawFn) -> list[Write]:
    mode = draw(st.sampled_from(MODES))
    value = draw(st.floats(allow_nan=False, width=32))
    timestamp = draw(st.sampled_from((0.0, 1.0, 2.5, 1e9)))
    name = f"g_{mode}"
    return [(f"gauge_{mode}", name, name, draw(labels), value, timestamp)]


processes = st.lists(
    st.lists(counters() | summaries() | histograms() | gauges(), max_size=6).map(
        lambda groups: [write for group in groups for write in group]
    ),
    max_size=4,
)


class Process:
    """Writes as prometheus_client does, or as we do; both into files of the same folder."""

    def __init__(self, folder: Path, number: int, ours: bool) -> None:
        self._folder = folder
        self._ours = ours
        self._identity = f"{number}-{number:012x}" if ours else str(number)
        self._files: dict[str, MmapedDict | MappedFile] = {}
        self._places: dict[tuple[str, str], tuple[int, int]] = {}

    def write(self, writes: Iterable[Write]) -> None:
        for prefix, metric, name, shown, value, timestamp in writes:
            key = mmap_key(metric, name, list(shown), list(shown.values()), f"help of {metric}\n")
            file = self._files.get(prefix)
            path = self._folder / f"{prefix}_{self._identity}.db"
            if file is None:
                file = MappedFile(path) if self._ours else MmapedDict(str(path))
                self._files[prefix] = file
            if isinstance(file, MappedFile):
                place = self._places.get((prefix, key))
                if place is None:
                    place = self._places[prefix, key] = file.add(key.encode())
                file.put(*place, value, timestamp)
            else:
                file.write_value(key, value, timestamp)

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def theirs(folder: Path) -> CollectorRegistry:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(folder))
    return registry


def samples_of(
    metrics: Iterable[Metric],
) -> dict[tuple[str, str, tuple[tuple[str, str], ...]], float]:
    return {
        (metric.type, sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for metric in metrics
        for sample in metric.samples
    }


def assert_same(totals: Totals, folder: Path) -> None:
    expected, found = samples_of(theirs(folder).collect()), samples_of(metrics_of(totals))
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-9, abs=1e-6, nan_ok=True), key


def assert_same_text(totals: Totals, folder: Path) -> None:
    """Letter by letter, where adding up in another order changes nothing."""
    for accepted in ACCEPTED:
        encoder, _ = choose_encoder(accepted)
        text = Template(totals.table, encoder).text(totals)
        expected = encoder(theirs(folder)).decode().removesuffix("# EOF\n")
        assert sorted(text.split("\n")) == sorted(expected.split("\n"))


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(first=processes, second=processes, ours=st.lists(st.booleans(), min_size=4, max_size=4))
def test_the_same_samples_as_prometheus_client(
    first: list[list[Write]], second: list[list[Write]], ours: list[bool]
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        reader = FolderReader(folder)
        writers = [Process(folder, number, ours[number]) for number in range(4)]
        for writes in (first, second):
            for writer, own in zip(writers, writes, strict=False):
                writer.write(own)
            assert_same(reader.read(), folder)
            assert_same(FolderReader(folder).read(), folder)
        for writer in writers:
            writer.close()


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(writes=st.lists(counters() | summaries() | histograms() | gauges(), max_size=8))
def test_the_same_text_as_prometheus_client(writes: list[list[Write]]) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        writer = Process(folder, 1, True)
        writer.write(write for group in writes for write in group)
        assert_same_text(FolderReader(folder).read(), folder)
        writer.close()


GOOD: list[Write] = [
    ("counter", "c", "c_total", {"x": "1"}, 3.0, 0.0),
    ("histogram", "h", "h_sum", {}, 1.5, 0.0),
    ("histogram", "h", "h_bucket", {"le": "1.0"}, 2.0, 0.0),
    ("histogram", "h", "h_bucket", {"le": "+Inf"}, 1.0, 0.0),
]


@pytest.fixture(params=[True, False], ids=["ours", "theirs"])
def good(request: pytest.FixtureRequest, tmp_path: Path) -> Iterable[Process]:
    process = Process(tmp_path, 7, request.param)
    process.write(GOOD)
    yield process
    process.close()


def value(totals: Totals, name: str, **shown: str) -> float | None:
    samples = {(n, p): v for (_, n, p), v in samples_of(metrics_of(totals)).items()}
    return samples.get((name, tuple(sorted(shown.items()))))


def assert_good(totals: Totals) -> None:
    assert value(totals, "c_total", x="1") == 3
    assert value(totals, "h_bucket", le="+Inf") == 3
    assert value(totals, "h_count") == 3


def bad_key(raw: bytes) -> bytes:
    padded = raw + b" " * (8 - (len(raw) + 4) % 8)
    entry = struct.pack(f"i{len(padded)}sdd", len(raw), padded, 5.0, 0.0)
    return struct.pack("ii", 8 + len(entry), 0) + entry


BAD_FILES = {
    "empty": b"",
    "short": b"\x10\0",
    "truncated": bad_key(b'["c", "c_total", {"x": "1"}, ""]')[:30],
    "random": random.Random(1).randbytes(5000),
    "negative": struct.pack("ii", -8, 0) + bytes(100),
    "huge": struct.pack("ii", 2**31 - 8, 0) + bytes(100),
    "odd": struct.pack("ii", 13, 0) + bytes(100),
    "key past the end": struct.pack("iii", 64, 0, 1000) + bytes(100),
    "negative key": struct.pack("iii", 64, 0, -20) + bytes(100),
}
BAD_KEYS = (b"not JSON", b'["a", "b"]', b"7", b'"abcd"', b"\xff\xfe", b'["c", "c_total", 1, ""]')
BAD_KEYS += (b'["c", "c_total", {"x": 1}, ""]', b"[" * 5000)
BAD_KEYS += (b'["c", "c_total", {"x": "\\ud800"}, ""]', b'["", "", {}, ""]', b"null")


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_file_is_named_and_the_rest_is_right(
    content: bytes, good: Process, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "counter_99.db").write_bytes(content)
    reader = FolderReader(tmp_path)
    for _ in range(3):
        assert_good(reader.read())
    assert set(reader.report.bad) == {"counter_99.db"}
    assert caplog.text.count("counter_99.db cannot be read") == 1
    (tmp_path / "counter_99.db").unlink()
    assert_good(reader.read())
    assert reader.report.bad == {}


@pytest.mark.parametrize("raw", BAD_KEYS)
def test_a_bad_key_is_counted_and_the_rest_is_right(
    raw: bytes, good: Process, tmp_path: Path
) -> None:
    (tmp_path / "histogram_98.db").write_bytes(bad_key(raw))
    (tmp_path / "counter_99.db").write_bytes(bad_key(raw))
    reader = FolderReader(tmp_path)
    for _ in range(2):
        assert_good(reader.read())
        encoder, _ = choose_encoder("")
        Template(reader.read().table, encoder).text(reader.read()).encode()
    assert reader.report.bad_keys == 2


@pytest.mark.parametrize("name", ["x.db", "gauge_.db", "gauge_odd_1.db", "info_1.db", "counter.db"])
def test_a_foreign_file_is_named(name: str, good: Process, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"whatever")
    (tmp_path / "notes.txt").write_bytes(b"whatever")
    reader = FolderReader(tmp_path)
    assert_good(reader.read())
    assert set(reader.report.bad) == {name}
    assert reader.report.files["foreign"] >= 1


def test_what_is_no_file_is_named(good: Process, tmp_path: Path) -> None:
    (tmp_path / "counter_1.db").mkdir()
    os.mkfifo(tmp_path / "counter_2.db")
    (tmp_path / "counter_3.db").symlink_to(tmp_path / "nowhere")
    reader = FolderReader(tmp_path)
    assert_good(reader.read())
    assert set(reader.report.bad) == {"counter_1.db", "counter_2.db", "counter_3.db"}


@pytest.mark.parametrize("wrong", [math.nan, -1.0, -math.inf])
def test_a_count_that_makes_no_sense_is_left_out(
    wrong: float, good: Process, tmp_path: Path
) -> None:
    other = Process(tmp_path, 8, False)
    other.write([("counter", "c", "c_total", {"x": "1"}, wrong, 0.0)])
    other.write([("histogram", "h", "h_bucket", {"le": "1.0"}, wrong, 0.0)])
    other.write([("histogram", "h", "h_sum", {}, -4.0, 0.0)])  # of negative values: that is allowed
    reader = FolderReader(tmp_path)
    assert_good(reader.read())
    assert value(reader.read(), "h_sum") == -2.5
    assert reader.report.bad_values == 2
    other.close()


def test_one_metric_as_two_types_is_shown_once(good: Process, tmp_path: Path) -> None:
    other = Process(tmp_path, 8, False)
    other.write([("gauge_livesum", "h", "h", {}, 5.0, 0.0)])
    reader = FolderReader(tmp_path)
    reader.read()
    names = [family.name for family in reader.read().table.families]
    assert sorted(names) == ["c", "h"]
    assert reader.report.bad_keys > 0
    other.close()


def test_a_truncated_file_keeps_what_was_read_of_it(good: Process, tmp_path: Path) -> None:
    reader = FolderReader(tmp_path)
    assert_good(reader.read())
    copy = tmp_path / "counter_50.db"
    copy.write_bytes(next(tmp_path.glob("counter_7*.db")).read_bytes()[:200])
    assert value(reader.read(), "c_total", x="1") == 6
    for size in (100, 20, 8, 3, 0):
        os.truncate(copy, size)
        assert value(reader.read(), "c_total", x="1") == 6
    assert set(reader.report.bad) == {"counter_50.db"}


def test_files_that_vanish_are_counted_as_a_reset(good: Process, tmp_path: Path) -> None:
    reader = FolderReader(tmp_path)
    assert_good(reader.read())
    for path in tmp_path.glob("*.db"):
        path.unlink()
    assert list(metrics_of(reader.read())) == []
    assert reader.report.resets == 1
    reader.read()
    assert reader.report.resets == 1


def test_a_folder_that_comes_and_goes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "later"
    reader = FolderReader(folder)
    assert list(metrics_of(reader.read())) == []
    assert not reader.report.present
    folder.mkdir()
    process = Process(folder, 7, True)
    process.write(GOOD)
    assert_good(reader.read())
    assert reader.report.present
    process.close()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    for _ in range(3):
        assert list(metrics_of(reader.read())) == []
    assert caplog.text.count("cannot be listed") == 2


def test_a_file_by_the_same_name_is_another_one(tmp_path: Path) -> None:
    reader = FolderReader(tmp_path)
    for amount in (5.0, 2.0):
        process = Process(tmp_path, 7, False)
        process.write([("counter", "c", "c_total", {}, amount, 0.0)])
        process.close()
        assert value(reader.read(), "c_total") == amount
        (tmp_path / "counter_7.db").rename(tmp_path / "old")


def test_it_reads_while_files_grow(tmp_path: Path) -> None:
    stop = threading.Event()
    written = [0]

    def work() -> None:
        process = Process(tmp_path, 7, True)
        number = 0
        while not stop.is_set() and number < 5000:
            process.write([("counter", "c", "c_total", {"x": str(number)}, 1.0, 0.0)])
            number += 1
            written[0] = number
        process.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        reader, before = FolderReader(tmp_path), 0
        while before < 3000:
            at_least = written[0]
            totals = reader.read()
            found = sum(samples_of(metrics_of(totals)).values())
            assert found >= max(before, at_least) and found <= written[0] + 1
            assert reader.report.bad == {}
            before = int(found)
    finally:
        stop.set()
        thread.join()


def test_more_files_than_it_may_keep_open(tmp_path: Path) -> None:
    for number in range(40):
        process = Process(tmp_path, number, number % 2 == 0)
        process.write(GOOD)
        process.close()
    reader = FolderReader(tmp_path)
    reader._most_open = 10
    for _ in range(3):
        assert value(reader.read(), "c_total", x="1") == 120
    assert sum(file.is_open for file in reader._files.values()) <= 10


def test_openmetrics_is_well_formed(good: Process, tmp_path: Path) -> None:
    encoder, _ = choose_encoder("application/openmetrics-text;version=1.0.0")
    totals = FolderReader(tmp_path).read()
    text = Template(totals.table, encoder).text(totals) + "# EOF\n"
    assert {family.name for family in text_string_to_metric_families(text)} == {"c", "h"}


def test_adding_up_in_another_order_is_no_fall(tmp_path: Path) -> None:
    """Prometheus takes any fall for a restart from zero, were it the last bit."""
    amounts = [0.1, 0.2, 0.3, 0.7, 1e-3] * 7
    processes = [Process(tmp_path, number, False) for number in range(len(amounts))]
    for process, amount in zip(processes, amounts, strict=True):
        process.write([("summary", "s", "s_sum", {}, amount, 0.0)])
        process.close()
    reader = FolderReader(tmp_path)
    highest = value(reader.read(), "s_sum") or 0.0
    files = reader._files
    chance = random.Random(5)
    sums: set[float] = set()
    for _ in range(50):
        shuffled = list(files.values())
        chance.shuffle(shuffled)
        sums.add(reader._table.sum(shuffled).numbers[0])
        reader._take(reader._table.sum(shuffled))
        now = float(reader._totals.numbers[0])
        assert now >= highest
        highest = now
    assert len(sums) > 1, "the order makes a difference here"


def test_a_real_fall_is_shown(tmp_path: Path) -> None:
    process = Process(tmp_path, 1, False)
    reader = FolderReader(tmp_path)
    for amount in (5.0, 4.0):
        process.write([("summary", "s", "s_sum", {}, amount, 0.0)])
        assert value(reader.read(), "s_sum") == amount
    process.close()
