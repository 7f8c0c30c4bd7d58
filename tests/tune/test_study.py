"""Studies: no repeats, resumption, and several processes on one file."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from flashgen.config import KernelConfig
from flashgen.outcome import Reason
from flashgen.tune.evaluate import Evaluated, Fallen
from flashgen.tune.identity import Identity, new_study
from flashgen.tune.owner import this_process
from flashgen.tune.space import Space
from flashgen.tune.study import Study
from tests.tune.replay import Replay, config, rejected, small_space, spec_of
from tests.tune.studies import IDENTITY, Work, opened, outcome_of


def run(study: Study, trials: int, stages: Replay | None = None) -> list[KernelConfig]:
    """The configs that the study asks for, each told about."""
    configs: list[KernelConfig] = []
    while len(configs) < trials and (asked := study.ask()) is not None:
        study.tell(*asked, outcome_of(asked[1], stages))
        configs.append(asked[1])
    return configs


def reopened(path: Path, space: Space | None = None, identity: Identity = IDENTITY, seed: int = 0) -> Study:
    with opened(path, space, identity, seed) as (study, _):
        return study  # a journal is open only while it is read or written


def test_a_study_tries_every_config_once_and_then_says_that_none_is_left() -> None:
    space = small_space()
    tried = run(new_study(spec_of(), space, seed=3), 1000)
    assert sorted(each.key for each in tried) == sorted(each.key for each in space.configs)


def test_what_is_asked_for_first_is_tried_first_once_and_only_if_the_space_has_it() -> None:
    study = new_study(spec_of(), small_space(), seed=0)
    first = [config(64, 32, 4, 1), config(16, 16, 4, 1), config(128, 64, 8, 2), config(64, 32, 4, 1)]
    study.enqueue(first)
    study.enqueue(first[:1])
    tried = run(study, 20)
    assert tried[:2] == [first[0], first[2]]
    assert len(set(tried)) == 20


def test_equal_seeds_ask_for_equal_configs() -> None:
    runs = [run(new_study(spec_of(), small_space(), seed), 20) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_the_sampler_finds_the_best_sooner_than_the_order_of_the_space_would() -> None:
    ranks = [run(new_study(spec_of(), small_space(), seed), 60).index(config()) for seed in range(10)]
    assert sorted(ranks)[5] < len(small_space().configs) / 2


@pytest.mark.case("optuna-05")
def test_a_rejection_is_no_value_but_a_constraint_that_the_sampler_sees() -> None:
    import optuna

    study = new_study(spec_of(), small_space(), seed=0)
    run(study, 12, Replay(us=lambda candidate: rejected(Reason.LAUNCH)))
    trials = study._study.get_trials()
    states = Counter(trial.state for trial in trials)
    assert states[optuna.trial.TrialState.PRUNED] == 12
    assert states[optuna.trial.TrialState.COMPLETE] == 0
    assert all(trial.value is None for trial in trials)
    pruned = [trial for trial in trials if trial.state == optuna.trial.TrialState.PRUNED]
    assert all(trial.user_attrs["gates left"] > 0 for trial in pruned)


def test_the_sampler_leaves_a_region_in_which_everything_is_rejected() -> None:
    space = Space(configs=tuple(config(m, n, 4, s, heads_per_group=h) for m in (32, 64, 128, 256) for n in (32, 64, 128)
                                for s in (1, 2, 3, 4) for h in (1, 2, 4, 8)))  # fmt: skip
    bad = 0
    for seed in range(5):
        study = new_study(spec_of(), space, seed)
        stages = Replay(us=lambda c: rejected(Reason.LAUNCH) if c.config.num_stages > 2 else 100.0 + c.config.BLOCK_M)
        bad += sum(each.num_stages > 2 for each in run(study, 60, stages)[20:])
    assert bad / (5 * 40) < 0.35  # half of the space is bad


@pytest.mark.case("optuna-08")
def test_a_resumed_study_goes_on_where_it_was_instead_of_repeating_itself(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    first = run(reopened(path), 6)
    second = run(reopened(path), 6)
    assert len({*first, *second}) == 12


def test_a_resumed_study_hands_back_what_it_knew(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    study = reopened(path)
    run(study, 5)
    run(study, 2, Replay(us=lambda candidate: rejected(Reason.LAUNCH, "too many resources")))
    records = reopened(path).records()
    assert [record.outcome for record in records] == [record.outcome for record in study.records()]
    assert sum(isinstance(record.outcome, Fallen) for record in records) == 2


@pytest.mark.case("optuna-02")
def test_a_changed_space_is_a_new_study_and_says_what_changed(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    narrow = Space(configs=tuple(each for each in small_space().configs if each.BLOCK_M < 256))
    run(reopened(path, narrow), 5)
    with opened(path) as (study, notes):
        pass
    assert study.records() == []
    assert any("BLOCK_M [32, 64, 128] -> [32, 64, 128, 256]" in note for note in notes)
    run(study, 5)
    assert len(reopened(path, narrow).records()) == 5


def test_results_of_another_toolchain_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    run(reopened(path), 5)
    newer = replace(IDENTITY, toolchain=replace(IDENTITY.toolchain, triton="3.10.0"))
    with opened(path, identity=newer) as (study, notes):
        pass
    assert study.records() == []
    assert any("triton 3.9.0 -> 3.10.0" in note for note in notes)


@pytest.mark.case("tuner-08")
@pytest.mark.parametrize(
    "other",
    [
        replace(IDENTITY, spec=spec_of("fp32")),
        replace(IDENTITY, kind="predicted"),
        replace(IDENTITY, gpu="nvidia-h100"),
        replace(IDENTITY, label="mine"),
    ],
)
def test_another_dtype_gpu_or_kind_is_another_study_without_a_word(tmp_path: Path, other: Identity) -> None:
    path = tmp_path / "study.journal"
    run(reopened(path), 3)
    with opened(path, identity=other) as (study, notes):
        pass
    assert study.records() == []
    assert notes == ()


@pytest.mark.case("optuna-04")
def test_after_a_kill_the_study_ends_with_its_budget_and_its_best(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    with Work(str(path), trials=30, trial_s=0.03).start() as process:
        assert process.stdout is not None
        said = [process.stdout.readline().strip() for _ in range(8)]
        process.kill()
    known = {record.config.key: record.outcome for record in reopened(path).records()}
    assert known.keys() >= set(said)
    with opened(path) as (study, notes):
        pass
    best = min(outcome.us for outcome in known.values() if isinstance(outcome, Evaluated))
    assert any("resumed" in note for note in notes)
    assert study.spent() == len(known)  # the trial that was being tried is nobody's
    run(study, 30 - len(known))
    records = study.records()
    assert len(records) == len({record.config for record in records}) == 30
    assert min(r.outcome.us for r in records if isinstance(r.outcome, Evaluated)) <= best


@pytest.mark.case("optuna-01")
@pytest.mark.slow
def test_four_processes_share_a_study_and_lose_no_trial(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    processes = [Work(str(path), trials=40, seed=seed).start() for seed in range(4)]
    said = [line for process in processes for line in process.communicate(timeout=240)[0].splitlines()]
    assert [process.returncode for process in processes] == [0, 0, 0, 0]
    records = reopened(path).records()
    assert sorted(record.config.key for record in records) == sorted(said)
    assert len(set(said)) == len(said)
    assert 40 <= len(said) <= 43  # each of the others may have begun its last trial at once


def test_a_process_waits_for_what_an_earlier_trial_is_about_to_take(tmp_path: Path) -> None:
    space = Space(configs=(config(),))
    first, second = (reopened(tmp_path / "study.journal", space, seed=seed) for seed in (0, 1))
    trial = first._study.ask()  # as far as a process gets that is held up before it has its config
    trial.set_user_attr("owner", this_process())
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(second.ask)
        with pytest.raises(TimeoutError):
            asked.result(timeout=0.5)
        for name, values in space.choices.items():
            trial.suggest_categorical(name, list(values))
        assert asked.result(timeout=30) is None


def test_a_process_does_not_wait_for_one_that_was_killed_before_it_had_a_config(tmp_path: Path) -> None:
    first, second = (reopened(tmp_path / "study.journal", seed=seed) for seed in (0, 1))
    first._study.ask().set_user_attr("owner", this_process().rpartition("/")[0] + "/0")
    assert second.ask() is not None


@pytest.mark.parametrize("seed", range(4))
def test_what_is_enqueued_is_left_to_its_own_trial(seed: int) -> None:
    space = Space(configs=(config(), config(64, 32, 4, 1)))
    study = new_study(spec_of(), space, seed)
    study.enqueue([config()])
    other = study._study.ask()  # takes the enqueued trial, as another process would, and has no params yet
    other.set_user_attr("owner", this_process())
    asked = study.ask()
    assert asked is not None
    assert asked[1] == config(64, 32, 4, 1)


def test_a_trial_that_nothing_was_told_about_is_given_up() -> None:
    study = new_study(spec_of(), small_space(), seed=0)
    asked = study.ask()
    assert asked is not None
    assert study.spent() == 1
    study.release([asked[0]])
    assert study.spent() == 0
    assert len(set(run(study, 1000))) == len(small_space().configs)
