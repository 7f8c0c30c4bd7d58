"""The prover's verdicts on kernels that are Python functions: right ones, and one for each way to be wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch

from flashgen.outcome import Proof, Reason, Rejected
from flashgen.spec import AttentionSpec
from flashgen.verify.probes import Probe, Suite
from flashgen.verify.prove import prove_rule
from flashgen.verify.reference import Scoring, reference

_SPEC = AttentionSpec(dtype="fp16", head_dim=16, head_dim_v=16, causal=True)
_SUITE = Suite(
    name="small",
    probes=tuple(Probe(name=f"{rows} rows", shape=(1, 2, 1, rows, 9)) for rows in (4, 12, 7)),
)
Kernel = Callable[..., None]


def _exact(rule: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, scale: float, *bounds: Any) -> None:
    left, right, softcap = bounds
    results = reference(q, k, v, Scoring(scale=scale, left=left, right=right, softcap=softcap))
    out.copy_(results[0])
    lse.copy_(results[1])


def _then(act: Callable[[Any], None]) -> Kernel:
    """The exact kernel, after which `act` gets its arguments by name."""

    def kernel(rule: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *rest: Any) -> None:
        _exact(rule, q, k, v, out, lse, *rest)
        act(SimpleNamespace(q=q, k=k, v=v, out=out, lse=lse))

    return kernel


def _prove(kernel: Kernel, *, tma: bool = False, describable: bool = True, **options: Any) -> Proof | Rejected:
    module = SimpleNamespace(_execute=kernel, _can_describe=lambda x: describable)
    rule = SimpleNamespace(config=SimpleNamespace(tma=tma))
    return prove_rule(cast(ModuleType, module), rule, _SPEC, "fp16", "cpu", _SUITE, 7, **options)


def _raise(error: Exception) -> Kernel:
    def kernel(*_: Any) -> None:
        raise error

    return kernel


def test_exact_kernel_is_proven() -> None:
    proof = _prove(_exact)
    assert isinstance(proof, Proof), proof
    assert 0.0 < proof.worst_ratio <= 1.0
    assert proof.worst_probe in {probe.name for probe in _SUITE.probes}
    assert (proof.suite, proof.suite_hash, proof.probes, proof.seed) == ("small", _SUITE.hash, 3, 7)
    assert (proof.where, proof.dtypes, proof.repeats) == ("interpreter", ("fp16",), 2)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda x: x.out.mul_(1.01), "out: "),
        (lambda x: x.out[:, :, -1].fill_(math.nan), "NaN"),
        (lambda x: x.lse.add_(0.01), "lse: "),
        (lambda x: x.lse.mul_(math.log2(math.e)), "lse: "),
        (lambda x: x.lse.clamp_(min=-1e30), "infinite"),
        (lambda x: x.k.add_(1.0), "wrote to k"),
        (lambda x: x.out.as_strided((1,), (1,), x.out.storage_offset() - 1).zero_(), "wrote outside out"),
        (lambda x: x.lse.as_strided((1,), (1,), x.lse.storage_offset() + x.lse.numel()).zero_(), "wrote outside lse"),
    ],
    ids=["scaled", "unwritten", "lse", "base 2", "finite", "input", "before out", "after lse"],
)
def test_fault_is_inexact(act: Callable[[Any], None], says: str) -> None:
    rejected = _prove(_then(act))
    assert isinstance(rejected, Rejected)
    assert rejected.reason is Reason.INEXACT
    assert says in rejected.detail
    assert "of 3 probes failed" in rejected.detail
    assert "seed 7" in rejected.detail


def test_rows_left_unwritten_are_seen_though_memory_holds_the_answer() -> None:
    """The second run must not pass on what the first one left."""
    calls: list[int] = []

    def writes_once(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) % 2:
            _exact(*arguments)

    rejected = _prove(writes_once)
    assert isinstance(rejected, Rejected)
    assert "two runs differ" in rejected.detail


def test_runs_that_differ_within_rounding_are_inexact() -> None:
    calls: list[int] = []

    def last_bit(x: Any) -> None:
        calls.append(1)
        x.out[0, 0, -1, 0] *= 1.0 + 2.0**-10 * (len(calls) % 2)

    rejected = _prove(_then(last_bit))
    assert isinstance(rejected, Rejected)
    assert "two runs differ" in rejected.detail


def test_the_worst_probe_is_named() -> None:
    rejected = _prove(_then(lambda x: x.out.mul_(2.0 if x.out.shape[2] == 12 else 1.02)))
    assert isinstance(rejected, Rejected)
    assert rejected.detail.startswith("3 of 3 probes failed, worst '12 rows': out: ")


def test_stops_at_the_first_failure_if_asked() -> None:
    run: list[str] = []
    rejected = _prove(_then(lambda x: x.out.mul_(2.0)), stop_at_failure=True, on_probe=run.append)
    assert isinstance(rejected, Rejected)
    assert run == ["4 rows"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), Reason.CRASHED),
        (RuntimeError("out of resource: shared memory, Required: 300000, Hardware limit: 232448"), Reason.LAUNCH),
        (torch.OutOfMemoryError("CUDA out of memory"), Reason.LAUNCH),
        (ValueError("arange's range must be a power of 2"), Reason.COMPILE),
    ],
)
def test_a_launch_that_fails_is_data(error: Exception, reason: Reason) -> None:
    rejected = _prove(_raise(error))
    assert isinstance(rejected, Rejected)
    assert rejected.reason is reason
    assert rejected.detail.startswith("probe '4 rows': ")


def test_errors_of_the_prover_itself_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("flashgen.verify.prove.reference", broken)
    with pytest.raises(ZeroDivisionError):
        _prove(_exact)


def test_tensors_that_tma_cannot_describe_are_left_out() -> None:
    assert isinstance(_prove(_exact, tma=True), Proof)
    rejected = _prove(_exact, tma=True, describable=False)
    assert isinstance(rejected, Rejected)
    assert rejected.reason is Reason.CONSTRAINT


def test_bf16_is_not_shown_on_the_cpu() -> None:
    with pytest.raises(ValueError, match="bf16"):
        prove_rule(cast(ModuleType, SimpleNamespace()), SimpleNamespace(), _SPEC, "bf16", "cpu", _SUITE, 0)
