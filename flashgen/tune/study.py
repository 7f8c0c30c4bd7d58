"""The Optuna study of one space: asks for configs that nobody has tried, and records what came of each."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from flashgen.config import KernelConfig, Knob
from flashgen.spec import AttentionSpec
from flashgen.tune.evaluate import Evaluated, Fallen, Gate
from flashgen.tune.fleet import Fleet
from flashgen.tune.records import TrialRecord, decode, encode
from flashgen.tune.space import Space, differences

if TYPE_CHECKING:
    from optuna import Study as OptunaStudy
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, Trial

# User attributes of a trial: the process that works on it, the config it was enqueued for, why it was not evaluated,
# and what came of it.
_OWNER, _CONFIG, _SKIPPED, _OUTCOME = "owner", "config", "skipped", "outcome"
_CONSTRAINT = "gates left"
_STARTUP_TRIALS = 4  # random ones before the model: Optuna's 10 would be a whole small budget
_POLL_S = 0.02  # between looks at a trial that is about to get its config


class Study:
    """A resumable search over `space` for `spec`, which the processes of `fleet` may share.

    A rejected candidate is a PRUNED trial with a violated constraint, the state through which the sampler learns from
    it. A trial that was never evaluated is a FAILed one: skipped, given up, or of a process that is gone, which whoever
    asks next finds out. If that process was only cut off, what it says later is dropped, as no trial ends twice.
    """

    def __init__(self, spec: AttentionSpec, space: Space, study: OptunaStudy, seed: int, fleet: Fleet) -> None:
        self.spec, self.space, self.fleet = spec, space, fleet
        self._study = study
        self._by_key = {config.key: config for config in space.configs}
        # A resumed study that began from the same seed again would ask for what it has already had.
        self._random = random.Random(f"{seed}/{len(study.get_trials(deepcopy=False))}")
        study.sampler = _sampler(self._random.getrandbits(32))

    @property
    def name(self) -> str:
        return str(self._study.study_name)

    def reap(self) -> int:
        """Fails the trials whose process is gone, and says how many: their configs are free to be tried."""
        return self._fail_stale(self._trials("RUNNING"))

    def enqueue(self, configs: Iterable[KernelConfig]) -> None:
        """Asks for these first, in order, but for those that are not in the space, tried or waiting already."""
        known = self._configs(self._standing())
        for config in dict.fromkeys(configs):
            if config not in known and self.space.find(config.knobs()) is not None:
                self._enqueue(config)

    def queued(self) -> list[KernelConfig]:
        """What waits to be asked for, in order."""
        return list(self._configs_in_order(self._trials("WAITING")))

    def ask(self) -> tuple[Trial, KernelConfig] | None:
        """A trial of a config that was not tried before; None when there is none left.

        Where the sampler repeats itself or combines knobs that exclude each other, its trial is skipped, and the
        untried config that differs in the fewest knobs takes its place.
        """
        while untried := self._untried():
            trial = self._study.ask()
            with suppress(_already_ended()):  # others may have taken this process for dead
                knobs = self._claim(trial)
                config = self.space.find(knobs)
                if config is not None and config not in self._taken_before(trial.number):
                    return trial, config
                trial.set_user_attr(_SKIPPED, "no such config" if config is None else "tried before")
                self._end(trial, "FAIL")
                if not self._trials("WAITING"):
                    self._enqueue(self._nearest(knobs, untried))
        return None

    def tell(self, trial: Trial, config: KernelConfig, outcome: Evaluated | Fallen) -> TrialRecord:
        """Records `outcome` durably, unless the trial was given up for dead in the meantime."""
        with suppress(_already_ended()):
            trial.set_user_attr(_OUTCOME, encode(outcome))
            _constrain(trial, outcome)
        if isinstance(outcome, Evaluated):
            self._end(trial, "COMPLETE", outcome.us)
        else:
            self._end(trial, "PRUNED")
        return TrialRecord(number=trial.number, config=config, outcome=outcome)

    def release(self, trials: Iterable[Trial]) -> None:
        """Gives up those of `trials` that nothing was told about."""
        running = {trial.number for trial in self._trials("RUNNING")}
        for trial in trials:
            if trial.number in running:
                self._end(trial, "FAIL")

    def await_others(self, deadline: float) -> bool:
        """Waits until no other process works on a trial, or until `deadline` (time.monotonic seconds); whether any did.
        What a process that is gone had begun is free then."""
        waited = False
        while time.monotonic() < deadline and any(self._is_anothers(trial) for trial in self._standing()):
            waited = True
            time.sleep(self.fleet.pace.look_s)
        return waited

    def records(self) -> list[TrialRecord]:
        """Every config that was tried, by this process, before or beside it."""
        found = []
        for trial in self._trials("COMPLETE", "PRUNED"):
            if (config := self.space.find(trial.params)) is not None and _OUTCOME in trial.user_attrs:
                outcome = decode(self.spec, config, trial.user_attrs[_OUTCOME])
                found.append(TrialRecord(number=trial.number, config=config, outcome=outcome))
        return found

    def spent(self) -> int:
        """Trials that count against a budget: the tried ones, and those that live processes are working on."""
        return len([trial for trial in self._standing() if _OWNER in trial.user_attrs])

    def _taken_before(self, number: int) -> set[KernelConfig]:
        """The configs that trial `number` must leave alone: those tried, or that a trial of a lower number has or will
        have. Of two processes that ask for one config at once, the one with the lower number keeps it.

        That holds only once all lower ones have said which config is theirs, so this waits for them (Lamport's bakery,
        doi:10.1145/361082.361093, with trial numbers for tickets). Those wait for lower ones only, so none waits for
        ever, and a process that is gone is not waited for.
        """
        while True:
            standing = self._standing()  # one that is only late finds its trial ended, and takes nothing any more
            if not any(trial.number < number and self._is_choosing(trial) for trial in standing):
                return self._configs(trial for trial in standing if trial.number < number or trial.state.is_finished())
            time.sleep(_POLL_S)

    def _standing(self) -> list[FrozenTrial]:
        """Every trial that has not failed, once those whose process is gone have."""
        while True:
            trials = self._trials("WAITING", "RUNNING", "COMPLETE", "PRUNED")
            if not self._fail_stale(trials):
                return trials  # of one that was just failed it would not be known whether it had ended otherwise

    def _configs(self, trials: Iterable[FrozenTrial]) -> set[KernelConfig]:
        return set(self._configs_in_order(trials))

    def _configs_in_order(self, trials: Iterable[FrozenTrial]) -> Iterator[KernelConfig]:
        return (config for config in map(self._config_of, trials) if config is not None)

    def _config_of(self, trial: FrozenTrial) -> KernelConfig | None:
        """The config of a trial; that of an enqueued one is known before the trial has its params."""
        return self._by_key.get(trial.user_attrs.get(_CONFIG, "")) or self.space.find(trial.params)

    def _is_choosing(self, trial: FrozenTrial) -> bool:
        """Whether a process has begun the trial and not yet said which config it is for."""
        is_open = _SKIPPED not in trial.user_attrs and self._config_of(trial) is None
        return is_open and trial.state == _state("RUNNING")

    def _claim(self, trial: Trial) -> dict[str, Any]:
        """Makes `trial` this process's own, and gives it the knobs that were enqueued or that the sampler wants."""
        trial.set_user_attr(_OWNER, self.fleet.owner)  # before its params, so that a trial with params has an owner
        return {name: trial.suggest_categorical(name, list(values)) for name, values in self.space.choices.items()}

    def _fail_stale(self, trials: Iterable[FrozenTrial]) -> int:
        stale = [trial for trial in trials if trial.state == _state("RUNNING") and self._is_stale(trial)]
        for trial in stale:
            self._end(trial.number, "FAIL")
        return len(stale)

    def _end(self, trial: Trial | int, state: str, us: float | None = None) -> None:
        """Ends a trial, unless it has ended before."""
        with suppress(_already_ended()):
            self._study.tell(trial, us, state=_state(state), skip_if_finished=True)

    def _untried(self) -> list[KernelConfig]:
        taken = self._configs(trial for trial in self._standing() if _OWNER in trial.user_attrs)
        return [config for config in self.space.configs if config not in taken]

    def _nearest(self, knobs: dict[str, Knob], untried: Sequence[KernelConfig]) -> KernelConfig:
        distance = {config: differences(config, knobs) for config in untried}
        least = min(distance.values())
        return self._random.choice([config for config in untried if distance[config] == least])

    def _enqueue(self, config: KernelConfig) -> None:
        self._study.enqueue_trial(config.knobs(), user_attrs={_CONFIG: config.key})

    def _trials(self, *states: str) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=tuple(map(_state, states)))

    def _is_anothers(self, trial: FrozenTrial) -> bool:
        is_running = bool(trial.state == _state("RUNNING"))
        return is_running and trial.user_attrs.get(_OWNER, self.fleet.owner) != self.fleet.owner

    def _is_stale(self, trial: FrozenTrial) -> bool:
        owner = trial.user_attrs.get(_OWNER)
        return self.fleet.is_unclaimed(f"{self.name} {trial.number}") if owner is None else self.fleet.is_gone(owner)


def _already_ended() -> type[Exception]:
    from optuna.exceptions import UpdateFinishedTrialError

    return UpdateFinishedTrialError


def _state(name: str) -> Any:
    from optuna.trial import TrialState

    return TrialState[name]


def _sampler(seed: int) -> BaseSampler:
    import optuna

    # Optuna 5 takes constraints from the trial itself; before, the sampler asked a function for them.
    by_function: dict[str, Any] = (
        {} if hasattr(optuna.Trial, "set_constraint") else {"constraints_func": _stored_constraint}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(
            seed=seed, multivariate=True, constant_liar=True, n_startup_trials=_STARTUP_TRIALS, **by_function
        )


def _constrain(trial: Trial, outcome: Evaluated | Fallen) -> None:
    """Above zero is infeasible, and worse the earlier it fell."""
    gates = list(Gate)
    left = 0 if isinstance(outcome, Evaluated) else len(gates) - gates.index(outcome.gate)
    trial.set_user_attr(_CONSTRAINT, float(left))
    if hasattr(trial, "set_constraint"):
        trial.set_constraint(_CONSTRAINT, float(left))


def _stored_constraint(trial: FrozenTrial) -> tuple[float]:
    return (trial.user_attrs[_CONSTRAINT],)
