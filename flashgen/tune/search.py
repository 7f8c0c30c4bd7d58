"""The loop: ask for a batch, compile it in parallel, take what compiles through the gates one by one."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashgen.config import KernelConfig
from flashgen.hardware.target import GpuTarget
from flashgen.tune.evaluate import Evaluated, evaluate, stop_if_fatal
from flashgen.tune.progress import Progress
from flashgen.tune.stages import Candidate, Stages
from flashgen.tune.study import Study

if TYPE_CHECKING:
    from optuna.trial import Trial

    Asked = tuple[Trial, KernelConfig]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """When a search stops: after `trials` configs, earlier runs' included, or at `deadline` (time.monotonic seconds).

    `batch` configs are asked for and compiled together.
    """

    trials: int
    deadline: float = math.inf
    batch: int = 1


def search(study: Study, stages: Stages, target: GpuTarget, limits: Limits, progress: Progress) -> bool:
    """Tries configs until a limit is reached or none is left; whether it was interrupted from the keyboard instead.

    Raises:
        FlashgenError: a candidate took the GPU context with it. It is recorded: a resumed search passes it by.
    """
    try:
        while time.monotonic() < limits.deadline and (asked := _ask(study, limits)):
            try:
                _try(asked, study, stages, target, limits, progress)
            finally:
                study.release(trial for trial, _ in asked)
    except KeyboardInterrupt:
        return True
    return False


def _ask(study: Study, limits: Limits) -> list[Asked]:
    asked: list[Asked] = []
    while len(asked) < limits.batch and study.spent() < limits.trials and (one := study.ask()) is not None:
        asked.append(one)
    return asked


def _try(
    asked: list[Asked], study: Study, stages: Stages, target: GpuTarget, limits: Limits, progress: Progress
) -> None:
    candidates = [Candidate(study.spec, config) for _, config in asked]
    # All of a batch is compiled before any of it is timed, so that compilers and launches don't share the CPU.
    answers = dict(stages.compile(candidates))
    best_us = min((r.outcome.us for r in study.records() if isinstance(r.outcome, Evaluated)), default=math.inf)
    for index, (trial, config) in enumerate(asked):
        if time.monotonic() >= limits.deadline:
            return
        outcome = evaluate(candidates[index], answers[index], target, stages, best_us)
        progress.tried(study.spec, study.tell(trial, config, outcome))
        if isinstance(outcome, Evaluated):
            best_us = min(best_us, outcome.us)
        else:
            stop_if_fatal(candidates[index], outcome, stages)
