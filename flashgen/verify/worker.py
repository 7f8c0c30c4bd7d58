"""Proofs in a process of their own: Triton's interpreter needs one, and a kernel that crashes takes only that one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flashgen.errors import FlashgenError
from flashgen.hardware.detect import interpreter_is_forced
from flashgen.outcome import Proof, Rejected
from flashgen.spec import AttentionSpec, Dtype
from flashgen.verify.process import WorkerProcess

RULE_TIMEOUT_S = 900.0  # one probe: seconds, but the process's start and large tiles interpreted are slower


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


class Worker(WorkerProcess):
    """A process that proves one job after another.

    `interpret` runs kernels in Triton's interpreter on the CPU, else on the first GPU.
    """

    def __init__(
        self, *, interpret: bool, program: str = "flashgen.verify.serve", first: dict[str, Any] | None = None
    ) -> None:
        super().__init__(program, interpret=interpret, first=first)

    def prove(self, job: Job, silence_s: float) -> Proof | Rejected:
        """The job's outcome; TIMEOUT when one probe takes more than `silence_s` seconds.

        Raises:
            FlashgenError: the source cannot be imported, or the prover itself failed.
        """
        dtype = "fp16" if self.interpret and job.dtype == "bf16" else job.dtype
        reply = self.ask({"ask": "proof", **asdict(job), "dtype": dtype}, silence_s)
        if isinstance(reply, Rejected):
            return reply
        proof = reply["proof"]
        return Proof(**proof | {"dtypes": tuple(proof["dtypes"])})

    def rules(self, source: str, silence_s: float) -> list[dict[str, Any]]:
        """The rules of an emitted module, as rules.describe_rules gives them.

        Raises:
            FlashgenError: the source cannot be imported, or is no emitted module.
        """
        reply = self.ask({"ask": "rules", "source": source}, silence_s)
        if isinstance(reply, Rejected):
            raise FlashgenError(f"the module could not be loaded: {reply.detail}")
        rules: list[dict[str, Any]] = reply["rules"]
        return rules


def prove_in_interpreter(
    source: str, spec: AttentionSpec, seed: int, silence_s: float, *, rule: int = 0, stop_at_failure: bool = False
) -> Proof | Rejected:
    """Proves one rule of an emitted module by the quick suite in Triton's interpreter; see Worker for many."""
    job = Job(source=source, spec=spec, dtype=spec.dtype, seed=seed, rule=rule, stop_at_failure=stop_at_failure)
    with Worker(interpret=True) as worker:
        return worker.prove(job, silence_s)


def prove_module(path: Path, full: bool, seed: int = 0) -> list[tuple[str, Proof | Rejected]]:
    """(rule in words, outcome) of the rules of an emitted file; see prove_module_rules."""
    return list(prove_module_rules(path, full, seed))


def prove_module_rules(path: Path, full: bool, seed: int = 0) -> Iterator[tuple[str, Proof | Rejected]]:
    """(rule in words, outcome), as each is done: by the full suite on the GPU, else by the quick one interpreted.

    Without `full`, the rules that this device runs, and interpreted one rule a kernel and head dim: tiles that differ
    only in size share their lines. Kernels in Gluon are left out where Gluon does not run.

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
        able = [(index, rule) for index, rule in rules if rule["can_run"]]
        for index, rule in able if full else _preferred(able, interpret):
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
