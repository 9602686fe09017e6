"""The files of a metrics folder, read piece by piece: keys once, later only the numbers.

Nothing here raises because of what a file holds. A file that cannot be read keeps contributing what
was last read of it, and says what is wrong with it.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from prometheus_client.metrics_core import Metric
from prometheus_client.utils import (
    floatToGoString,  # pyright: ignore[reportUnknownVariableType]  # untyped there
)

from agl.utils.mapped_file import (
    DENSE_AT,
    HEADER_BYTES,
    MARK,
    DamagedFileError,
    entries,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LabelPairs = tuple[tuple[str, str], ...]

_MOST_BYTES = 256 << 20
_HEADER = struct.Struct("i4s")
_BOUND = b'"le": "'
"""Only ever the label of that name: inside of a string the quotes have a backslash before them."""

_TYPES = frozenset(("counter", "gauge", "histogram", "summary"))
GAUGE_MODES = ("all", "min", "max", "sum", "mostrecent")


@dataclass(slots=True)
class Key:
    """What one number of a file stands for; not to be changed.

    Attributes:
        type: Of the metric.
        mode: Of a gauge, without ``live``.
        metric: Name of the metric.
        name: Name of the sample.
        labels: Sorted, with the ``pid`` of a gauge that shows all processes, without the ``le`` of
            a bucket.
        help: What the metric is said to be.
        bound: Upper bound of a bucket; ``nan`` when it is none.
    """

    type: str
    mode: str
    metric: str
    name: str
    labels: LabelPairs
    help: str
    bound: float

    @property
    def is_bucket(self) -> bool:
        return self.bound == self.bound

    @property
    def only_grows(self) -> bool:
        """Whether a number below zero makes no sense here."""
        return self.type == "counter" or self.is_bucket


class Keys:
    """Every key that was ever seen, by number."""

    def __init__(self) -> None:
        self.all: list[Key] = []
        self._spaces: dict[str, NumberOf] = {}

    def __len__(self) -> int:
        return len(self.all)

    def of(self, space: str) -> NumberOf:
        """Numbers of the keys of one kind of file."""
        known = self._spaces.get(space)
        if known is None:
            known = self._spaces[space] = NumberOf(self.all, space)
        return known


@dataclass(frozen=True, slots=True)
class _Sample:
    """A file whose keys are known, for others to be compared with."""

    words: NDArray[np.uint64]
    """Its bytes, all numbers zero."""

    layout: Ints
    positions: Ints

    def shared_with(self, data: bytes) -> int:
        """How many keys ``data`` begins with that are the same, at the same places."""
        size = min(len(self.words), len(data) // 8)
        words = np.frombuffer(data, np.uint64, size).copy()
        inside = self.positions[self.positions + 1 < size]
        words[inside] = words[inside + 1] = 0
        different = np.flatnonzero(words[1:] != self.words[1:size])
        first = int(different[0]) + 1 if len(different) else size
        return int(np.searchsorted(self.positions + 2, first, "right"))


class NumberOf(dict[bytes, int]):
    """From a key as it stands in a file to its number; -1 when it makes no sense."""

    def __init__(self, keys: list[Key], space: str) -> None:
        super().__init__()
        self.sample: _Sample | None = None
        self._buckets: dict[tuple[bytes, bytes], Key] = {}
        self._keys = keys
        self._space = space

    def __missing__(self, raw: bytes) -> int:
        key = self._parse(raw)
        number = -1
        if key is not None:
            number = len(self._keys)
            self._keys.append(key)
        self[raw] = number
        return number

    def _parse(self, raw: bytes) -> Key | None:
        """Most keys are buckets that differ in nothing but their bound."""
        before, bound, rest = raw.partition(_BOUND)
        if not bound or self._space != "histogram":
            return parse_key(self._space, raw)
        le, _, after = rest.partition(b'"')
        known = self._buckets.get((before, after))
        if known is None:
            known = parse_key(self._space, raw)
            if known is not None and known.is_bucket:
                self._buckets[before, after] = known
            return known
        try:
            return Key(
                known.type, "", known.metric, known.name, known.labels, known.help, float(le)
            )
        except ValueError:
            return parse_key(self._space, raw)


number_text = cast("Callable[[float], str]", floatToGoString)
"""A number as the text formats write it."""


def parse_key(space: str, raw: bytes) -> Key | None:
    """A key as it stands in a file, or ``None`` if it is none of ``prometheus_client``'s."""
    typ, _, rest = space.partition(":")
    mode, _, pid = rest.partition(":")
    try:
        content: Any = json.loads(raw.decode())
        metric, name, labels, help_text = content
        pairs = [(str(k), v) for k, v in cast("dict[str, Any]", labels).items()]
        if not all(isinstance(part, str) for part in (metric, name, help_text, *labels.values())):
            return None
        bound = float(labels["le"]) if typ == "histogram" and "le" in labels else math.nan
        if b"\\u" in raw:
            json.dumps(content, ensure_ascii=False).encode()  # fails for half a surrogate pair
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    if mode == "all":
        pairs.append(("pid", pid))
    if bound == bound:
        pairs = [pair for pair in pairs if pair[0] != "le"]
    if not (_is_name(metric) and _is_name(name)):
        return None
    return Key(typ, mode, metric, name, tuple(sorted(pairs)), help_text, bound)


@lru_cache(10_000)
def _is_name(name: str) -> bool:
    try:
        Metric(name, "", "gauge")
    except ValueError:
        return False
    return True


