"""One file of a server process's metrics, in the format of ``prometheus_client``.

The format: the bytes in use (int32), 4 bytes of padding, then for each value the length of its key
(int32), the key, spaces up to a multiple of 8 bytes, the value and its timestamp (doubles). Two
things are added in places ``prometheus_client`` never looks at: a mark in the padding, and at
:data:`DENSE_AT` the values once more, one after the other, so that a reader who knows the keys
reads 8 bytes a value instead of the whole file. The space between is a hole and takes no room.

Room is allocated before it is mapped: writing to a page that a full file system cannot back would
kill the process with SIGBUS.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import secrets
import struct
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

HEADER_BYTES = 8
MARK = b"agl1"
"""In the padding of a file that has its values at :data:`DENSE_AT` as well."""

DENSE_AT = 32 << 20
"""Where the values lie once more: the bytes in use (int64), then doubles in the order of keys."""

SUFFIX = ".db"
OWN_FILE = re.compile(r"(?P<prefix>[a-z]+(?:_[a-z]+)?)_(?P<writer>\d+-[0-9a-f]{12})\.db")
"""Names of files whose writer holds a lock on them as long as it lives."""

_FIRST_BYTES = 16 << 10
_FIRST_DENSE_BYTES = 4 << 10
_STEP = 64 << 10
_INT = struct.Struct("i")
_NO_LOCKS_HERE = frozenset((errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS))


class DamagedFileError(ValueError):
    """What a file holds is not in the format."""


def new_writer() -> str:
    """An identity that no other process has, in this container or in another on the same folder."""
    return f"{os.getpid()}-{secrets.token_hex(6)}"


def entry_bytes(key_length: int) -> int:
    """What one value takes in the file: length, padded key, value and timestamp."""
    return 4 + key_length + (8 - (key_length + 4) % 8) + 16


def entries(data: bytes, start: int, used: int) -> Iterator[tuple[bytes, int]]:
    """Keys between two positions, each with the position of its value.

    Raises:
        DamagedFileError: ``data`` is shorter than ``used``, or a key leaves it.
    """
    if not 0 <= used <= len(data) or used % 8:
        raise DamagedFileError(f"{used} bytes in use of {len(data)}")
    position, unpack = start, _INT.unpack_from
    while position < used:
        (length,) = unpack(data, position)
        end = position + 4 + length + (8 - (length + 4) % 8)
        if length < 0 or end + 16 > used:
            raise DamagedFileError(f"the key at {position} leaves the file")
        yield data[position + 4 : position + 4 + length], end
        position = end + 16


def read_entries(path: Path) -> dict[bytes, tuple[float, float]]:
    """All keys of a file, with value and timestamp.

    Raises:
        DamagedFileError: The file is not in the format.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            raise DamagedFileError(f"{len(head)} bytes")
        (used,) = _INT.unpack_from(head)
        data = head + file.read(max(used - HEADER_BYTES, 0))
    two = struct.Struct("dd").unpack_from
    return {key: two(data, at) for key, at in entries(data, HEADER_BYTES, used)}


