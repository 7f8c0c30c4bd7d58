"""What came of a trial, and how a study's storage holds it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from flashgen.config import KernelConfig
from flashgen.outcome import Measurement, Prediction, Rejected, Resources
from flashgen.spec import AttentionSpec
from flashgen.tune.evaluate import Evaluated, Fallen, Gate
from flashgen.tune.stages import Candidate, Compiled


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRecord:
    """One config that was tried. `number` counts the study's trials, skipped ones too."""

    number: int
    config: KernelConfig
    outcome: Evaluated | Fallen


def encode(outcome: Evaluated | Fallen) -> dict[str, Any]:
    """Plain data for JSON. No proof is kept: what comes out of a file is proven again before it may win."""
    if isinstance(outcome, Evaluated):
        times = [asdict(time) for time in outcome.times]
        return {"resources": asdict(outcome.compiled.resources), "times": times, "proven": outcome.proven}
    resources = None if outcome.resources is None else asdict(outcome.resources)
    rejected = outcome.rejected
    return {"gate": outcome.gate, "reason": rejected.reason, "detail": rejected.detail, "resources": resources}


def decode(spec: AttentionSpec, config: KernelConfig, held: dict[str, Any]) -> Evaluated | Fallen:
    """The outcome that `encode` made `held` of."""
    resources = None if held["resources"] is None else Resources(**held["resources"])
    if "gate" in held:
        rejected = Rejected.of(held)
        return Fallen(gate=Gate(held["gate"]), rejected=rejected, resources=resources)
    assert resources is not None
    compiled = Compiled(candidate=Candidate(spec, config), resources=resources)
    times = tuple(_time(time) for time in held["times"])
    return Evaluated(compiled=compiled, times=times, proven=held["proven"])


def _time(held: dict[str, Any]) -> Measurement | Prediction:
    return Measurement(**held) if "samples" in held else Prediction(**held)
