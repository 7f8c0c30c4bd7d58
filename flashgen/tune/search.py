"""The loop: some configs compile while the one that was asked for first goes through the gates; then another is asked
for in its place."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashgen.config import KernelConfig
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Rejected, Resources
from flashgen.tune.evaluate import Evaluated, evaluate
from flashgen.tune.progress import Progress
from flashgen.tune.stages import Answers, Candidate, Stages
from flashgen.tune.study import Study

if TYPE_CHECKING:
    from optuna.trial import Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """When a search stops: after `trials` configs, earlier runs' included, or at `deadline` (time.monotonic seconds).

    `batch` configs are in hand at once: one is proven and timed while the others compile. Which are asked for does not
    depend on how long anything takes. Compilers begin on `ahead` more that wait in the study's queue, whose turn comes
    whatever the sampler learns.
    """

    trials: int
    deadline: float = math.inf
    batch: int = 1
    ahead: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """A config in hand, and the answer of its compiler, which is at work."""

    trial: Trial
    config: KernelConfig
    compiling: Answers

    def answer(self) -> Resources | Rejected:
        ((_, answer),) = self.compiling
        return answer


def search(study: Study, stages: Stages, target: GpuTarget, limits: Limits, progress: Progress) -> bool:
    """Tries configs until a limit is reached or none is left; whether it was interrupted from the keyboard instead.

    Configs in hand that nothing was told about are free to be tried afterwards, also after an error.

    Raises:
        FlashgenError: the GPU's process does not start.
        OutputError: the storage cannot be written.
    """
    in_hand: deque[_Asked] = deque()
    compilers = _Compilers(study, stages, limits)
    try:
        while time.monotonic() < limits.deadline and _ask(in_hand, study, compilers, limits):
            asked = in_hand[0]
            outcome = evaluate(Candidate(study.spec, asked.config), asked.answer(), target, stages, _best_us(study))
            progress.tried(study.spec, study.tell(asked.trial, asked.config, outcome))
            in_hand.popleft()
    except KeyboardInterrupt:
        return True
    finally:
        study.release(asked.trial for asked in in_hand)
    return False


class _Compilers:
    """Those of a search, which begin on queued configs before these are asked for."""

    def __init__(self, study: Study, stages: Stages, limits: Limits) -> None:
        self._study, self._stages = study, stages
        queued = study.queued()[: max(0, min(limits.ahead, limits.trials - study.spent()))]
        self._begun = {config: self._begin(config) for config in queued}

    def of(self, config: KernelConfig) -> Answers:
        return self._begun.pop(config, None) or self._begin(config)

    def _begin(self, config: KernelConfig) -> Answers:
        return self._stages.compile([Candidate(self._study.spec, config)])


def _ask(in_hand: deque[_Asked], study: Study, compilers: _Compilers, limits: Limits) -> bool:
    """Fills up what is in hand; whether there is anything."""
    while len(in_hand) < limits.batch and study.spent() < limits.trials and (one := study.ask()) is not None:
        trial, config = one
        in_hand.append(_Asked(trial=trial, config=config, compiling=compilers.of(config)))
    return bool(in_hand)


def _best_us(study: Study) -> float:
    """Of all processes that share the study."""
    return min((one.outcome.us for one in study.records() if isinstance(one.outcome, Evaluated)), default=math.inf)
