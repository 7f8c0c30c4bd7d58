"""Why nothing worked, in words and numbers: every reason, how often, and one example of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flashgen.config import KernelConfig
from flashgen.families import Family, serving
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Reason, Rejected
from flashgen.resources.sram import sram_bound
from flashgen.spec import AttentionSpec
from flashgen.tune.evaluate import Fallen
from flashgen.tune.records import TrialRecord
from flashgen.tune.result import FunnelCounts, rejections
from flashgen.tune.space import Space

_ADVICE = {
    Reason.CONSTRAINT: "ask for what a family supports",
    Reason.SRAM: "a smaller head_dim or a 16-bit dtype needs less shared memory, and other GPUs have more",
    Reason.COMPILE: "`flashgen doctor` checks the compiler; the examples above hold what it said",
    Reason.SPILLS: "allow more trials: other tilings need fewer registers",
    Reason.INEXACT: "`flashgen doctor` checks the toolchain; report the example above if it is sound",
}


def explain(
    spec: AttentionSpec,
    target: GpuTarget,
    spaces: Sequence[Space],
    records: Sequence[TrialRecord],
    counts: FunnelCounts,
) -> str:
    """The text of a NoFeasibleConfig for one spec that has no rule."""
    rejected = rejections(spaces, records)
    lines = [
        f"no config of {spec.key} works on {target.slug}: {counts.enumerated} enumerated, {counts.fit} may fit, "
        f"{counts.tried} tried, {counts.compiled} compiled, {counts.timed} timed, {counts.exact} exact"
    ]
    lines += _by_reason(rejected)
    if needs := _shared_bytes(spec, target, spaces, records):
        lines.append(f"  shared memory: smallest need {min(needs)} bytes, limit {target.smem_per_block} bytes")
    if advice := _advice(rejected, counts):
        lines.append(f"  next: {advice}")
    return "\n".join(lines)


def unsupported(spec: AttentionSpec, target: GpuTarget, families: Mapping[str, Family]) -> str | None:
    """Why no family can write `spec` for `target`, or None if one can."""
    reasons = {name: family.unsupported(spec, target) for name, family in serving(spec.op, families).items()}
    if None in reasons.values():
        return None
    why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    return f"no family writes {spec.key} for {target.slug}: {why or f'none of {list(families)} is for op {spec.op}'}"


def _by_reason(rejected: Sequence[tuple[KernelConfig, Rejected]]) -> list[str]:
    lines = []
    for reason in Reason:
        of_reason = [(config, each) for config, each in rejected if each.reason == reason]
        if of_reason:
            config, example = of_reason[0]
            lines.append(f"  {reason:<10} {len(of_reason):>5}, such as {config.key}: {example.detail}")
    return lines


def _advice(rejected: Sequence[tuple[KernelConfig, Rejected]], counts: FunnelCounts) -> str:
    if not counts.enumerated:
        return _ADVICE[Reason.CONSTRAINT]
    if not rejected:
        return "nothing was tried: allow at least one trial, and time for it"
    reasons = [each.reason for _, each in rejected]
    return _ADVICE.get(max(Reason, key=reasons.count), "")


def _shared_bytes(
    spec: AttentionSpec, target: GpuTarget, spaces: Sequence[Space], records: Sequence[TrialRecord]
) -> list[int]:
    """What the configs that fell for shared memory need: by the bound, or by the compiler where it was asked."""
    needs = [sram_bound(spec, config, target) for space in spaces for config, _ in space.rejected]
    for record in records:
        outcome = record.outcome
        if isinstance(outcome, Fallen) and outcome.rejected.reason == Reason.SRAM and outcome.resources is not None:
            needs.append(outcome.resources.shared_bytes)
    return needs
