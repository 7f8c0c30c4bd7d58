"""The journal: what a kill leaves behind, and files that are none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flashgen.errors import OutputError
from flashgen.tune.identity import open_study
from flashgen.tune.storage import JournalLock, is_gone, open_storage, this_process
from tests.tune.replay import small_space
from tests.tune.studies import IDENTITY, outcome_of


def some_trials(path: Path, count: int) -> None:
    study, _ = open_study(IDENTITY, small_space(), path, seed=0)
    for _ in range(count):
        asked = study.ask()
        assert asked is not None
        study.tell(*asked, outcome_of(asked[1]))


@pytest.mark.case("tuner-17")
def test_a_line_that_a_kill_cut_short_is_dropped_and_the_rest_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    some_trials(path, 5)
    path.write_bytes(path.read_bytes()[:-7])
    study, notes = open_study(IDENTITY, small_space(), path, seed=0)
    assert any("cut short" in note for note in notes)
    assert len(study.records()) == 4
    some_trials(path, 3)  # what follows is readable: Optuna alone would refuse it
    assert len(open_study(IDENTITY, small_space(), path, seed=0)[0].records()) == 7


def test_a_sound_journal_gives_no_note_of_repair(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    some_trials(path, 1)
    before = path.read_bytes()
    assert open_storage(path)[1] == ()
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["schema: 1\n", "not a journal", '{"some": "json"}\n', "[1]\n"])
def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "forward.yaml"
    path.write_text(text)
    with pytest.raises(OutputError, match=r"forward\.yaml: line 1 is no line of a study's journal"):
        open_storage(path)
    assert path.read_text() == text


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        open_storage(tmp_path / "file" / "study.journal")
    with pytest.raises(OutputError, match="is a URL"):
        open_storage(Path("sqlite:///study.db"))


def test_a_killed_holder_leaves_no_lock_behind(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    hold = (
        "import sys, time, pathlib; from flashgen.tune.storage import JournalLock\n"
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
    host, pid, started = this_process().split("/")
    assert not is_gone(this_process())
    assert is_gone(f"{host}/{pid}/{int(started) - 1}")  # the pid is in use again
    assert is_gone(f"{host}/{2**22 + 1}/{started}")
    assert not is_gone(f"elsewhere/{pid}/{started}")
