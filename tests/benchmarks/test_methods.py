"""The searches on stages that replay a table."""

from __future__ import annotations

from pathlib import Path

import pytest
from exhaustive import RESTRICTED, SPACES, SPEC
from tuners.methods import METHODS, Setting, first_line
from tuners.timeline import Event, Recorder, read_events

from flashgen.outcome import Reason, Rejected, Resources
from flashgen.tune.stages import Candidate
from flashgen.tune.workloads import TRIALS
from tests.tune.replay import H200, Replay, plain_resources, rejected

SPACE = {config.key: config for config in RESTRICTED.space(SPEC, H200)}


def resources(candidate: Candidate) -> Resources | Rejected:
    return rejected(Reason.SPILLS) if candidate.config.num_stages == 4 else plain_resources(candidate)


def ran(name: str, folder: Path, seed: int = 0) -> tuple[Replay, tuple[Event, ...]]:
    stages, path = Replay(resources=resources), folder / "events"
    setting = Setting(target=H200, stages=stages, record=Recorder(path), folder=folder, limit_s=60.0, seed=seed, jobs=2)
    METHODS[name].run(setting)
    return stages, read_events(path, 0.0)


def tried(events: tuple[Event, ...]) -> list[str]:
    return [event.config or "" for event in events if event.kind == "tried"]


def best() -> float:
    return min(Replay().us(Candidate(SPEC, config)) for config in SPACE.values())  # type: ignore[type-var, return-value]


@pytest.mark.parametrize("name", ["exhaustive", "random"])
def test_all_configs_are_tried_once_and_none_is_proven(name: str, tmp_path: Path) -> None:
    stages, events = ran(name, tmp_path)
    assert sorted(tried(events)) == sorted(SPACE)
    assert not stages.proven
    for event in events:
        assert (event.us is None) == (SPACE[event.config or ""].num_stages == 4)
    assert min(event.us for event in events if event.us) == pytest.approx(best())


def test_the_whole_family_can_be_searched(tmp_path: Path) -> None:
    stages, path = Replay(resources=resources), tmp_path / "events"
    setting = Setting(
        target=H200, stages=stages, record=Recorder(path), folder=tmp_path, limit_s=60.0, jobs=2, family=SPACES["whole"]
    )
    METHODS["flashgen, no guesses"].run(setting)
    found = set(tried(read_events(path, 0.0)))
    assert len(found) == TRIALS["quick"]
    assert not found <= set(SPACE)
    with pytest.raises(ValueError, match="no knobs for the order of tiles"):
        METHODS["triton.autotune"].run(setting)


def test_random_orders_differ_by_seed(tmp_path: Path) -> None:
    first, again, other = (tried(ran("random", tmp_path, seed)[1]) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("name", ["flashgen", "flashgen, no guesses"])
def test_flashgen_searches_the_restricted_space_proves_and_answers(name: str, tmp_path: Path) -> None:
    stages, events = ran(name, tmp_path)
    assert len(tried(events)) == len(set(tried(events))) == TRIALS["quick"]
    assert set(tried(events)) <= set(SPACE)
    assert events[-1].kind == "answer"
    assert events[-1].config in SPACE
    proofs = [event for event in events if event.kind == "proof"]
    assert len(proofs) >= len(stages.proven) > 0  # what was proven before is asked for again in the end
    assert any(thorough for _, thorough in stages.proven)


def test_only_the_product_begins_with_its_guesses(tmp_path: Path) -> None:
    guesses = [config.key for config in RESTRICTED.likely_good(SPEC, H200)]
    assert tried(ran("flashgen", tmp_path)[1])[: len(guesses)] == guesses
    assert tried(ran("flashgen, no guesses", tmp_path)[1])[: len(guesses)] != guesses


def test_a_failure_is_told_in_one_line() -> None:
    assert first_line(ModuleNotFoundError("No module named 'helion'\nmore")) == (
        "ModuleNotFoundError: No module named 'helion'"
    )
    assert first_line(ValueError()) == "ValueError"
    assert len(first_line(ValueError("long " * 100))) <= 120
