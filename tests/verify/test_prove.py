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
from flashgen.verify.probes import Bias, Probe, Suite
from flashgen.verify.prove import prove_rule
from flashgen.verify.reference import Features, Scoring, reference, reference_gradients

_SPEC = AttentionSpec(dtype="fp16", head_dim=16, head_dim_v=16, causal=True)
_SUITE = Suite(
    name="small",
    probes=tuple(Probe(name=f"{rows} rows", shape=(1, 2, 1, rows, 9)) for rows in (4, 12, 7)),
)
_EVERY = AttentionSpec.of_variant(
    "window_softcap_alibi_bias_sink_dropout", dtype="fp16", head_dim=16, head_dim_v=24, op="backward"
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


def _dropout_mask(seed: Any, batch: int, heads: int, rows: int, keys: int, dropout_p: float, device: Any) -> Any:
    generator = torch.Generator().manual_seed(int(seed[0]))
    return torch.rand(batch, heads, rows, keys, generator=generator) >= dropout_p


def _exact_backward(
    rule: Any, dout: Any, dlse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, dq: Any, dk: Any, dv: Any, *rest: Any,
    dbias: Any = None, dsinks: Any = None, seed: Any = None, dropout_p: float = 0.0, **given: Any,
) -> None:  # fmt: skip
    scale, left, right, softcap = rest
    scoring = Scoring(scale=scale, left=left, right=right, softcap=softcap)
    keep = None if seed is None else _dropout_mask(seed, *q.shape[:3], k.shape[2], dropout_p, q.device)
    features = Features(**given, keep=keep, dropout_p=dropout_p)
    gradients = reference_gradients(q, *(x.nan_to_num(0.0) for x in (k, v)), dout, scoring, features, dlse)
    if dbias is not None:
        dbias.copy_(gradients["dbias"].sum_to_size(dbias.shape))
    for name, output in (("dq", dq), ("dk", dk), ("dv", dv), ("dsinks", dsinks)):
        if output is not None:
            output.copy_(gradients[name])


def _then_backward(act: Callable[[Any], None]) -> Kernel:
    """The exact backward pass, after which `act` gets its tensors by name."""
    names = ("dout", "dlse", "q", "k", "v", "out", "lse", "dq", "dk", "dv")

    def kernel(rule: Any, *arguments: Any, **given: Any) -> None:
        _exact_backward(rule, *arguments, **given)
        act(SimpleNamespace(**dict(zip(names, arguments)), **given))

    return kernel


def _prove_backward(kernel: Kernel, *, spec: AttentionSpec = _EVERY, mask: Any = _dropout_mask) -> Proof | Rejected:
    module = SimpleNamespace(_execute_backward=kernel, dropout_mask=mask)
    probes = (
        Probe(name="dlse", op="backward", shape=(2, 4, 2, 9, 33), dlse=True, window=(12, 3)),
        Probe(name="some", op="backward", shape=(1, 2, 1, 20, 7), wanted=("dq", "dbias"), bias=Bias(dims="qk")),
    )
    rule = SimpleNamespace(config=SimpleNamespace())
    return prove_rule(cast(ModuleType, module), rule, spec, "fp16", "cpu", Suite(name="two", probes=probes), 7)


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


def test_exact_backward_is_proven() -> None:
    proof = _prove_backward(_exact_backward)
    assert isinstance(proof, Proof), proof
    assert proof.probes == 2
    assert 0.0 < proof.worst_ratio <= 1.0


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda x: x.dq.mul_(1.01), "dq: "),
        (lambda x: x.dk is None or x.dk.mul_(1.01), "dk: "),
        (lambda x: x.dv is None or x.dv[:, :, -1].mul_(1.01), "dv: row error"),
        (lambda x: x.dbias.mul_(1.01), "dbias: "),
        (lambda x: x.dsinks is None or x.dsinks.add_(0.01), "dsinks: "),
        (lambda x: x.dq[:, :, -1].fill_(math.nan), "NaN"),
        (lambda x: x.dout.add_(1.0), "wrote to dout"),
        (lambda x: x.lse.add_(1.0), "wrote to lse"),
        (lambda x: x.seed.add_(1), "wrote to seed"),
        (lambda x: x.bias.as_strided((1,), (1,), x.bias.storage_offset()).zero_(), "wrote to bias"),
        (lambda x: x.dbias.as_strided((1,), (1,), x.dbias.storage_offset() - 1).zero_(), "wrote outside dbias"),
    ],
    ids=["dq", "dk", "dv", "dbias", "dsinks", "unwritten", "dout", "lse", "seed", "bias", "before dbias"],
)
def test_fault_of_a_gradient_is_inexact(act: Callable[[Any], None], says: str) -> None:
    rejected = _prove_backward(_then_backward(act))
    assert isinstance(rejected, Rejected)
    assert rejected.reason is Reason.INEXACT
    assert says in rejected.detail


def test_a_mask_that_drops_nothing_is_no_dropout() -> None:
    def everything(seed: Any, *shape: Any) -> Any:
        return torch.ones(shape[:4], dtype=torch.bool)

    spec = AttentionSpec.of_variant("causal_dropout", dtype="fp16", head_dim=16, op="backward")
    rejected = _prove_backward(lambda *_, **__: None, spec=spec, mask=everything)
    assert isinstance(rejected, Rejected)
    assert "dropout_mask keeps 2376 of 2376 pairs where 1782 are due" in rejected.detail


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

    monkeypatch.setattr("flashgen.verify.expected.reference", broken)
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
