"""The tuners themselves. As a program it runs one of them, in a process that ends with it:

python -m tuners.methods NAME --events FILE --limit-s SECONDS
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from exhaustive import RESTRICTED, SPACES, SPEC, WORKLOAD, time_each

from flashgen.compiler.crosscompile import start_compilers
from flashgen.families import TlConfig
from flashgen.families.tl import TlFamily
from flashgen.hardware.resolve import resolve
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Proof, Rejected
from flashgen.spec import AttentionSpec
from flashgen.tune.evaluate import Evaluated
from flashgen.tune.identity import new_study
from flashgen.tune.measured import MeasuredStages
from flashgen.tune.progress import Silent
from flashgen.tune.records import TrialRecord
from flashgen.tune.request import TuneRequest
from flashgen.tune.run import tune
from flashgen.tune.search import Limits, search
from flashgen.tune.settle import settle
from flashgen.tune.space import space_of
from flashgen.tune.stages import Candidate, Stages
from flashgen.tune.workloads import TRIALS
from tuners.timeline import Recorder

_ENDING_S = 20  # what Helion needs beyond its budget: to start, to finish what it has begun, and to be checked


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What a tuner works with. Its process is ended after `limit_s`; `folder` is for files of its own."""

    target: GpuTarget
    stages: Stages
    record: Recorder
    folder: Path
    limit_s: float
    family: TlFamily = RESTRICTED
    index: int = 0
    seed: int = 0
    jobs: int = os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """`knows` says what it is told before it begins; for `anytime` see timeline.Timeline."""

    run: Callable[[Setting], None]
    knows: str
    anytime: bool = True


def exhaustive(setting: Setting) -> None:
    _time_all(_candidates(setting), setting)


def random_order(setting: Setting) -> None:
    candidates = _candidates(setting)
    random.Random(setting.seed).shuffle(candidates)
    _time_all(candidates, setting)


def flashgen(setting: Setting) -> None:
    """The product: `flashgen tune` with its quick preset."""
    request = TuneRequest(
        target=setting.target,
        present=True,
        index=setting.index,
        specs=(SPEC,),
        workloads=(WORKLOAD,),
        seed=setting.seed,
        families={setting.family.name: setting.family},
        jobs=setting.jobs,
    )
    stages: Any = _Watched(setting)
    (result,) = tune(request, _Told(setting.record), lambda *_: stages)
    setting.record.answer(result.entries[0].config.key)


def without_guesses(setting: Setting) -> None:
    """The product's study, gates and choice, with nothing enqueued: what is tried first is random."""
    trials, stages, target = TRIALS["quick"], _Watched(setting), setting.target
    study = new_study(SPEC, space_of(setting.family, SPEC, target, (WORKLOAD,)), setting.seed)
    limits = Limits(trials=trials, batch=study.fleet.batch(trials, setting.jobs))
    search(study, stages, target, limits, _Told(setting.record))
    standing = [one.outcome for one in study.records() if isinstance(one.outcome, Evaluated)]
    settled = settle(standing, stages, (WORKLOAD,))
    setting.record.answer(settled.winners[0].key)


def triton_autotune(setting: Setting) -> None:
    from flashgen.compiler.invoke import operands
    from tuners.autotune import autotune

    if setting.family is not RESTRICTED:
        raise ValueError("triton.Config has no knobs for the order of tiles")
    configs = [config for _, config in _candidates(setting) if isinstance(config, TlConfig)]
    autotune(SPEC, configs, operands(SPEC, WORKLOAD, f"cuda:{setting.index}"), setting.record)


def helion(setting: Setting) -> None:
    from tuners.helion_attention import autotune

    budget_s = max(1, int(setting.limit_s) - _ENDING_S)
    autotune(WORKLOAD, SPEC.head_dim, setting.record, setting.folder, budget_s)


METHODS = {
    "exhaustive": Method(run=exhaustive, knows="nothing, and tries all"),
    "flashgen": Method(
        run=flashgen,
        knows="the family's first guesses and the cost model, both made with this workload's H200 times in view",
    ),
    "flashgen, no guesses": Method(run=without_guesses, knows="nothing"),
    "random": Method(run=random_order, knows="nothing"),
    "triton.autotune": Method(run=triton_autotune, knows="nothing, and tries all", anytime=False),
    "Helion": Method(run=helion, knows="a space, first guesses and a kernel of its own", anytime=False),
}


def _candidates(setting: Setting) -> list[Candidate]:
    return [Candidate(SPEC, config) for config in setting.family.space(SPEC, setting.target)]


def _time_all(candidates: Sequence[Candidate], setting: Setting) -> None:
    """In the order in which their compilers are done, which began in the order of `candidates`."""
    answers = setting.stages.compile(candidates)
    for timed in time_each(candidates, answers, setting.stages, setting.target):
        setting.record.tried(timed.candidate.config.key, timed.us)


class _Told(Silent):
    """Records what flashgen tries."""

    def __init__(self, record: Recorder) -> None:
        self._record = record

    def tried(self, spec: AttentionSpec, record: TrialRecord) -> None:
        us = record.outcome.us if isinstance(record.outcome, Evaluated) else None
        self._record.tried(record.config.key, us)


class _Watched:
    """The setting's stages, whose proofs are recorded with what they took."""

    def __init__(self, setting: Setting) -> None:
        self._stages, self._record = setting.stages, setting.record

    def prove(self, candidate: Candidate, *, thorough: bool = False) -> Proof | Rejected:
        began = time.monotonic()
        try:
            return self._stages.prove(candidate, thorough=thorough)
        finally:
            self._record.proof(time.monotonic() - began)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stages, name)


def first_line(error: Exception) -> str:
    """Such as `ModuleNotFoundError: No module named 'helion'`, cut short where it is long."""
    lines = str(error).strip().splitlines()
    return shorten(": ".join(filter(None, (type(error).__name__, lines[0] if lines else ""))), 120)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=METHODS)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--limit-s", type=float, required=True)
    parser.add_argument("--space", choices=SPACES, default="restricted")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    record = Recorder(arguments.events)
    try:
        start_compilers()  # of all methods that use them, as `flashgen tune` does
        found = resolve("auto", require_gpu=True)
        index, jobs = found.index or 0, os.cpu_count() or 1
        setting = Setting(
            target=found.target,
            stages=MeasuredStages(found.target, index, (WORKLOAD,), jobs=jobs, seed=arguments.seed),
            record=record,
            folder=arguments.events.parent,
            limit_s=arguments.limit_s,
            family=SPACES[arguments.space],
            index=index,
            seed=arguments.seed,
            jobs=jobs,
        )
        METHODS[arguments.name].run(setting)
        record.ended("finished")
    except Exception as error:  # the others' rows don't depend on this one
        record.ended(first_line(error))
        raise


if __name__ == "__main__":
    main()
