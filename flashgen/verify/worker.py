"""Proofs in a process of their own: Triton's interpreter needs one, and a kernel that crashes takes only that one."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import flashgen
from flashgen.errors import FlashgenError
from flashgen.hardware.detect import interpreter_is_forced
from flashgen.outcome import Proof, Reason, Rejected
from flashgen.spec import AttentionSpec, Dtype

RULE_TIMEOUT_S = 900.0  # one rule by a whole suite: seconds on a GPU, a minute or two for small tiles interpreted


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One proof: `rule` counts through the module's tuned rules, then its portable ones.

    `spec` None is the rule's own. bf16 is shown in fp16 where it is interpreted, and the Proof says so.
    """

    source: str
    dtype: Dtype
    seed: int
    spec: AttentionSpec | None = None
    rule: int = 0
    suite: str = "quick"
    stop_at_failure: bool = False


class Worker:
    """A process that proves one job after another; after a crash or a timeout the next job gets a fresh one.

    `interpret` runs kernels in Triton's interpreter on the CPU, else on the first GPU.
    """

    def __init__(self, *, interpret: bool) -> None:
        self.interpret = interpret
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - __exit__ closes it
        self._probe: str | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
        self._stderr.close()

    def close(self) -> None:
        """Ends the process; the next job starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def prove(self, job: Job, timeout_s: float) -> Proof | Rejected:
        """The job's outcome; Rejected as TIMEOUT or CRASHED, naming the probe, if the process does not answer.

        Raises:
            FlashgenError: the source cannot be imported, or the prover itself failed.
        """
        dtype = "fp16" if self.interpret and job.dtype == "bf16" else job.dtype
        reply = self._ask({"ask": "proof", **asdict(job), "dtype": dtype}, timeout_s)
        if isinstance(reply, Rejected):
            return reply
        if (proof := reply.get("proof")) is not None:
            return Proof(**proof | {"dtypes": tuple(proof["dtypes"])})
        rejected = Rejected(reason=Reason(reply["rejected"]["reason"]), detail=reply["rejected"]["detail"])
        if rejected.reason is Reason.CRASHED:  # the GPU's context is gone with it
            self.close()
        return rejected

    def rules(self, source: str, timeout_s: float) -> list[dict[str, Any]]:
        """The rules of an emitted module, as serve.describe_rules gives them.

        Raises:
            FlashgenError: the source cannot be imported, or is no emitted module.
        """
        reply = self._ask({"ask": "rules", "source": source}, timeout_s)
        if isinstance(reply, Rejected):
            raise FlashgenError(f"the module could not be loaded: {reply.detail}")
        rules: list[dict[str, Any]] = reply["rules"]
        return rules

    def _ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any] | Rejected:
        deadline, self._probe = time.monotonic() + timeout_s, None
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            reply = self._reply(process.stdout.fileno(), deadline)
        except (EOFError, BrokenPipeError):
            return self._crashed(process)
        except TimeoutError:
            self.close()
            return Rejected(reason=Reason.TIMEOUT, detail=f"no answer in {timeout_s:.0f} s{self._where()}")
        if "error" in reply:
            raise FlashgenError(f"the proof could not be run: {reply['error']}") from RuntimeError(reply["traceback"])
        return reply

    def _start(self) -> subprocess.Popen[bytes]:
        root = str(Path(flashgen.__file__).parents[1])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        environment.pop("TRITON_INTERPRET", None)
        if self.interpret:
            # One thread a process: several interpret at once, and their tiles are too small to share.
            environment = {"OMP_NUM_THREADS": "1"} | environment | {"TRITON_INTERPRET": "1"}
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "flashgen.verify.serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
        )

    def _reply(self, pipe: int, deadline: float) -> dict[str, Any]:
        """The next line that is a reply; lines that name a probe are noted on the way."""
        buffered = b""
        while True:
            while b"\n" not in buffered:
                if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                    raise TimeoutError
                if not (chunk := os.read(pipe, 65536)):
                    raise EOFError
                buffered += chunk
            line, buffered = buffered.split(b"\n", 1)
            reply: dict[str, Any] = json.loads(line)
            if "probe" not in reply:
                return reply
            self._probe = reply["probe"]

    def _crashed(self, process: subprocess.Popen[bytes]) -> Rejected:
        code = process.wait()
        self.close()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._stderr.seek(0)
        last = [line.strip() for line in self._stderr.read().decode(errors="replace").splitlines() if line.strip()][-3:]
        self._stderr.seek(0)
        self._stderr.truncate()
        said = f"; stderr ends: {' | '.join(last)[-240:]}" if last else ""
        return Rejected(reason=Reason.CRASHED, detail=f"the process ended by {how}{self._where()}{said}")

    def _where(self) -> str:
        return f" in probe {self._probe!r}" if self._probe else ""


def prove_in_interpreter(
    source: str, spec: AttentionSpec, seed: int, timeout_s: float, *, rule: int = 0, stop_at_failure: bool = False
) -> Proof | Rejected:
    """Proves one rule of an emitted module by the quick suite in Triton's interpreter; see Worker for many."""
    job = Job(source=source, spec=spec, dtype=spec.dtype, seed=seed, rule=rule, stop_at_failure=stop_at_failure)
    with Worker(interpret=True) as worker:
        return worker.prove(job, timeout_s)


def prove_module(path: Path, full: bool, seed: int = 0) -> list[tuple[str, Proof | Rejected]]:
    """(rule in words, outcome) of the rules of an emitted file; see prove_module_rules."""
    return list(prove_module_rules(path, full, seed))


def prove_module_rules(path: Path, full: bool, seed: int = 0) -> Iterator[tuple[str, Proof | Rejected]]:
    """(rule in words, outcome), as each is done: by the full suite on the GPU, else by the quick one interpreted.

    Without `full`, the rules that this device runs, and interpreted one rule a kernel and head dim: tiles that differ
    only in size share their lines.

    Raises:
        FlashgenError: the file cannot be read or imported, or is no emitted module.
    """
    try:
        source = path.read_text()
    except OSError as error:
        raise FlashgenError(f"{path} cannot be read ({error.strerror}); give the path of an emitted module") from error
    interpret = not _has_gpu()
    suite = "quick" if interpret else "full"
    with Worker(interpret=interpret) as worker:
        rules = list(enumerate(worker.rules(source, RULE_TIMEOUT_S)))
        for index, rule in rules if full else _preferred(rules, interpret):
            for dtype in dict.fromkeys("fp16" if interpret and dtype == "bf16" else dtype for dtype in rule["dtypes"]):
                job = Job(source=source, dtype=dtype, seed=seed, rule=index, suite=suite)
                yield f"{rule['name']}, {dtype}", worker.prove(job, RULE_TIMEOUT_S)


def _preferred(rules: list[tuple[int, dict[str, Any]]], interpret: bool) -> list[tuple[int, dict[str, Any]]]:
    own = [(index, rule) for index, rule in rules if rule["own"]]
    return list({rule["kernel"]: (index, rule) for index, rule in reversed(own)}.values())[::-1] if interpret else own


def _has_gpu() -> bool:
    """Whether kernels can run compiled; asks without initialising a GPU in this process."""
    import torch

    return torch.cuda.is_available() and not interpreter_is_forced()
