from __future__ import annotations

import sys
import time
from pathlib import Path

from tuners.process import events_of, run

WRITES = """
import sys, time
from pathlib import Path
from tuners.timeline import Recorder
record = Recorder(Path(sys.argv[1]))
record.tried("a", 100.0)
"""


def program(folder: Path, then: str) -> list[str]:
    return [sys.executable, "-c", WRITES + then, str(events_of(folder))]


def test_what_ends_by_itself_says_how(tmp_path: Path) -> None:
    ran = run(program(tmp_path, 'record.answer("a"); record.ended("finished")'), tmp_path, 60.0)
    assert ran.ended == "finished"
    assert [event.kind for event in ran.events] == ["tried", "answer"]
    assert 0 <= (ran.events[0].s or -1) <= ran.wall_s < 60


def test_what_does_not_end_is_stopped_with_all_that_it_started_and_keeps_what_it_did(tmp_path: Path) -> None:
    child = """
import subprocess
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
record.answer(str(child.pid))
time.sleep(600)
"""
    began = time.monotonic()
    ran = run(program(tmp_path, child), tmp_path, 3.0)
    assert time.monotonic() - began < 60
    assert ran.ended == "stopped at 3 s"
    assert [event.config for event in ran.events][:1] == ["a"]
    assert not is_alive(int(ran.events[1].config or ""))


def is_alive(pid: int) -> bool:
    """Whether there is more of it than an exit code that nobody has asked for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_ends_without_a_word_is_told_by_its_last_line(tmp_path: Path) -> None:
    ran = run(program(tmp_path, "sys.exit('no such GPU')"), tmp_path, 60.0)
    assert ran.ended == "exit code 1: no such GPU"
    assert len(ran.events) == 1


def test_caches_are_cold_unless_given(tmp_path: Path) -> None:
    show = "import os; record.answer(os.environ['TRITON_CACHE_DIR'])"
    first = run(program(tmp_path / "a", show), tmp_path / "a", 60.0)
    second = run(program(tmp_path / "b", show), tmp_path / "b", 60.0)
    again = run(program(tmp_path / "c", show), tmp_path / "c", 60.0, tmp_path / "a" / "caches")
    assert first.events[-1].config == again.events[-1].config != second.events[-1].config
