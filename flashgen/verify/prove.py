"""Proves one rule of an emitted module: runs it on every probe of a suite, twice, and compares."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flashgen.compiler.classify import run_failure
from flashgen.outcome import Proof, Reason, Rejected
from flashgen.spec import AttentionSpec, Dtype
from flashgen.verify.criterion import deviation
from flashgen.verify.layouts import bits
from flashgen.verify.probes import Probe, Suite
from flashgen.verify.reference import Scoring, reference, standard
from flashgen.verify.tensors import Tensors, lay_out

if TYPE_CHECKING:
    import torch

REPEATS = 2
_TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


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
    """Whether `rule` of an emitted `module` computes `spec`, in `dtype` on `device`.

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
    findings: list[Finding] = []
    for probe in suite.suited(spec):
        tensors = lay_out(probe, spec, getattr(torch, _TORCH_NAMES[dtype]), device, seed)
        if tensors is None or not _takes(module, rule, tensors):
            continue
        if on_probe is not None:
            on_probe(probe.name)
        found = _examine(module, rule, probe, tensors, probe.scoring(spec))
        if isinstance(found, Rejected):
            return found
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


def _takes(module: ModuleType, rule: Any, tensors: Tensors) -> bool:
    """Whether the module would give these tensors to this rule: TMA cannot describe all of them."""
    if not getattr(rule.config, "tma", False):
        return True
    return all(module._can_describe(x.view) for x in (tensors.q, tensors.k, tensors.v, tensors.out))


def _examine(module: ModuleType, rule: Any, probe: Probe, tensors: Tensors, scoring: Scoring) -> Finding | Rejected:
    import torch

    runs = []
    for _ in range(REPEATS):
        tensors.poison()
        if (failure := _run(module, rule, tensors, scoring)) is not None:
            return Rejected(reason=failure.reason, detail=f"probe {probe.name!r}: {failure.detail}")
        runs.append((tensors.out.view.clone(), tensors.lse.view[..., 0].clone()))
    if (damage := tensors.damage()) is not None:
        return Finding(probe=probe.name, ratio=math.inf, detail=damage)
    if not all(torch.equal(bits(first), bits(second)) for first, second in zip(*runs, strict=True)):
        return Finding(probe=probe.name, ratio=math.inf, detail="two runs differ")
    return _compare(probe, runs[0], tensors, scoring)


def _run(module: ModuleType, rule: Any, tensors: Tensors, scoring: Scoring) -> Rejected | None:
    """One launch of the rule, waited for; what went wrong, or None."""
    import torch

    views = (x.view for x in (tensors.q, tensors.k, tensors.v, tensors.out))
    lse = tensors.lse.view[..., 0]
    try:
        module._execute(rule, *views, lse, scoring.scale, scoring.left, scoring.right, scoring.softcap)
        if lse.is_cuda:
            torch.cuda.synchronize(lse.device)
    except Exception as error:  # whatever the launch raises is the candidate's failure
        return run_failure(error)
    return None


def _compare(probe: Probe, run: tuple[torch.Tensor, torch.Tensor], tensors: Tensors, scoring: Scoring) -> Finding:
    """out and lse against float64; the worse of the two counts."""
    expected, yardstick = reference(*tensors.seen(), scoring), standard(*tensors.seen(), scoring)
    out = deviation(run[0], expected[0], yardstick[0])
    lse = deviation(run[1], expected[1], yardstick[1], unit=1.0)
    worst, name = (out, "out") if out.ratio >= lse.ratio else (lse, "lse")
    return Finding(probe=probe.name, ratio=worst.ratio, detail=f"{name}: {worst}")
