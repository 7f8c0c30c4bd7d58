"""Where a study is kept: a journal file that survives kills and may be shared, or memory."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashgen.errors import OutputError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage


class JournalLock:
    """Optuna's lock protocol over flock: the kernel releases it when its holder is killed, so none is ever stale."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(f"{path.name}.lock")
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        self._descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o644)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> JournalLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def open_storage(path: Path | None) -> tuple[BaseStorage, tuple[str, ...]]:
    """Optuna's storage on `path` (in memory if None), and notes about what had to be repaired.

    Raises:
        OutputError: `path` cannot be written, or is a file of another kind.
    """
    from optuna.storages import InMemoryStorage, JournalStorage
    from optuna.storages.journal import JournalFileBackend

    if path is None:
        return InMemoryStorage(), ()
    if re.match(r"[a-z][a-z0-9+.-]+:/", str(path)):  # a Path holds one slash where a URL has two
        raise OutputError(
            f"storage {str(path)!r} is a URL; a study is kept in a file: give a path such as study.journal"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = JournalLock(path)
        with lock:
            notes = _repair(path)
        lock_protocol: Any = lock
        return JournalStorage(JournalFileBackend(str(path), lock_obj=lock_protocol)), notes
    except OSError as error:
        raise OutputError(f"storage {path}: cannot be written: {error.strerror or error}") from error


def _repair(path: Path) -> tuple[str, ...]:
    """Cuts off a last line that its writer was killed in the middle of: Optuna would refuse all that follows it."""
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


def this_process() -> str:
    """A name for this process that no other one has had: `host/pid/start time`."""
    return f"{socket.gethostname()}/{os.getpid()}/{_start_time(os.getpid())}"


def is_gone(process: str) -> bool:
    """Whether a process that `this_process` named has surely ended. Of another host's processes nothing is known."""
    host, _, rest = process.rpartition("/")[0].rpartition("/")
    if host != socket.gethostname() or not rest.isdigit():
        return False
    return _start_time(int(rest)) != process.rpartition("/")[2]


def _start_time(pid: int) -> str:
    """Clock ticks after boot at which a process started, or `` if there is none: pids alone are used again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The second field is the program's name in parentheses, and may hold spaces; the start time is the 22nd.
    return stat.rpartition(")")[2].split()[19]
