"""A process of its own for what may crash or hang: whoever asks gets an answer, or is told how the process ended."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import flashgen
from flashgen.errors import FlashgenError
from flashgen.outcome import Reason, Rejected

START_S = 300.0  # torch, triton and a CUDA context: ten seconds, or minutes on a machine that swaps
_END_S = 60.0  # a killed process goes at once, unless the driver holds it

# Nothing that a candidate does ends its process by these: the kernel out of memory does, or a person.
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class WorkerProcess:
    """`python -m program`, a program that serving.serve runs, asked one thing after another.

    One that crashed, fell silent or lost its GPU context is replaced when the next thing is asked. With `interpret`,
    kernels run in Triton's interpreter. `first` is what every new process is asked before anything else.
    """

    def __init__(self, program: str, *, interpret: bool = False, first: dict[str, Any] | None = None) -> None:
        self.interpret = interpret
        self._program, self._first = program, first
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - __exit__ closes it
        self._doing, self._begun = "", False
        self._is_open = False  # whether the process has answered the first request

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
        self._stderr.close()

    def close(self) -> None:
        """Ends the process, if there is one.

        Raises:
            FlashgenError: it does not end, which only a driver can bring about.
        """
        process, self._process, self._is_open = self._process, None, False
        if process is None:
            return
        process.kill()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired as error:
            raise FlashgenError(
                f"process {process.pid} was killed and did not end in {_END_S:.0f} s: the GPU's driver holds it\n"
                "  next: `nvidia-smi` and the kernel's log say more; the GPU may need a reset"
            ) from error
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # of a request that it did not live to read
                    pipe.close()

    def ask(self, request: dict[str, Any], silence_s: float) -> dict[str, Any] | Rejected:
        """The reply; what the program rejected, or Rejected as CRASHED, KILLED or TIMEOUT, naming what it was doing.

        TIMEOUT is `silence_s` seconds without a word: a program says what it does as it goes on.

        Raises:
            FlashgenError: the program itself failed, or cannot start.
        """
        self.start()  # one that died unasked is not this request's
        kept = self._is_open
        self._open()
        found = self._exchange(request, silence_s)
        if kept and not self._begun and self._process is None:  # nor is one that was dying, and never read it
            self.start()
            self._open()
            found = self._exchange(request, silence_s)
        return found

    def start(self) -> None:
        """Begins the process if there is none, and does not wait for what it imports."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._begin()

    def _begin(self) -> None:
        root = str(Path(flashgen.__file__).parents[1])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        environment.pop("TRITON_INTERPRET", None)
        if self.interpret:
            # One thread a process: several interpret at once, and their tiles are too small to share.
            environment = {"OMP_NUM_THREADS": "1"} | environment | {"TRITON_INTERPRET": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", self._program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the process that asks: it may have more to ask
        )
        if self._first is not None:
            with suppress(BrokenPipeError):  # one that ended already is asked nothing: _open finds out
                self._send(self._process, self._first)

    def _open(self) -> None:
        """Waits for the answer to the first request, which tells a machine that is unfit from a candidate that is."""
        if not self._is_open and self._first is not None:
            self._doing = ""
            try:
                refused = self._received(START_S)
            except FlashgenError as error:
                self.close()
                raise FlashgenError(f"{error}\n  next: `flashgen doctor`") from error
            if isinstance(refused, Rejected):
                raise FlashgenError(f"{self._program} does not start: {refused.detail}\n  next: `flashgen doctor`")
        self._is_open = True

    def _exchange(self, request: dict[str, Any], silence_s: float) -> dict[str, Any] | Rejected:
        process = self._process
        assert process is not None
        self._doing, self._begun = "", False
        self._said()  # what was said before is not about this request
        try:
            self._send(process, request)
        except BrokenPipeError:
            return self._ended(process)
        except BaseException:  # an interrupt: half a request would spoil the next one
            self.close()
            raise
        return self._received(silence_s)

    def _send(self, process: subprocess.Popen[bytes], request: dict[str, Any]) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()

    def _received(self, silence_s: float) -> dict[str, Any] | Rejected:
        """The reply to the last request."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        try:
            reply = self._reply(process.stdout.fileno(), silence_s)
        except EOFError:
            return self._ended(process)
        except TimeoutError:
            self.close()
            detail = f"no answer in {silence_s:g} s{self._where()}{self._said()}"
            return Rejected(reason=Reason.TIMEOUT, detail=detail)
        except BaseException:  # an interrupt: the reply to this request must not be taken for the next one's
            self.close()
            raise
        if "error" in reply:
            raise FlashgenError(f"{self._program} failed: {reply['error']}") from RuntimeError(reply["traceback"])
        return self._rejected(reply["rejected"]) if "rejected" in reply else reply

    def _reply(self, pipe: int, silence_s: float) -> dict[str, Any]:
        """The next line that is a reply; lines that say what is being done are noted on the way."""
        deadline, buffered = time.monotonic() + silence_s, b""
        while True:
            while b"\n" not in buffered:
                if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                    raise TimeoutError
                if not (chunk := os.read(pipe, 65536)):
                    raise EOFError
                buffered += chunk
            line, buffered = buffered.split(b"\n", 1)
            reply: dict[str, Any] = json.loads(line)
            self._begun = True
            if "doing" not in reply:
                return reply
            self._doing, deadline = reply["doing"], time.monotonic() + silence_s

    def _rejected(self, held: dict[str, str]) -> Rejected:
        reason, detail = Reason(held["reason"]), held["detail"]
        if reason not in (Reason.CRASHED, Reason.KILLED):
            return Rejected(reason=reason, detail=detail)
        self.close()  # the GPU's context is gone
        return Rejected(reason=reason, detail=detail + self._said())

    def _ended(self, process: subprocess.Popen[bytes]) -> Rejected:
        code = process.wait()
        self.close()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        reason = Reason.KILLED if -code in _FROM_OUTSIDE else Reason.CRASHED
        return Rejected(reason=reason, detail=f"the process ended by {how}{self._where()}{self._said()}")

    def _where(self) -> str:
        return f" in {self._doing}" if self._doing else ""

    def _said(self) -> str:
        """The last lines on the process's stderr since this was asked last."""
        self._stderr.seek(0)
        last = [line.strip() for line in self._stderr.read().decode(errors="replace").splitlines() if line.strip()][-3:]
        self._stderr.seek(0)
        self._stderr.truncate()
        return f"; stderr ends: {' | '.join(last)[-240:]}" if last else ""
