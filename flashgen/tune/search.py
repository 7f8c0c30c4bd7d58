"""The loop: some configs compile while the one that was asked for first goes through the gates; then another is asked
for in its place."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashgen.config import KernelConfig
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Rejected, Resources
from flashgen.tune.evaluate import Evaluated, evaluate
from flashgen.tune.progress import Progress
from flashgen.tune.stages import Candidate, Stages
from flashgen.tune.study import Study

if TYPE_CHECKING:
    from optuna.trial import Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """When a search stops: after `trials` configs, earlier runs' included, or at `deadline` (time.monotonic seconds).

    `batch` configs are in hand at once: one is proven and timed while the others compile. Which are asked for does not
    depend on how long anything takes.
    """

    trials: int
    deadline: float = math.inf
    batch: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """A config in hand, and the answer of its compiler, which is at work."""

    trial: Trial
    config: KernelConfig
    compiling: Iterator[tuple[int, Resources | Rejected]]

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
    try:
        while time.monotonic() < limits.deadline and _ask(in_hand, study, stages, limits):
            asked = in_hand[0]
            outcome = evaluate(Candidate(study.spec, asked.config), asked.answer(), target, stages, _best_us(study))
            progress.tried(study.spec, study.tell(asked.trial, asked.config, outcome))
            in_hand.popleft()
    except KeyboardInterrupt:
        return True
    finally:
        study.release(asked.trial for asked in in_hand)
    return False


def _ask(in_hand: deque[_Asked], study: Study, stages: Stages, limits: Limits) -> bool:
    """Fills up what is in hand; whether there is anything."""
    while len(in_hand) < limits.batch and study.spent() < limits.trials and (one := study.ask()) is not None:
        trial, config = one
        in_hand.append(_Asked(trial=trial, config=config, compiling=stages.compile([Candidate(study.spec, config)])))
    return bool(in_hand)


def _best_us(study: Study) -> float:
    """Of all processes that share the study."""
    return min((one.outcome.us for one in study.records() if isinstance(one.outcome, Evaluated)), default=math.inf)
