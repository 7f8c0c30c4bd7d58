"""Proves one rule of an emitted module: runs it on every probe of a suite, twice, and compares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flashgen.compiler.classify import run_failure
from flashgen.outcome import Proof, Reason, Rejected
from flashgen.spec import TORCH_NAMES, AttentionSpec, Dtype
from flashgen.verify.dropout import unfairness
from flashgen.verify.lay_out import lay_out
from flashgen.verify.layouts import bits
from flashgen.verify.passes import PASSES, Pass
from flashgen.verify.probes import Suite
from flashgen.verify.tensors import Tensors

if TYPE_CHECKING:
    import torch

    Results = dict[str, torch.Tensor]

REPEATS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one probe showed: the worst error over its allowance (exact up to 1), and the numbers in words."""

    probe: str
    ratio: float
    detail: str


def prove_rule(
    module: ModuleType,
    rule: Any,
    spec: AttentionSpec,
    dtype: Dtype,
    device: torch.device | str,
    suite: Suite,
    seed: int,
    *,
    stop_at_failure: bool = False,
    on_probe: Callable[[str], None] | None = None,
) -> Proof | Rejected:
    """Whether `rule` of an emitted `module` computes `spec`, forward or backward, in `dtype` on `device`.

    A rule is rejected as INEXACT when an output strays, differs between two runs or is not written, or when anything
    else is written; as LAUNCH, COMPILE or CRASHED when it does not run. After CRASHED on a GPU this process can use the
    GPU no more. Probes whose tensors the module would not give to this rule are left out, as are those that the
    device's memory cannot hold. With `stop_at_failure` the first probe that fails is the last one run; `on_probe` is
    told each probe's name before it is run.

    Raises:
        ValueError: bf16 on the CPU, where Triton's interpreter multiplies bit patterns.
    """
    import torch

    device = torch.device(device)
    if device.type == "cpu" and dtype == "bf16":
        raise ValueError("dtype is bf16 on the CPU, where Triton's interpreter computes nonsense; prove fp16 or fp32")
    direction, dropout_mask = PASSES[spec.op], module.dropout_mask if spec.dropout else None
    findings: list[Finding] = []
    for probe in suite.suited(spec):
        tensors = lay_out(probe, spec, getattr(torch, TORCH_NAMES[dtype]), device, seed, dropout_mask)
        if tensors is None or not _takes(direction, module, rule, tensors):
            continue
        if on_probe is not None:
            on_probe(probe.name)
        runs = _runs(direction, module, rule, tensors, device)
        if isinstance(runs, Rejected):
            return replace(runs, detail=f"probe {probe.name!r}: {runs.detail}")
        found = _judged(direction, probe.name, runs, tensors, getattr(rule.config, "unordered", ()))
        findings.append(found)
        if stop_at_failure and not found.ratio <= 1.0:
            break
    return _verdict(findings, suite, seed, dtype, "interpreter" if device.type == "cpu" else "gpu")


def _verdict(findings: list[Finding], suite: Suite, seed: int, dtype: Dtype, where: str) -> Proof | Rejected:
    if not findings:
        return Rejected(reason=Reason.CONSTRAINT, detail=f"no probe of suite {suite.name} has tensors for this rule")
    worst = max(findings, key=lambda found: found.ratio)
    failed = sum(not found.ratio <= 1.0 for found in findings)
    if failed:
        detail = f"{failed} of {len(findings)} probes failed, worst {worst.probe!r}: {worst.detail}"
        return Rejected(reason=Reason.INEXACT, detail=f"{detail} ({dtype}, {where}, seed {seed})")
    return Proof(
        suite=suite.name,
        suite_hash=suite.hash,
        where=where,
        dtypes=(dtype,),
        probes=len(findings),
        worst_ratio=worst.ratio,
        worst_probe=worst.probe,
        seed=seed,
        repeats=REPEATS,
    )


def _takes(direction: Pass, module: ModuleType, rule: Any, tensors: Tensors) -> bool:
    """Whether the module would give these tensors to this rule: TMA cannot describe all of them."""
    if not getattr(rule.config, "tma", False):
        return True
    return all(module._can_describe(x) for x in map(tensors.view, direction.tiled) if x is not None)


def _runs(
    direction: Pass, module: ModuleType, rule: Any, tensors: Tensors, device: torch.device
) -> list[Results] | Rejected:
    """The outputs of every repeat, each into poisoned memory; or what went wrong with a launch."""
    import torch

    runs = []
    for _ in range(REPEATS):
        tensors.poison()
        try:
            with _poisoned_scratch():
                direction.launch(module, rule, tensors)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        except Exception as error:  # whatever the launch raises is the candidate's failure
            return run_failure(error)
        runs.append(tensors.results())
    return runs


@contextmanager
def _poisoned_scratch() -> Iterator[None]:
    """What a launch allocates for itself is NaN too: torch fills empty tensors while it has to be deterministic."""
    import torch

    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


def _judged(direction: Pass, probe: str, runs: list[Results], tensors: Tensors, unordered: tuple[str, ...]) -> Finding:
    """What the runs show; of several outputs the worst counts. Those in `unordered`, whose terms are added up in any
    order, may differ from run to run, and are judged in each."""
    if (flaw := _flaw(runs, tensors, unordered)) is not None:
        return Finding(probe=probe, ratio=math.inf, detail=flaw)
    expected = direction.expect(tensors)
    results = [*runs[0].items(), *((name, run[name]) for run in runs[1:] for name in unordered if name in run)]
    deviations = [(name, expected[name].deviation_of(result)) for name, result in results]
    name, worst = max(deviations, key=lambda item: item[1].ratio)
    return Finding(probe=probe, ratio=worst.ratio, detail=f"{name}: {worst}")


def _flaw(runs: list[Results], tensors: Tensors, unordered: tuple[str, ...]) -> str | None:
    """What is wrong whatever the numbers are, or None."""
    import torch

    if (damage := tensors.damage()) is not None:
        return damage
    first, *others = runs
    ordered = [name for name in first if name not in unordered]
    if not all(torch.equal(bits(first[name]), bits(other[name])) for other in others for name in ordered):
        return "two runs differ"
    keep = tensors.features.keep
    return None if keep is None else unfairness(keep, tensors.features.dropout_p)
