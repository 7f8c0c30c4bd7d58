"""Candidates that crash, hang or lie, in the process that is made for them: nothing is lost, and the right one wins."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from flashgen.compiler.load import load_source
from flashgen.config import KernelConfig
from flashgen.outcome import Proof, Reason, Rejected, Resources
from flashgen.tune import measured
from flashgen.tune.evaluate import Evaluated, Fallen, Gate
from flashgen.tune.gpu_worker import GpuWorker
from flashgen.tune.identity import new_study
from flashgen.tune.measured import MeasuredStages
from flashgen.tune.progress import Silent
from flashgen.tune.search import Limits, search
from flashgen.tune.settle import Settled, settle
from flashgen.tune.space import Space
from flashgen.tune.stages import Candidate, Compiled
from flashgen.verify.reference import Scoring, reference
from tests.tune.faulty_gpu import TIMED, planted, server
from tests.tune.replay import H200, config, plain_resources, spec_of

SPEC = spec_of("fp16", 16)
_SILENCE_S = 10.0  # a probe takes tenths of a second here


class Watched(GpuWorker):
    """A worker on the CPU that counts the processes it began."""

    def __init__(self) -> None:
        super().__init__(0, 0, program="tests.tune.faulty_gpu", interpret=True, silence_s=_SILENCE_S)
        self.started = 0

    def _begin(self) -> None:
        self.started += 1
        super()._begin()


class InThisProcess(GpuWorker):
    """What a worker does, without a process of its own."""

    def __init__(self) -> None:
        super().__init__(0, 0)
        self._server = server(lambda doing: None)
        self._server.answer({"ask": "open", "index": 0, "l2_bytes": 0})

    def start(self) -> None:
        pass

    def ask(self, request: dict[str, Any], silence_s: float) -> dict[str, Any] | Rejected:
        reply = self._server.answer(json.loads(json.dumps(request)))
        if "rejected" in reply:
            return Rejected(reason=reply["rejected"]["reason"], detail=reply["rejected"]["detail"])
        return reply


class Stages(MeasuredStages):
    """Proves and times in a process; nothing is compiled before."""

    def __init__(self, worker: GpuWorker) -> None:
        super().__init__(H200, 0, (TIMED,), jobs=1, seed=3, worker=worker)

    def compile(self, candidates: Sequence[Candidate]) -> Iterator[tuple[int, Resources | Rejected]]:
        return iter([(index, plain_resources(candidate)) for index, candidate in enumerate(candidates)])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def worker() -> Iterator[Watched]:
    with Watched() as worker:
        yield worker


US = {"slow": 104.0, "fast": 98.0, "dies in the finals": 97.0}  # whatever else is wrong says that it is the fastest


def configs(count: int) -> list[KernelConfig]:
    return [config(m, n, 4, 1) for m in (16, 32, 64) for n in (16, 32, 64, 128)][:count]


def plant(monkeypatch: pytest.MonkeyPatch, faults: Sequence[str]) -> dict[str, KernelConfig]:
    """A config with each fault; what is no fault is the name of a sound one."""
    named = dict(zip(faults, configs(len(faults))))
    us = {each: US.get(fault, 96.0) for fault, each in named.items()}
    monkeypatch.setattr(measured, "unit_of", planted(us, {each: fault for fault, each in named.items()}))
    return named


def searched(stages: Stages, space: Sequence[KernelConfig]) -> dict[KernelConfig, Evaluated | Fallen]:
    study = new_study(SPEC, Space(configs=tuple(space)), 0)
    study.enqueue(space)
    assert not search(study, stages, H200, Limits(trials=len(space), batch=2), Silent())
    return {record.config: record.outcome for record in study.records()}


def settled(outcomes: dict[KernelConfig, Evaluated | Fallen], stages: Stages) -> Settled:
    return settle((each for each in outcomes.values() if isinstance(each, Evaluated)), stages, [TIMED])


FELL = {
    "unwritten half": (Gate.PROVE, Reason.INEXACT, "are NaN in one of result and reference only"),
    "unwritten": (Gate.PROVE, Reason.INEXACT, "are NaN in one of result and reference only"),
    "accumulates": (Gate.PROVE, Reason.INEXACT, "are NaN in one of result and reference only"),
    "race": (Gate.PROVE, Reason.INEXACT, "two runs differ"),
    "out of memory": (Gate.TIME, Reason.LAUNCH, "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB."),
    "segfault": (Gate.TIME, Reason.CRASHED, "the process ended by SIGSEGV in the short timing"),
    "hang": (Gate.TIME, Reason.TIMEOUT, "no answer in 10 s in the short timing"),
    "exit": (Gate.TIME, Reason.CRASHED, "by exit code 1 in the short timing; stderr ends: ptxas fatal: so it ends"),
    "illegal access": (Gate.TIME, Reason.CRASHED, "an illegal memory access was encountered"),
}
TAKE_THE_PROCESS = ("segfault", "exit", "illegal access")


@pytest.mark.case("tuner-22")
def test_every_fault_is_named_and_the_best_sound_candidate_wins(
    worker: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = plant(monkeypatch, ["slow", "dies in the finals", *FELL, "fast"])
    stages = Stages(worker)
    outcomes = searched(stages, list(named.values()))
    assert set(outcomes) == set(named.values())
    for fault, (gate, reason, detail) in FELL.items():
        fallen = outcomes[named[fault]]
        assert isinstance(fallen, Fallen), fault
        assert (fallen.gate, fallen.rejected.reason) == (gate, reason)
        assert detail in fallen.rejected.detail
    assert worker.started == 1 + len(TAKE_THE_PROCESS) + 1  # and the one that hung
    found = settled(outcomes, stages)
    assert found.winners == (named["fast"],)
    ((dead, fallen),) = found.fell
    assert (dead, fallen.gate, fallen.rejected.reason) == (named["dies in the finals"], Gate.TIME, Reason.CRASHED)
    assert "SIGSEGV in the final timing of b1-h2-q48-k48" in fallen.rejected.detail
    about_the_gpu, spent = stages.notes()
    assert about_the_gpu == "device 0 is a CPU"
    assert re.fullmatch(r"\d+ s waiting for compilers, \d+ s proving, \d+ s timing", spent)

    # What took a process along is known, and takes none in the next run; what only fell is tried again.
    before = worker.started
    again = {name: named[name] for name in ("slow", "dies in the finals", "race", *TAKE_THE_PROCESS, "fast")}
    outcomes = searched(stages, list(again.values()))
    for fault in (*TAKE_THE_PROCESS, "dies in the finals"):
        fallen = outcomes[named[fault]]
        assert isinstance(fallen, Fallen)
        assert fallen.rejected.reason is Reason.CRASHED
        assert "known from before; `flashgen tune --force` tries it again" in fallen.rejected.detail
    race = outcomes[named["race"]]
    assert isinstance(race, Fallen)
    assert "known from before" not in race.rejected.detail
    assert settled(outcomes, stages).winners == (named["fast"],)
    assert worker.started == before


@pytest.mark.case("tuner-01")
@pytest.mark.parametrize("order", [1, -1])
def test_what_an_earlier_candidate_wrote_hides_nothing(
    order: int, worker: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both work on the same tensors when they are timed, and on tensors of the same sizes when they are proven."""
    named = plant(monkeypatch, ["fast", "unwritten half"])
    stages = Stages(worker)
    for name, each in list(named.items())[::order]:
        candidate = Candidate(SPEC, each)
        assert isinstance(stages.prove(candidate), Proof if name == "fast" else Rejected)
        assert isinstance(
            stages.glance(Compiled(candidate=candidate, resources=plain_resources(candidate)), 1e9), tuple
        )
    outcomes = searched(stages, list(named.values())[::order])
    assert settled(outcomes, stages).winners == (named["fast"],)


