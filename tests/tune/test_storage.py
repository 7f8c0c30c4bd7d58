"""Where studies are kept: what a kill or a full disk leaves in a journal, places that are none, and missing drivers."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flashgen.errors import OutputError
from flashgen.tune.journal import JournalLock
from flashgen.tune.owner import has_ended, this_process
from flashgen.tune.storage import open_storage
from tests.tune.studies import Work, opened, outcome_of


def some_trials(path: Path, count: int) -> None:
    with opened(path) as (study, _):
        for _ in range(count):
            asked = study.ask()
            assert asked is not None
            study.tell(*asked, outcome_of(asked[1]))


def tried(path: Path) -> list[str]:
    with opened(path) as (study, _):
        return [record.config.key for record in study.records()]


def last_trial(path: Path) -> int:
    """The byte at which the last line that ends a trial begins."""
    data = path.read_bytes()
    return data.rindex(b"\n", 0, data.rindex(b'{"op_code":6')) + 1


@pytest.mark.case("tuner-17")
def test_a_line_that_a_kill_cut_short_is_dropped_and_the_rest_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    some_trials(path, 5)
    path.write_bytes(path.read_bytes()[: last_trial(path) + 20])
    with opened(path) as (study, notes):
        assert any("cut short" in note for note in notes)
        assert len(study.records()) == 4
    some_trials(path, 3)  # what follows is readable: Optuna alone would refuse it
    assert len(tried(path)) == 7


def test_what_another_process_left_of_a_line_is_no_harm_to_one_that_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    with opened(path) as (study, _):
        for _ in range(3):
            with path.open("ab") as file:
                file.write(b'{"op_code":8,"worker_id":"a killed on')
            asked = study.ask()
            assert asked is not None
            study.tell(*asked, outcome_of(asked[1]))
        assert len(study.records()) == 3
    assert len(tried(path)) == 3


def test_a_sound_journal_gives_no_note_of_repair(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    some_trials(path, 1)
    before = path.read_bytes()
    with open_storage(path) as storage:
        assert storage.notes == ()
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["schema: 1\n", "not a journal", '{"some": "json"}\n', "[1]\n"])
def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "forward.yaml"
    path.write_text(text)
    with pytest.raises(OutputError, match=r"forward\.yaml: line 1 is no line of a study's journal"), open_storage(path):
        pass
    assert path.read_text() == text


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "study.journal"
    with pytest.raises(OutputError, match=f"storage {path}: cannot be written"), open_storage(path):
        pass


@pytest.mark.parametrize("full_at", [6_000, 14_001])
def test_a_full_disk_ends_the_search_and_keeps_what_was_recorded(tmp_path: Path, full_at: int) -> None:
    """A limit on the size of a file stands for the disk's: a line that crosses it is written in part here too."""
    path = tmp_path / "study.journal"
    process = Work(str(path)).start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (full_at, full_at)))
    said, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert error.startswith(f"OutputError: storage {path}: cannot be written: File too large; what was recorded")
    assert "next: make room" in error
    assert path.read_bytes().endswith(b"\n")
    assert tried(path) == said.split()
    some_trials(path, 48 - len(said.split()))
    assert len(set(tried(path))) == 48


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_journal_that_may_only_be_read_is_left_alone() -> None:
    with tempfile.TemporaryDirectory(prefix="flashgen-", dir="/tmp") as directory:
        path = Path(directory) / "study.journal"
        some_trials(path, 3)
        before = path.read_bytes()
        for each, mode in ((path, 0o444), (Path(f"{path}.lock"), 0o444), (Path(directory), 0o555)):
            each.chmod(mode)
        message = (
            "cannot be written: Permission denied; what was recorded before is kept\n  next: make room, or see who"
        )
        with unprivileged(), pytest.raises(OutputError, match=message), opened(path):
            pass
        Path(directory).chmod(0o755)
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("sqlite:///study.db", "'database is locked'; give a journal file, such as study.journal"),
        ("sqlite+pysqlite:///study.db", "'database is locked'"),
        ("mysql://me:secret@db/study", r"mysql://me:\*\*\*@db/study': mysql:// is neither postgresql:// nor grpc://"),
        ("grpc://tuner", "names no host and port; such as grpc://tuner:13000"),
        ("grpc://127.0.0.1:1", "no server answered within .*run_grpc_proxy_server"),
        (
            "postgresql://me:secret@127.0.0.1:1/x",
            r"storage postgresql://me:\*\*\*@127.0.0.1:1/x: cannot be used",
        ),
    ],
)
def test_urls_that_are_no_place_for_a_study(where: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashgen.tune.storage._CONNECT_S", 0.2)
    with pytest.raises(OutputError, match=f"(?s){message}") as caught, open_storage(where):
        pass
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("where", "package", "extra"),
    [("postgresql://db/study", "psycopg", "postgresql"), ("grpc://tuner:13000", "grpc", "grpc")],
)
def test_a_missing_driver_is_named_with_what_installs_it(
    where: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with (
        pytest.raises(OutputError, match=rf"not installed\n  next: pip install 'flashgen\[{extra}\]'"),
        open_storage(where),
    ):
        pass


def test_a_killed_holder_leaves_no_lock_behind(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    hold = (
        "import sys, time, pathlib; from flashgen.tune.journal import JournalLock\n"
        "JournalLock(pathlib.Path(sys.argv[1])).acquire(); print('held', flush=True); time.sleep(60)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", hold, str(path)], stdout=subprocess.PIPE, env=environment) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        holder.kill()
        holder.wait()
    with JournalLock(path):
        pass


def test_this_process_lives_and_those_that_ended_are_gone() -> None:
    machine, pid, started = this_process().split("/")
    assert has_ended(this_process()) is False
    assert has_ended(f"{machine}/{pid}/{int(started) - 1}")  # the pid is in use again
    assert has_ended(f"{machine}/{2**22 + 1}/{started}")
    assert has_ended(f"elsewhere/{pid}/{started}") is None


def test_a_process_that_was_killed_has_ended_before_anyone_waits_for_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        machine = this_process().split("/")[0]
        stat = Path(f"/proc/{process.pid}/stat").read_text()
        name = f"{machine}/{process.pid}/{stat.rpartition(')')[2].split()[19]}"
        assert has_ended(name) is False
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # leaves it a zombie
        assert has_ended(name)