def space_of(name: str) -> str | None:
    """What a file's name says about its keys: type, mode and, where it matters, process."""
    parts = name.removesuffix(".db").split("_")
    if parts[0] not in _TYPES:
        return None
    if parts[0] != "gauge":
        return parts[0] if len(parts) > 1 else None
    if len(parts) < 3:
        return None
    mode = parts[1].removeprefix("live")
    if mode not in GAUGE_MODES:
        return None
    return f"gauge:{mode}:{parts[2]}" if mode == "all" else f"gauge:{mode}"


class FolderFile:
    """One file, open or not.

    Attributes:
        layout: The numbers of its keys, in order; never changed in place.
        values: The numbers, in the same order.
        timestamps: Likewise; only of gauges that show the most recent value.
        fault: What is wrong with it, if anything.
        bad_keys: Keys that make no sense.
    """

    def __init__(self, path: str, name: str, inode: int, space: str, number_of: NumberOf) -> None:
        self.name = name
        self.inode = inode
        self.space = space
        self.layout: Ints = np.empty(0, np.int64)
        self.values: Floats = np.empty(0)
        self.timestamps: Floats | None = None
        self.fault = ""
        self.bad_keys = 0
        self._path = path
        self._number_of = number_of
        self._fd = -1
        self._used = HEADER_BYTES
        self._total = 0
        self._positions: Ints = np.empty(0, np.int64)
        self._kept: Ints | None = None
        self._dense = False
        self._dense_buffer = bytearray()
        self._whole_buffer = bytearray()
        self._with_timestamps = space == "gauge:mostrecent"

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def open(self) -> None:
        """Keep it open, so that it can be read although its name is gone.

        Raises:
            OSError: It cannot be opened.
        """
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def close(self) -> None:
        """Let go of it; what was read stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def is_abandoned(self) -> bool:
        """Whether its writer is gone, seen by the lock it held; ``False`` when in doubt."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        except OSError:
            return False
        return True

    @property
    def taken_bytes(self) -> int:
        """What its keys and values take, rounded by no file system."""
        return self._used + (8 * self._total if self._dense else 0)

    def read(self) -> None:
        """Read the numbers, and the keys that are new."""
        try:
            self.open()
            if not (self._dense and self._read_dense()):
                self._read_whole()
        except (OSError, DamagedFileError, OverflowError) as error:
            self.fault = getattr(error, "strerror", None) or str(error)
        else:
            self.fault = ""

    def _read_dense(self) -> bool:
        """Whether the values alone were enough, because there are no new keys."""
        got = os.preadv(self._fd, [self._dense_buffer], DENSE_AT)
        if got < len(self._dense_buffer):
            return False
        numbers = np.frombuffer(self._dense_buffer)
        if int(numbers[:1].view(np.int64)[0]) != self._used:
            return False
        values = numbers[1:]
        self.values = values if self._kept is None else values[self._kept]
        return True

    def _read_whole(self) -> None:
        used = self._read_header()
        if used < self._used:
            raise DamagedFileError(f"it went back from {self._used} bytes in use to {used}")
        if used > _MOST_BYTES:
            raise DamagedFileError(f"{used} bytes in use are more than a metrics file can have")
        if used > len(self._whole_buffer):
            self._whole_buffer = bytearray(used)
        view = memoryview(self._whole_buffer)[:used]
        got = os.preadv(self._fd, [view], 0)
        if got < used:
            raise DamagedFileError(f"it holds {got} of {used} bytes in use")
        if used > self._used:
            self._take_keys(bytes(view), used)
        numbers = np.frombuffer(view, np.float64) if used >= 8 else np.empty(0)
        self.values = numbers[self._positions]
        if self._with_timestamps:
            self.timestamps = numbers[self._positions + 1]
        if self._dense:
            self._whole_buffer = bytearray()  # not needed again before there are new keys
            self._dense_buffer = bytearray(8 * (self._total + 1))

    def _read_header(self) -> int:
        header = os.pread(self._fd, HEADER_BYTES, 0)
        if len(header) < HEADER_BYTES:
            raise DamagedFileError(f"it has {len(header)} bytes")
        used, mark = _HEADER.unpack(header)
        if used == 0:
            return HEADER_BYTES  # made a moment ago
        if used < 0 or used % 8:
            raise DamagedFileError(f"{used} bytes in use make no sense")
        self._dense = mark == MARK and not self._with_timestamps
        return used

    def _take_keys(self, data: bytes, used: int) -> None:
        number_of = self._number_of
        if self._total == 0 and number_of.sample is not None:
            self._take_shared_keys(number_of.sample, data)
        found = [(number_of[raw], at // 8) for raw, at in entries(data, self._used, used)]
        self.bad_keys += sum(number < 0 for number, _ in found)
        good = [pair for pair in found if pair[0] >= 0]
        if self._kept is not None or len(good) < len(found):
            before = np.arange(self._total) if self._kept is None else self._kept
            new = [self._total + i for i, (number, _) in enumerate(found) if number >= 0]
            self._kept = np.concatenate([before, np.array(new, np.int64)])
        self._total += len(found)
        pairs = np.array(good, np.int64).reshape(-1, 2)
        self.layout = np.concatenate([self.layout, pairs[:, 0]])
        self._positions = np.concatenate([self._positions, pairs[:, 1]])
        self._used = used
        if self._kept is None and (
            number_of.sample is None or self._total > len(number_of.sample.layout)
        ):
            words = np.frombuffer(data, np.uint64).copy()
            words[self._positions] = words[self._positions + 1] = 0
            number_of.sample = _Sample(words, self.layout, self._positions)

    def _take_shared_keys(self, sample: _Sample, data: bytes) -> None:
        """Server processes of one program write the same keys; look at them once."""
        shared = sample.shared_with(data)
        if shared:
            self.layout, self._positions = sample.layout[:shared], sample.positions[:shared]
            self._total = shared
            self._used = 8 * (int(self._positions[-1]) + 2)