@pytest.mark.case("tuner-02")
def test_padding_may_stay_unwritten_and_the_output_may_not(worker: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile of 64 columns over a head of 40, in rows that are further apart than they are long: what lies between
    keeps the NaN that it held."""
    spec = spec_of("fp16", 40)
    named = plant(monkeypatch, ["fast", "unwritten half"])
    stages = Stages(worker)
    assert isinstance(stages.prove(Candidate(spec, named["fast"])), Proof)
    found = stages.prove(Candidate(spec, named["unwritten half"]))
    assert isinstance(found, Rejected)
    assert found.reason is Reason.INEXACT


@pytest.mark.case("tuner-04")
def test_a_kernel_that_was_tuned_gives_the_same_answer_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process, after it was proven and timed on tensors that were used again and again."""
    import torch

    named = plant(monkeypatch, ["fast", "accumulates"])
    stages = Stages(InThisProcess())
    outcomes = searched(stages, list(named.values()))
    assert settled(outcomes, stages).winners == (named["fast"],)
    module = load_source(measured.unit_of(SPEC, named["fast"]).source)
    assert next(module.timed_launches) > 5
    q, k, v = (torch.randn(2, 33, 2, 16, dtype=torch.float16) for _ in range(3))
    expected, _ = reference(*(x.transpose(1, 2) for x in (q, k, v)), Scoring(scale=0.25))
    assert torch.allclose(module.flash_attention(q, k, v).double(), expected.transpose(1, 2), atol=2e-3)