def is_abandoned(path: Path) -> bool:
    """Whether the writer of a file is gone, seen by the lock it held; ``False`` when in doubt."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(fd)


@contextlib.contextmanager
def locked(path: Path, *, shared: bool = False, wait: bool = True) -> Generator[bool]:
    """Hold the lock of a file while inside; yields whether it was got.

    A folder that knows no locks, or takes no file, counts as not got.
    """
    flags = os.O_RDONLY if shared else os.O_RDONLY | os.O_CREAT
    try:
        fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
    except OSError:
        yield False
        return
    try:
        try:
            how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(fd, how if wait else how | fcntl.LOCK_NB)
            got = True
        except OSError:
            got = False
        yield got
    finally:
        os.close(fd)


class MappedFile:
    """A new file that this process alone writes, locked until it is closed.

    It gets its name once it is locked and has its header, so nobody ever finds it unfinished.

    Args:
        path: Its name; must not exist.
        lock: Hold a lock on it.

    Raises:
        OSError: There is no room, or the folder takes no file.
    """

    def __init__(self, path: Path, *, lock: bool = True) -> None:
        self.path = path
        self.used = HEADER_BYTES
        self.count = 0
        self._dense_used = self._dense_bytes = memoryview(b"")
        self.values: Any = memoryview(b"")
        self.dense: Any = memoryview(b"")
        self._keys: mmap.mmap | None = None
        self._dense: mmap.mmap | None = None
        hidden = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
        self._fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            if lock:
                _hold_lock(self._fd)
            self._capacity = self._dense_capacity = 0
            self._grow(_FIRST_BYTES)
            self._grow_dense(_FIRST_DENSE_BYTES)
            self._write(4, MARK)
            self._note_used()
            hidden.rename(path)
        except BaseException:
            with contextlib.suppress(OSError):
                hidden.unlink()
            self.close()
            raise
        self._inode = os.fstat(self._fd).st_ino

    def add(self, key: bytes) -> tuple[int, int]:
        """Make room for a value of 0; returns the two places :meth:`put` wants.

        Raises:
            OSError: There is no room.
        """
        size = entry_bytes(len(key))
        if self.used + size > self._capacity:
            self._grow(self.used + size)
        if (self.count + 2) * 8 > self._dense_capacity:
            self._grow_dense((self.count + 2) * 8)
        padded = key + b" " * (size - 20 - len(key))
        end = self.used + size
        self._write(self.used, _INT.pack(len(key)) + padded + bytes(16))
        self.used = end
        self.count += 1
        self._note_used()
        return (end - 16) // 8, self.count

    def put(self, at: int, dense_at: int, value: float, timestamp: float = 0.0) -> None:
        """Write a value; a reader sees all of it or what was there before."""
        self.values[at + 1] = timestamp
        self.values[at] = value
        self.dense[dense_at] = value  # last: whoever folds this file reads the other one

    def is_in_place(self) -> bool:
        """Whether others still find this file under its name."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    def close(self) -> None:
        """Let go of the file and its lock. In a forked child: without touching the parent's.

        A mapping keeps the lock as well as a descriptor does, so it has to go, too.
        """
        for view in (self.values, self.dense, self._dense_used, self._dense_bytes):
            view.release()
        for mapped in (self._keys, self._dense):
            if mapped is not None:
                mapped.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, at: int, data: bytes) -> None:
        if self._keys is not None:
            self._keys[at : at + len(data)] = data

    def _note_used(self) -> None:
        self._write(0, _INT.pack(self.used))
        self._dense_used[0] = self.used

    def _grow(self, needed: int) -> None:
        if needed > DENSE_AT:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        size = min(_rounded(max(needed, self._capacity + self._capacity // 2)), DENSE_AT)
        os.posix_fallocate(self._fd, self._capacity, size - self._capacity)
        old, self._keys = self._keys, mmap.mmap(self._fd, size)
        self.values.release()
        self.values = memoryview(self._keys).cast("d")
        self._capacity = size
        if old is not None:
            old.close()

    def _grow_dense(self, needed: int) -> None:
        size = _rounded(max(needed, 2 * self._dense_capacity))
        start = DENSE_AT + self._dense_capacity
        os.posix_fallocate(self._fd, start, size - self._dense_capacity)
        old, self._dense = self._dense, mmap.mmap(self._fd, size, offset=DENSE_AT)
        for view in (self.dense, self._dense_used, self._dense_bytes):
            view.release()
        self._dense_bytes = memoryview(self._dense)
        self._dense_used = self._dense_bytes.cast("q")
        self.dense = self._dense_bytes.cast("d")
        self._dense_capacity = size
        if old is not None:
            old.close()


def _rounded(size: int) -> int:
    step = mmap.PAGESIZE if size <= _STEP else _STEP
    return -(-size // step) * step


def _hold_lock(fd: int) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise


def locks_work(folder: Path) -> bool:
    """Whether files of a folder can be locked; a network file system may not know how."""
    path = folder / f".{secrets.token_hex(6)}.probe"
    try:
        with locked(path) as got:
            return got
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
