"""Replacing a file whole or not at all: whatever fails, the previous one is still there, byte for byte."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from flashgen.errors import OutputError


def replace_file(path: Path, data: bytes, check: Callable[[Path], None]) -> None:
    """Writes `data` to a temporary name beside `path`, calls `check` on it, syncs it to disk and renames it.

    Missing directories are made. A link is followed, so that it stays one. An existing file keeps its mode.

    Raises:
        OutputError: the path cannot be written, with the system's reason.
        Exception: what `check` raises, after which nothing has changed either.
    """
    target = Path(os.path.realpath(path))
    try:
        _refuse_unwritable(path, target)
        target.parent.mkdir(parents=True, exist_ok=True)
        _write_and_rename(target, data, check)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}; nothing was changed") from error


def _refuse_unwritable(path: Path, target: Path) -> None:
    """A rename would replace a read-only file, whose mode says that its owner does not want that."""
    if target.is_dir():
        raise OutputError(f"{path}: cannot be written: it is a directory")
    if target.exists() and not os.access(target, os.W_OK):
        raise OutputError(f"{path}: cannot be written: it is read-only")


def _write_and_rename(target: Path, data: bytes, check: Callable[[Path], None]) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            check(temporary)
            if target.exists():
                os.chmod(temporary, target.stat().st_mode & 0o7777)
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(target.parent)


def _sync_directory(directory: Path) -> None:
    """Makes the rename itself durable, where the file system can; the file is whole either way."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
