"""The loop itself: what compiles while the GPU works, and what becomes of configs in hand when it ends early."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest

from flashgen.config import KernelConfig
from flashgen.errors import FlashgenError
from flashgen.outcome import Rejected, Resources
from flashgen.tune.evaluate import Evaluated
from flashgen.tune.identity import new_study
from flashgen.tune.progress import Silent
from flashgen.tune.search import Limits, search
from flashgen.tune.stages import Candidate, Compiled, Times
from flashgen.tune.study import Study
from tests.tune.replay import H200, Replay, plain_us, small_space, spec_of


class Log(Replay):
    """Keeps the order in which compilers began and ended, and kernels were timed."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, KernelConfig]] = []

    def compile(self, candidates: Sequence[Candidate]) -> Iterator[tuple[int, Resources | Rejected]]:
        self.events.extend(("begins", candidate.config) for candidate in candidates)
        return self._answers(candidates)

    def _answers(self, candidates: Sequence[Candidate]) -> Iterator[tuple[int, Resources | Rejected]]:
        for index, candidate in enumerate(candidates):
            self.events.append(("answers", candidate.config))
            yield index, self.resources(candidate)

    def glance(self, compiled: Compiled, best_us: float) -> Times | Rejected:
        self.events.append(("is timed", compiled.config))
        return super().glance(compiled, best_us)


@pytest.fixture
def study() -> Study:
    return new_study(spec_of(), small_space(), 0)


def order(stages: Log, event: str) -> list[KernelConfig]:
    return [config for kind, config in stages.events if kind == event]


def test_compilers_work_on_what_comes_next_while_the_gpu_works(study: Study) -> None:
    stages = Log()
    assert not search(study, stages, H200, Limits(trials=12, batch=4), Silent())
    begun = order(stages, "begins")
    assert order(stages, "answers") == order(stages, "is timed") == begun
    for number, config in enumerate(begun):
        at = stages.events.index(("is timed", config))
        ahead = [each for kind, each in stages.events[:at] if kind == "begins"]
        assert len(ahead) == min(number + 4, 12)


def test_a_batch_of_one_works_on_nothing_ahead(study: Study) -> None:
    stages = Log()
    search(study, stages, H200, Limits(trials=3, batch=1), Silent())
    assert [kind for kind, _ in stages.events] == ["begins", "answers", "is timed"] * 3


@pytest.mark.parametrize("batch", [1, 5])
def test_the_budget_is_spent_and_no_more_whatever_is_in_hand(batch: int, study: Study) -> None:
    search(study, Log(), H200, Limits(trials=7, batch=batch), Silent())
    assert len(study.records()) == study.spent() == 7
    search(study, Log(), H200, Limits(trials=100, batch=batch), Silent())
    assert {record.config for record in study.records()} == set(small_space().configs)


def test_how_long_things_take_does_not_decide_what_is_asked_for() -> None:
    tried = []
    for pause_s in (0.0, 0.002):
        study, stages = new_study(spec_of(), small_space(), 0), Log()
        stages.us = lambda candidate, pause_s=pause_s: time.sleep(pause_s) or plain_us(candidate)  # type: ignore[misc]
        search(study, stages, H200, Limits(trials=30, batch=6), Silent())
        tried.append([record.config for record in study.records()])
    assert tried[0] == tried[1]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), FlashgenError("the GPU is lost")])
def test_what_is_in_hand_when_it_ends_early_is_free_again(error: BaseException, study: Study) -> None:
    stages = Log()

    def us(candidate: Candidate) -> float:
        if len(order(stages, "is timed")) == 6:
            raise error
        return plain_us(candidate)

    stages.us = us
    if isinstance(error, KeyboardInterrupt):
        assert search(study, stages, H200, Limits(trials=20, batch=4), Silent())
    else:
        with pytest.raises(FlashgenError, match="the GPU is lost"):
            search(study, stages, H200, Limits(trials=20, batch=4), Silent())
    assert len(study.records()) == study.spent() == 5
    assert all(isinstance(record.outcome, Evaluated) for record in study.records())
    search(study, Log(), H200, Limits(trials=100), Silent())
    assert {record.config for record in study.records()} == set(small_space().configs)


def test_a_deadline_frees_what_is_in_hand_too(study: Study) -> None:
    search(study, Log(), H200, Limits(trials=20, deadline=time.monotonic() - 1), Silent())
    assert study.spent() == 0
    stages = Log()
    stages.us = lambda candidate: time.sleep(0.2) or 1.0  # type: ignore[assignment,return-value]
    search(study, stages, H200, Limits(trials=20, deadline=time.monotonic() + 0.1, batch=4), Silent())
    assert len(study.records()) == study.spent() == 1


def test_compilers_begin_on_what_is_queued_before_it_is_asked_for(study: Study) -> None:
    queued, stages = list(reversed(small_space().configs[:5])), Log()
    study.enqueue(queued)
    assert study.queued() == queued
    assert not search(study, stages, H200, Limits(trials=8, batch=2, ahead=4), Silent())
    begun = order(stages, "begins")
    assert [kind for kind, _ in stages.events[:4]] == ["begins"] * 4
    assert begun[:5] == queued
    assert len(begun) == len(set(begun)) == 8
    assert order(stages, "answers") == order(stages, "is timed") == begun


def test_no_more_is_compiled_ahead_than_the_budget_has_room_for(study: Study) -> None:
    study.enqueue(small_space().configs[:5])
    stages = Log()
    search(study, stages, H200, Limits(trials=3, batch=1, ahead=16), Silent())
    assert len(order(stages, "begins")) == 3
