"""What the tests of studies share; run as a program it is a worker on a study that others can share, or kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flashgen.config import KernelConfig
from flashgen.errors import FlashgenError
from flashgen.outcome import Toolchain
from flashgen.spec import AttentionSpec
from flashgen.tune.evaluate import Evaluated, Fallen, evaluate
from flashgen.tune.fleet import Fleet, Pace
from flashgen.tune.identity import Identity, open_study
from flashgen.tune.progress import Silent
from flashgen.tune.records import TrialRecord
from flashgen.tune.search import Limits
from flashgen.tune.space import Space
from flashgen.tune.stages import Candidate
from flashgen.tune.storage import open_storage
from flashgen.tune.study import Study
from flashgen.tune.together import search_together
from tests.tune.replay import H200, WORKLOAD, Replay, plain_resources, plain_us, small_space, spec_of

TOOLCHAIN = Toolchain(flashgen="0.1.0", triton="3.9.0", torch="2.13.0", kernels="0123456789ab")
IDENTITY = Identity(
    label="",
    spec=spec_of(),
    family="tl",
    gpu="nvidia-h200",
    kind="measured",
    workloads=(WORKLOAD,),
    toolchain=TOOLCHAIN,
)


def outcome_of(config: KernelConfig, stages: Replay | None = None) -> Evaluated | Fallen:
    candidate = Candidate(IDENTITY.spec, config)
    return evaluate(candidate, plain_resources(candidate), H200, stages or Replay())


SMALLER = Space(configs=tuple(config for config in small_space().configs if config.BLOCK_M == 128))
FAST = Pace(beat_s=0.1, lease_s=1.5, claim_s=1.5, look_s=0.1)


@contextmanager
def opened(
    where: str | Path,
    space: Space | None = None,
    identity: Identity = IDENTITY,
    seed: int = 0,
    pace: Pace | None = None,
    owner: str | None = None,
    patience_s: float = 60.0,
) -> Iterator[tuple[Study, tuple[str, ...]]]:
    """The study at `where`, as a process of its run has it, and the notes about what was found there."""
    with open_storage(where, patience_s) as storage, Fleet(storage, pace=pace, owner=owner).joined("tune") as fleet:
        study, notes = open_study(identity, space or small_space(), fleet, seed, budget=1000)
        yield study, storage.notes + notes


@dataclass(frozen=True)
class Work:
    """What a worker is to do: try configs until the study at `where` has spent `trials`, each for `trial_s`.

    The study is that of the SMALLER space where that is `smaller`. `host` makes it a process of another host, of which
    this one can't know whether it lives.
    """

    where: str
    trials: int = 1000
    seed: int = 0
    trial_s: float = 0.0
    smaller: bool = False
    host: str = ""
    patience_s: float = 60.0

    def start(self, **how: Any) -> subprocess.Popen[str]:
        """A process that does it, and says each config's key once it is recorded."""
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "tests.tune.studies", json.dumps(asdict(self))]
        root = Path(__file__).parents[2]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=root, **how)

    def do(self) -> None:
        owner = f"{self.host}/{os.getpid()}/1" if self.host else None
        pace = FAST if self.host else None
        space = SMALLER if self.smaller else small_space()
        with opened(self.where, space, IDENTITY, self.seed, pace, owner, self.patience_s) as (study, _):
            stages = Replay(us=self._us)
            search_together(study, stages, H200, Limits(trials=self.trials), Said())

    def _us(self, candidate: Candidate) -> float:
        time.sleep(self.trial_s)
        return plain_us(candidate)


class Said(Silent):
    """Prints what was tried, once that is recorded."""

    def tried(self, spec: AttentionSpec, record: TrialRecord) -> None:
        print(record.config.key, flush=True)


if __name__ == "__main__":
    try:
        Work(**json.loads(sys.argv[1])).do()
    except FlashgenError as error:
        sys.exit(f"{type(error).__name__}: {error}")
