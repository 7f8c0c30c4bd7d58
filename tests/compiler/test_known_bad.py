"""What is kept of candidates that crash or hang, and when it counts."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from flashgen.compiler import crosscompile
from flashgen.compiler.crosscompile import compile_units, unit_of
from flashgen.compiler.known_bad import bad_key, forget_bad, known_bad, note_bad
from flashgen.families import TlConfig
from flashgen.hardware.lookup import find_gpu
from flashgen.outcome import Reason, Rejected, Resources
from flashgen.spec import AttentionSpec

H200, H100, A100 = (find_gpu(name) for name in ("h200", "h100", "a100"))
UNIT = unit_of(
    AttentionSpec(dtype="bf16", head_dim=64, head_dim_v=64), TlConfig(BLOCK_M=64, BLOCK_N=32, num_warps=4, num_stages=1)
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    crosscompile._pool.cache_clear()  # its processes would keep the other cache
    return tmp_path


def ended(reason: Reason) -> Rejected:
    return Rejected(reason=reason, detail="as it was")


def test_a_crash_is_known_at_once_and_says_so() -> None:
    note_bad("key", ended(Reason.CRASHED))
    found = known_bad("key")
    assert found is not None
    assert found.reason is Reason.CRASHED
    assert found.detail == "as it was (known from before; `flashgen tune --force` tries it again)"
    assert known_bad("other") is None


@pytest.mark.parametrize("reason", [Reason.TIMEOUT, Reason.KILLED])
def test_what_a_busy_machine_may_do_must_happen_twice(reason: Reason) -> None:
    note_bad("key", ended(reason))
    assert known_bad("key") is None
    note_bad("key", ended(reason))
    found = known_bad("key")
    assert found is not None
    assert found.reason is reason


def test_a_timeout_and_a_kill_are_not_twice_the_same() -> None:
    note_bad("key", ended(Reason.TIMEOUT))
    note_bad("key", ended(Reason.KILLED))
    assert known_bad("key") is None


@pytest.mark.parametrize("reason", sorted(set(Reason) - {Reason.CRASHED, Reason.TIMEOUT, Reason.KILLED}))
def test_what_fell_without_harm_is_tried_again(reason: Reason, cache: Path) -> None:
    for _ in range(3):
        note_bad("key", ended(reason))
    assert known_bad("key") is None
    assert not list(cache.iterdir())


def test_everything_that_a_crash_may_depend_on_is_in_the_key() -> None:
    keys = [
        bad_key(UNIT.source, H200, "timing"),
        bad_key(UNIT.source, H200, "compile"),
        bad_key(UNIT.source, A100, "timing"),
        bad_key(UNIT.source + "\n", H200, "timing"),
    ]
    assert len(set(keys)) == len(keys)
    assert bad_key(UNIT.source, H100, "timing") == keys[0]  # of one architecture


def test_all_can_be_forgotten_and_a_spoilt_file_counts_for_nothing(cache: Path) -> None:
    forget_bad()
    for key in ("one", "two"):
        note_bad(key, ended(Reason.CRASHED))
    path = cache / "known-bad" / "one.json"
    whole = path.read_text()
    for length in range(len(whole)):
        path.write_text(whole[:length])
        assert known_bad("one") is None
    forget_bad()
    assert known_bad("two") is None


def test_a_crash_of_the_compiler_is_found_beside_others_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    crash = replace(UNIT, source="import os\nos.kill(os.getpid(), 11)\n", name="crashing")
    answers = dict(compile_units([crash, UNIT], A100, 2))
    assert answers[0] == Rejected(
        reason=Reason.CRASHED, detail="the compiler crashed on crashing, or took more than 180 s"
    )
    assert isinstance(answers[1], Resources)
    monkeypatch.setattr(crosscompile, "_submit", lambda *_: pytest.fail("a compiler was asked"))
    again = dict(compile_units([crash, UNIT], A100, 2))
    assert again[1] == answers[1]
    assert isinstance(again[0], Rejected)
    assert "known from before" in again[0].detail


def test_a_compiler_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crosscompile, "_LONGEST_S", 1)
    endless = replace(UNIT, source="import time\ntime.sleep(1000)\n", name="endless")
    ((_, answer),) = compile_units([endless], A100, 1)
    assert answer == Rejected(reason=Reason.CRASHED, detail="the compiler crashed on endless, or took more than 1 s")


def test_compilers_begin_before_anyone_asks_for_answers() -> None:
    answers = compile_units([UNIT], A100, 1)
    (pending,) = crosscompile._pool(1)._pending_work_items.values()
    assert isinstance(pending.future.result(), Resources)
    assert dict(answers) == {0: pending.future.result()}


def test_ctrl_c_does_not_reach_the_compilers() -> None:
    """A terminal sends it to all processes in it; the run that is interrupted may have more to compile."""
    assert isinstance(dict(compile_units([UNIT], A100, 1))[0], Resources)
    for compiler in crosscompile._pool(1)._processes.values():
        os.kill(compiler.pid, signal.SIGINT)
    assert isinstance(dict(compile_units([replace(UNIT, source=f"{UNIT.source}\n")], A100, 1))[0], Resources)
