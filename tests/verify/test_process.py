"""A process that may crash, hang or be killed: what whoever asks is told, and what is asked next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flashgen.errors import FlashgenError
from flashgen.outcome import Reason, Rejected
from flashgen.verify.process import WorkerProcess

PROGRAM = "tests.verify.does_as_told"
_PATIENCE_S = 60.0


@pytest.fixture
def process() -> Iterator[WorkerProcess]:
    with WorkerProcess(PROGRAM) as process:
        yield process


def do(process: WorkerProcess, *statements: str, silence_s: float = _PATIENCE_S) -> dict[str, Any] | Rejected:
    return process.ask({"do": "import os, sys, time\n" + "\n".join(statements)}, silence_s)


def rejected(found: dict[str, Any] | Rejected) -> Rejected:
    assert isinstance(found, Rejected), found
    return found


def pid(process: WorkerProcess) -> int:
    found = do(process, "reply = {'pid': os.getpid()}")
    assert isinstance(found, dict)
    return int(found["pid"])


def is_there(number: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{number}/status").read_text()
    except OSError:
        return False


def test_one_process_answers_request_after_request(process: WorkerProcess) -> None:
    do(process, "kept = 3")
    assert do(process, "reply = {'kept': kept}") == {"kept": 3}


def test_a_signal_is_named_with_what_was_done_and_the_end_of_stderr(process: WorkerProcess) -> None:
    do(process, "print('about an earlier request')")
    found = rejected(
        do(process, "say('probe 1')", "say('probe 2')", "os.write(2, b'so it ends')", "os.kill(os.getpid(), 11)")
    )
    assert found.reason is Reason.CRASHED
    assert found.detail == "the process ended by SIGSEGV in probe 2; stderr ends: so it ends"
    assert do(process, "reply = {'fresh': 'kept' not in globals()}") == {"fresh": True}


def test_an_exit_is_a_crash_too(process: WorkerProcess) -> None:
    found = rejected(do(process, "print('first\\nsecond', file=sys.stderr)", "sys.exit(1)"))
    assert (found.reason, found.detail) == (
        Reason.CRASHED,
        "the process ended by exit code 1; stderr ends: first | second",
    )


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_what_ends_it_from_outside_is_told_from_a_crash(process: WorkerProcess, how: signal.Signals) -> None:
    found = rejected(do(process, f"os.kill(os.getpid(), {int(how)})", "time.sleep(1000)"))
    assert found.reason is Reason.KILLED
    assert how.name in found.detail


def test_what_died_unasked_is_not_the_next_requests_fault(process: WorkerProcess) -> None:
    os.kill(old := pid(process), signal.SIGSEGV)
    while is_there(old):
        time.sleep(0.01)
    assert do(process, "reply = {'is': 'alive'}") == {"is": "alive"}


def test_what_was_dying_unasked_is_not_the_next_requests_fault_either(
    process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.kill(old := pid(process), signal.SIGSEGV)
    while is_there(old):
        time.sleep(0.01)
    # Its threads may outlive its first one: then it is not to be waited for yet.
    monkeypatch.setattr(process._process, "poll", lambda: None)
    assert do(process, "reply = {'is': 'alive'}") == {"is": "alive"}


def test_silence_is_a_timeout_and_words_are_not(process: WorkerProcess) -> None:
    talks = ["for n in range(8): say(f'step {n}'); time.sleep(0.25)", "reply = {'took': 'two seconds'}"]
    assert do(process, *talks, silence_s=1.5) == {"took": "two seconds"}
    old = pid(process)
    found = rejected(do(process, "say('step 9')", "time.sleep(1000)", silence_s=0.5))
    assert (found.reason, found.detail) == (Reason.TIMEOUT, "no answer in 0.5 s in step 9")
    assert not is_there(old)
    assert pid(process) != old


@pytest.mark.parametrize("reason", [Reason.CRASHED, Reason.KILLED])
def test_a_context_that_is_gone_costs_the_process(reason: Reason, process: WorkerProcess) -> None:
    old = pid(process)
    gone = {"rejected": {"reason": str(reason), "detail": "illegal memory access"}}
    found = rejected(do(process, "os.write(2, b'Assertion failed')", f"reply = {gone}"))
    assert found == Rejected(reason=reason, detail="illegal memory access; stderr ends: Assertion failed")
    assert pid(process) != old


def test_another_rejection_does_not(process: WorkerProcess) -> None:
    old = pid(process)
    short = {"rejected": {"reason": "launch", "detail": "out of memory"}}
    assert rejected(do(process, f"reply = {short}")) == Rejected(reason=Reason.LAUNCH, detail="out of memory")
    assert pid(process) == old


def test_an_error_of_the_program_is_raised_with_its_traceback(process: WorkerProcess) -> None:
    with pytest.raises(FlashgenError, match="ZeroDivisionError") as caught:
        do(process, "1 / 0")
    assert "does_as_told.py" in str(caught.value.__cause__)
    assert isinstance(do(process), dict)


def test_an_interrupt_while_it_waits_does_not_mix_up_replies(
    process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = pid(process)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("select.select", interrupt)
        with pytest.raises(KeyboardInterrupt):
            do(process, "reply = {'of': 'the first'}")
    assert do(process, "reply = {'of': 'the second'}") == {"of": "the second"}
    assert not is_there(old)


def test_the_first_request_precedes_all_others_in_every_process() -> None:
    with WorkerProcess(PROGRAM, first={"do": "opened = 1"}) as process:
        for _ in range(2):
            assert do(process, "reply = {'opened': opened}") == {"opened": 1}
            do(process, "import os; os._exit(1)")


def test_a_process_that_cannot_open_what_it_needs_is_no_candidates_fault() -> None:
    with (
        WorkerProcess(PROGRAM, first={"do": "import os; os.write(2, b'no device'); os._exit(1)"}) as process,
        pytest.raises(FlashgenError, match=r"does not start.*no device\n  next: `flashgen doctor`"),
    ):
        do(process)


def test_an_error_while_it_opens_says_what_to_do() -> None:
    with (
        WorkerProcess(PROGRAM, first={"do": "raise MemoryError('CUDA out of memory')"}) as process,
        pytest.raises(FlashgenError, match=r"CUDA out of memory\n  next: `flashgen doctor`"),
    ):
        do(process)


def test_ctrl_c_in_a_terminal_is_for_the_process_that_asks(process: WorkerProcess) -> None:
    assert os.getpgid(pid(process)) != os.getpgid(0)


HANGS = """
import sys
from flashgen.verify.process import WorkerProcess
process = WorkerProcess("tests.verify.does_as_told")
print(process.ask({"do": "import os; reply = {'pid': os.getpid()}"}, 60.0)["pid"], flush=True)
process.ask({"do": "import time; time.sleep(1000)"}, 60.0)
"""


def test_it_does_not_outlive_whoever_asked() -> None:
    """Though it hangs: a kernel that never ends would keep the GPU for itself."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    asking = subprocess.Popen([sys.executable, "-c", HANGS], env=environment, stdout=subprocess.PIPE, text=True)
    assert asking.stdout is not None
    hanging = int(asking.stdout.readline())
    assert is_there(hanging)
    asking.kill()
    asking.communicate()
    deadline = time.monotonic() + _PATIENCE_S
    while is_there(hanging) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_there(hanging)
