"""What the tests of studies share; run as a program it is a worker on a study that others can share, or kill."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from flashgen.config import KernelConfig
from flashgen.outcome import Toolchain
from flashgen.tune.evaluate import Evaluated, Fallen, evaluate
from flashgen.tune.identity import Identity, open_study
from flashgen.tune.stages import Candidate
from tests.tune.replay import H200, WORKLOAD, Replay, plain_resources, small_space, spec_of

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


def work(path: Path, trials: int, seed: int, seconds_a_trial: float) -> None:
    """Tries configs until the study has spent `trials`; says each one's key."""
    study, _ = open_study(IDENTITY, small_space(), path, seed)
    while study.spent() < trials and (asked := study.ask()) is not None:
        time.sleep(seconds_a_trial)
        study.tell(*asked, outcome_of(asked[1]))
        print(asked[1].key, flush=True)


if __name__ == "__main__":
    work(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
