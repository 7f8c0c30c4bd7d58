"""A process that helps runs on other GPUs, or on other hosts: it searches what they announce until they are done."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from flashgen.compiler.toolchain import toolchain
from flashgen.errors import Drift, NoUsableGpu
from flashgen.families import FAMILIES, Family
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Toolchain
from flashgen.spec import Workload
from flashgen.tune.fleet import Fleet
from flashgen.tune.identity import Identity, Stored, differing, open_study, stored
from flashgen.tune.progress import Progress, Silent
from flashgen.tune.request import TuneRequest
from flashgen.tune.run import MakeStages, stages_of
from flashgen.tune.search import Limits, search
from flashgen.tune.space import Space, space_of
from flashgen.tune.stages import Stages
from flashgen.tune.storage import open_storage
from flashgen.tune.study import Study


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkRequest:
    """Help for the runs named `study` in `storage`, or only for that of the process `leader`, by `target`: device
    `index` if it is `present`, else predicted.

    It ends after `timeout_s`, or when no run of that name has come for `wait_s`, or when all that came are done.
    """

    storage: str | Path
    study: str
    target: GpuTarget
    present: bool
    index: int = 0
    leader: str = ""
    timeout_s: float | None = None
    wait_s: float = 60.0
    families: Mapping[str, Family] = field(default_factory=lambda: FAMILIES)
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)


class Ended(StrEnum):
    """Why a worker ended."""

    DONE = "the run is done"
    NO_RUN = "no run of this name came"
    TIMEOUT = "its time is over"
    INTERRUPTED = "interrupted"


def work(request: WorkRequest, progress: Progress | None = None, make_stages: MakeStages = stages_of) -> Ended:
    """Searches the studies that runs announce, batch by batch.

    Raises:
        NoUsableGpu: a run is for another GPU, or measures and the GPU is not here.
        Drift: a run has another toolchain, other kernels or another space.
        OutputError: the storage cannot be opened or written.
    """
    with open_storage(request.storage) as storage, Fleet(storage, request.study).joined("worker") as fleet:
        return _Work(request, fleet, progress or Silent(), make_stages).until_done()


@dataclass
class _Work:
    request: WorkRequest
    fleet: Fleet
    progress: Progress
    make_stages: MakeStages
    opened: dict[int, tuple[Study, Stages]] = field(default_factory=dict)
    made: dict[tuple[Workload, ...], Stages] = field(default_factory=dict)
    toolchain: Toolchain = field(default_factory=toolchain)
    # Of its own: two processes that begin alike would want the same configs.
    seed: int = field(default_factory=lambda: random.SystemRandom().getrandbits(32))

    def until_done(self) -> Ended:
        began, met = time.monotonic(), False
        end = began + (float("inf") if self.request.timeout_s is None else self.request.timeout_s)
        try:
            while time.monotonic() < end:
                runs = self.fleet.runs(self.request.leader)
                if not runs and (met or time.monotonic() - began > self.request.wait_s):
                    return Ended.DONE if met else Ended.NO_RUN
                met = met or bool(runs)
                if not any(self._helps(name, end) for name in runs if name is not None):
                    time.sleep(self.fleet.pace.look_s)
        except KeyboardInterrupt:
            return Ended.INTERRUPTED
        return Ended.TIMEOUT

    def _helps(self, name: str, end: float) -> bool:
        """Tries a batch of the study's configs; whether there was one to try. None of a study that is gone: a run with
        --force deletes those of its name, and makes them again."""
        try:
            held = stored(name, self.fleet.storage.optuna)
        except KeyError:
            return False
        try:
            return self._tries(name, held, end)
        except KeyError:
            if self._is_there(name, held):
                raise
            return False

    def _is_there(self, name: str, held: Stored) -> bool:
        try:
            return stored(name, self.fleet.storage.optuna).id == held.id
        except KeyError:
            return False

    def _tries(self, name: str, held: Stored, end: float) -> bool:
        study, stages = self._joined(name, held)
        budget, spent = min(held.budget, len(study.space.configs)), study.spent()
        if spent >= budget:
            return False
        batch = self.fleet.batch(held.budget, self.request.jobs)
        limits = Limits(trials=min(budget, spent + batch), deadline=end, batch=batch)
        if search(study, stages, self.request.target, limits, self.progress):
            raise KeyboardInterrupt
        return True

    def _joined(self, name: str, held: Stored) -> tuple[Study, Stages]:
        if held.id not in self.opened:
            space = self._space(name, held)
            self.progress.started(held.identity.spec, space.enumerated, len(space.configs), held.budget)
            study, _ = open_study(held.identity, space, self.fleet, self.seed, held.budget)
            self.opened[held.id] = study, self._stages(held.identity)
        return self.opened[held.id]

    def _space(self, name: str, held: Stored) -> Space:
        """The study's space, made here: all that its configs, kernels and times depend on must be the same."""
        versions = asdict(self.toolchain)
        _refuse_drift(name, {key: held.facts.get(key) for key in versions}, versions)
        identity, target = held.identity, self.request.target
        if identity.gpu != target.slug:
            raise NoUsableGpu(
                f"study {name!r} is for {identity.gpu}, and this worker for {target.slug}\n"
                f"  next: --gpu with an {identity.gpu} of this machine, or another --study"
            )
        if identity.kind == "measured" and not self.request.present:
            raise NoUsableGpu(
                f"study {name!r} is measured, and this worker could only predict: its {target.slug} cannot be used\n"
                "  next: `flashgen doctor` checks torch, the driver and the GPU"
            )
        space = space_of(self.request.families[identity.family], identity.spec, target, identity.workloads)
        _refuse_drift(name, held.facts, identity.facts(space))
        return space

    def _stages(self, identity: Identity) -> Stages:
        if identity.workloads not in self.made:
            request = TuneRequest(
                target=self.request.target,
                present=identity.kind == "measured",
                index=self.request.index,
                specs=(identity.spec,),
                seed=self.seed,
                jobs=self.request.jobs,
            )
            self.made[identity.workloads] = self.make_stages(request, identity.workloads)
        return self.made[identity.workloads]


def _refuse_drift(name: str, there: dict[str, Any], here: dict[str, Any]) -> None:
    if changes := differing(there, here):
        raise Drift(
            f"study {name!r} is not this worker's: from there to here, {'; '.join(changes)}\n"
            "  next: install what the run has, or start the run again with what is here"
        )
