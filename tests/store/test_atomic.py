"""Whatever fails while a file is written, the previous one stays, byte for byte, and nothing is left beside it."""

from __future__ import annotations

import builtins
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from flashgen.errors import OutputError, TunedConfigError
from flashgen.store import files
from flashgen.store.atomic import replace_file
from flashgen.store.entry import TunedEntry, TunedFile
from flashgen.store.files import read_tuned, write_tuned

ROOT = Path(__file__).parents[2]
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def accept(path: Path) -> None:
    """A check that lets everything through."""


def fails(*args: Any, **kwargs: Any) -> Any:
    raise FULL


class FullDisk:
    """A file whose write gets half of the data onto the disk."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.file.close()

    def write(self, data: bytes) -> int:
        self.file.write(data[: len(data) // 2])
        raise FULL


def break_write(monkeypatch: pytest.MonkeyPatch) -> None:
    really_open = builtins.open
    monkeypatch.setattr(
        builtins,
        "open",
        lambda name, mode="r", *args, **kwargs: (
            FullDisk(really_open(name, mode)) if mode == "xb" else really_open(name, mode, *args, **kwargs)
        ),
    )


BREAKS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "write": break_write,
    "fsync": lambda monkeypatch: monkeypatch.setattr(os, "fsync", fails),
    "chmod": lambda monkeypatch: monkeypatch.setattr(os, "chmod", fails),
    "replace": lambda monkeypatch: monkeypatch.setattr(os, "replace", fails),
    "read back": lambda monkeypatch: monkeypatch.setattr(files, "load", fails),
}


@pytest.mark.parametrize("step", BREAKS)
def test_a_failing_step_leaves_the_previous_file(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    make_entry: Callable[..., TunedEntry],
    make_file: Callable[..., TunedFile],
    step: str,
) -> None:
    path = tmp_path / "forward.yaml"
    write_tuned(path, make_file(make_entry()))
    before = path.read_bytes()
    with monkeypatch.context() as broken:
        BREAKS[step](broken)
        with pytest.raises(OutputError) as caught:
            write_tuned(path, make_file(make_entry(block_m=64)))
    assert str(caught.value) == f"{path}: cannot be written: No space left on device; nothing was changed"
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    write_tuned(path, make_file(make_entry(block_m=64)))
    assert path.read_bytes() != before


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interruption_leaves_the_previous_file(tmp_path: Path, interruption: type[BaseException]) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"before")

    def interrupt(written: Path) -> None:
        assert written.read_bytes() == b"after"
        raise interruption

    with pytest.raises(interruption):
        replace_file(path, b"after", interrupt)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_reads_back_wrong_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    make_entry: Callable[..., TunedEntry],
    make_file: Callable[..., TunedFile],
) -> None:
    path = tmp_path / "forward.yaml"
    other = make_file(make_entry(block_m=64))
    monkeypatch.setattr(files, "read_tuned", lambda written: other)
    with pytest.raises(OutputError, match="not written, as it would read back as something else"):
        write_tuned(path, make_file(make_entry()))

    def refuse(written: Path) -> TunedFile:
        raise TunedConfigError("f.yaml:3: gpu: odd")

    monkeypatch.setattr(files, "read_tuned", refuse)
    with pytest.raises(OutputError, match=r"not written, as it would not read back: f\.yaml:3: gpu: odd"):
        write_tuned(path, make_file(make_entry()))
    assert list(tmp_path.iterdir()) == []


def test_a_file_beyond_the_real_size_limit_leaves_the_previous_one(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"before")
    program = (
        "import resource, sys; from pathlib import Path; from flashgen.store.atomic import replace_file;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096));"
        "replace_file(Path(sys.argv[1]), b'x' * 100_000, lambda written: None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
        text=True,
    )
    assert "OutputError" in done.stderr
    assert "cannot be written: File too large; nothing was changed" in done.stderr
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_directories_are_made_and_a_file_in_their_place_is_named(tmp_path: Path) -> None:
    replace_file(tmp_path / "a" / "b" / "f.yaml", b"x", accept)
    assert (tmp_path / "a" / "b" / "f.yaml").read_bytes() == b"x"
    path = tmp_path / "a" / "b" / "f.yaml" / "g.yaml"
    with pytest.raises(OutputError, match=rf"^{path}: cannot be written: (Not a directory|File exists)"):
        replace_file(path, b"x", accept)
    with pytest.raises(OutputError, match=rf"^{tmp_path}/a: cannot be written: it is a directory$"):
        replace_file(tmp_path / "a", b"x", accept)


def test_a_read_only_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"before")
    path.chmod(0o444)
    monkeypatch.setattr(os, "access", lambda name, mode: False)  # as it is for all but root
    with pytest.raises(OutputError, match=r"f\.yaml: cannot be written: it is read-only"):
        replace_file(path, b"after", accept)
    assert path.read_bytes() == b"before"


def test_the_mode_and_a_link_are_kept(tmp_path: Path) -> None:
    path, link = tmp_path / "f.yaml", tmp_path / "link.yaml"
    path.write_bytes(b"before")
    path.chmod(0o640)
    link.symlink_to(path)
    replace_file(link, b"after", accept)
    assert link.is_symlink()
    assert path.read_bytes() == b"after"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_new_file_has_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    plain, made = tmp_path / "plain", tmp_path / "made"
    plain.write_bytes(b"x")
    replace_file(made, b"x", accept)
    assert made.stat().st_mode == plain.stat().st_mode


def test_a_directory_that_cannot_be_synced_does_not_undo_the_write(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    make_file: Callable[..., TunedFile],
) -> None:
    really_sync, path = os.fsync, tmp_path / "forward.yaml"

    def sync_files_only(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        really_sync(descriptor)

    monkeypatch.setattr(os, "fsync", sync_files_only)
    write_tuned(path, make_file())
    assert read_tuned(path) == make_file()
