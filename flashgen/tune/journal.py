"""Optuna's journal in a file: kept sound whenever a writer is killed, or the disk is full, in the middle of a line."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flashgen.errors import OutputError

_LONGEST_LINE = 1 << 16  # bytes; how far from the end the last whole line is sought first


class JournalLock:
    """Optuna's lock protocol over flock: the kernel releases it when its holder is killed, so none is ever stale."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(f"{path.name}.lock")
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._descriptor = descriptor  # once it is held: another thread may hold it until then
        return True

    def release(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that was forked meanwhile has it open too
            os.close(descriptor)

    def __enter__(self) -> JournalLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Journal:
    """Optuna's journal back-end on `path`. It reads as Optuna's own, and differs in what it appends to: what an earlier
    writer left of a line goes first, as no reader would get past it, and so does what it could not write whole itself.

    Raises:
        OSError: the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        from optuna.storages.journal import JournalFileBackend

        self._path, self._lock = path, JournalLock(path)
        lock: Any = self._lock
        self._reader = JournalFileBackend(str(path), lock_obj=lock)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        yield from self._reader.read_logs(log_number_from)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        with self._lock, self._path.open("r+b", buffering=0) as file:
            end = _end_of_lines(file.fileno())
            try:
                file.truncate(end)
                file.seek(end)
                _write_all(file.fileno(), lines)
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise


def repaired(path: Path) -> tuple[str, ...]:
    """Makes the journal at `path` end with a whole line, and says so if it did not.

    Raises:
        OutputError: the file is of another kind.
        OSError: it cannot be read or written.
    """
    with JournalLock(path):
        data = path.read_bytes() if path.exists() else b""
        *lines, rest = data.split(b"\n")
        for number, line in enumerate(lines, start=1):
            if not _is_entry(line):
                raise _foreign(path, number, line)
        if not rest:
            return ()
        if not lines and not rest.startswith(b"{"):
            raise _foreign(path, 1, rest)
        os.truncate(path, len(data) - len(rest))
    return (f"{path}: its last line was cut short by a kill; it was dropped, and what it recorded is done again",)


def _end_of_lines(file: int) -> int:
    """Bytes up to and with the last line end."""
    size, reach = os.fstat(file).st_size, _LONGEST_LINE
    while True:
        start = max(0, size - reach)
        found = os.pread(file, size - start, start).rfind(b"\n")
        if found >= 0 or start == 0:
            return start + found + 1
        reach *= 2


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _is_entry(line: bytes) -> bool:
    try:
        entry = json.loads(line)
    except ValueError:
        return False
    return isinstance(entry, dict) and "op_code" in entry


def _foreign(path: Path, number: int, line: bytes) -> OutputError:
    return OutputError(
        f"storage {path}: line {number} is no line of a study's journal: {line[:60]!r}; "
        "give another path, or move the file away"
    )
