"""Probes and suites as data, and the values that are drawn for them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flashgen.spec import FEATURES, OPS, AttentionSpec, Op
from flashgen.verify import criterion
from flashgen.verify.lay_out import lay_out
from flashgen.verify.probes import Fill, Probe, Suite
from flashgen.verify.reference import reference
from flashgen.verify.suites import FULL, QUICK, SUITES

_CPU = torch.device("cpu")
_FULL = AttentionSpec(dtype="fp16", head_dim=16, head_dim_v=16)
_CAUSAL = replace(_FULL, causal=True)
_WINDOW = replace(_FULL, window=True)
_SOFTCAP = replace(_WINDOW, softcap=True)
_EVERY = replace(_SOFTCAP, alibi=True, bias=True, sink=True, dropout=True)


def _drawn(probe: Probe, seed: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    tensors = lay_out(probe, _FULL, dtype, _CPU, seed)
    assert tensors is not None
    return tensors.seen()


def test_full_holds_quick() -> None:
    assert FULL.probes[: len(QUICK.probes)] == QUICK.probes
    assert SUITES == {"quick": QUICK, "full": FULL}


@pytest.mark.parametrize("op", OPS)
def test_probes_suit_their_specs(op: Op) -> None:
    counts = [len(QUICK.suited(replace(spec, op=op))) for spec in (_FULL, _CAUSAL, _WINDOW, _SOFTCAP, _EVERY)]
    assert counts[0] == counts[1] < counts[2] < counts[3] < counts[4]
    fair = [probe for probe in QUICK.probes if probe.op == op and not probe.without and probe.only != "is_fp8"]
    assert list(QUICK.suited(replace(_EVERY, op=op))) == fair


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("op", OPS)
def test_every_feature_has_probes_of_its_own(op: Op, feature: str) -> None:
    spec = AttentionSpec.of_variant(f"full_{feature}", dtype="fp16", head_dim=16, op=op)
    assert sum(probe.only == feature for probe in QUICK.suited(spec)) >= 1
    assert not any(feature in probe.without for probe in QUICK.suited(spec))


@pytest.mark.parametrize(("op", "pairs"), [("forward", 500_000), ("backward", 250_000)])
def test_quick_probes_are_small_enough_to_interpret(op: Op, pairs: int) -> None:
    """Half a million scores take some ten seconds, or a minute in the smallest tiles; a backward one costs two."""
    suited = QUICK.suited(replace(_FULL, op=op))
    shapes = [probe.shape for probe in suited]
    assert sum(batch * heads * queries * keys for batch, heads, _, queries, keys in shapes) <= pairs


@pytest.mark.parametrize(
    ("spec", "bounds"),
    [(_FULL, (-1, -1, 0.0)), (_CAUSAL, (-1, 0, 0.0)), (_WINDOW, (9, 2, 0.0)), (_SOFTCAP, (9, 2, 7.0))],
)
def test_the_mask_is_the_specs(spec: AttentionSpec, bounds: tuple[int, int, float]) -> None:
    scoring = Probe(name="a", shape=(1, 1, 1, 2, 3), window=(9, 2), softcap=7.0).scoring(spec)
    assert (scoring.left, scoring.right, scoring.softcap) == bounds
    assert scoring.scale == 0.25


def test_hash_is_over_the_whole_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = Probe(name="a", shape=(1, 1, 1, 2, 3))
    hashes = {
        Suite(name="s", probes=(replace(probe, **change),)).hash for change in ({}, {"scale": 0.5}, {"q": Fill(gain=2)})
    }
    assert len(hashes) == 3
    before = QUICK.hash
    assert before == Suite(name="renamed", probes=QUICK.probes).hash
    monkeypatch.setattr(criterion, "ROW_FACTOR", 3.0)
    assert QUICK.hash != before


@pytest.mark.parametrize("op", OPS)
def test_large_scores_are_left_to_the_forward_pass(op: Op) -> None:
    """P recomputed of an lse in fp32 is off by |lse| * 2^-24, which must stay well within what fp32 is allowed."""
    spec = AttentionSpec.of_variant("full", dtype="fp32", head_dim=64, op=op)
    worst = 0.0
    for probe in QUICK.suited(spec):
        tensors = lay_out(probe, spec, torch.float32, _CPU, 1)
        assert tensors is not None
        lse = reference(*tensors.seen(), tensors.scoring)[1]
        worst = max([worst, *lse[lse.isfinite()].abs().flatten().tolist()])
    assert worst < 300 if op == "backward" else worst > 1e9


def test_two_probes_of_one_name_are_refused() -> None:
    with pytest.raises(AssertionError, match="twice"):
        Suite(name="s", probes=(Probe(name="a", shape=(1, 1, 1, 1, 1)),) * 2)


def test_values_follow_seed_and_probe() -> None:
    probe = Probe(name="a", shape=(1, 1, 1, 4, 4))
    first, again, other = _drawn(probe, 1), _drawn(probe, 1), _drawn(probe, 2)
    renamed = _drawn(replace(probe, name="b"), 1)
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    assert not any(torch.equal(x, y) for x, y in zip(first, other, strict=True))
    assert not any(torch.equal(x, y) for x, y in zip(first, renamed, strict=True))
    assert not torch.equal(first[1], first[2])


@pytest.mark.parametrize(
    "probe", [p for p in QUICK.probes if p.q.kind != "normal"], ids=lambda probe: f"{probe.op} {probe.name}"
)
def test_large_scores_do_not_depend_on_the_order_of_sums(probe: Probe) -> None:
    spec = replace(_FULL, head_dim=64)
    tensors = lay_out(probe, spec, torch.float32, _CPU, 1)
    assert tensors is not None
    q, k, _ = tensors.seen()
    group = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(group, 1)
    exact = q.double() @ k.double().transpose(-1, -2)
    for order in (torch.arange(64), torch.arange(63, -1, -1), torch.randperm(64)):
        assert torch.equal((q[..., order] @ k[..., order].transpose(-1, -2)).double(), exact)


@pytest.mark.parametrize(("kind", "peak"), [("rising", -1), ("last", -1), ("falling", 0), ("first", 0)])
def test_the_maximum_stands_where_it_is_said_to(kind: str, peak: int) -> None:
    probe = Probe(name="a", shape=(1, 1, 1, 1, 100), k=Fill(kind=kind, gain=20.0))  # type: ignore[arg-type]
    _, k, _ = _drawn(probe, 1)
    means = k.mean(-1).flatten()
    assert means[peak] > 15
    assert means[-1 - peak] < 5


def test_what_the_dtype_cannot_hold_is_halved() -> None:
    huge = Fill(kind="constant", gain=133120.0)
    probe = Probe(name="a", shape=(1, 1, 1, 1, 1), q=huge, k=huge, v=huge)
    assert (_drawn(probe, 1, torch.bfloat16)[0] == 133120.0).all()
    assert (_drawn(probe, 1, torch.float16)[0] == 16640.0).all()


def test_keys_that_no_query_sees_are_nan() -> None:
    probe = Probe(name="a", shape=(1, 1, 1, 4, 10), window=(2, 0))
    tensors = lay_out(probe, _WINDOW, torch.float32, _CPU, 1)
    assert tensors is not None
    assert probe.first_seen_key(_WINDOW) == 4
    _, k, v = tensors.seen()
    for name, seen in (("k", k), ("v", v)):
        view = tensors.inputs[name].view
        assert view[:, :, :4].isnan().all()
        assert (seen[:, :, :4] == 0).all()
        assert torch.equal(seen[:, :, 4:], view[:, :, 4:])
    assert [probe.first_seen_key(spec) for spec in (_FULL, _CAUSAL)] == [0, 0]
