"""The tensors that passes and features bring: their shapes, values and surroundings. Layouts are in test_layouts.py."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from flashgen.spec import AttentionSpec
from flashgen.verify.lay_out import lay_out
from flashgen.verify.probes import Bias, Layout, Probe
from flashgen.verify.reference import reference
from flashgen.verify.tensors import Tensors

_SHAPE = (2, 4, 2, 5, 6)
_PROBE = Probe(name="a", op="backward", shape=_SHAPE, dlse=True)
_EVERY = AttentionSpec.of_variant("full_alibi_bias_sink_dropout", dtype="fp16", head_dim=16, head_dim_v=24)
_BACKWARD = AttentionSpec.of_variant("full", dtype="fp16", head_dim=16, head_dim_v=24, op="backward")


def _mask(seed: torch.Tensor, *shape: Any) -> torch.Tensor:
    *sizes, dropout_p, _ = shape
    return torch.rand(*sizes, generator=torch.Generator().manual_seed(int(seed[0]))) >= dropout_p


def _laid_out(probe: Probe = _PROBE, spec: AttentionSpec = _BACKWARD, seed: int = 0) -> Tensors:
    tensors = lay_out(replace(probe, op=spec.op), spec, torch.float16, torch.device("cpu"), seed, _mask)
    assert tensors is not None
    return tensors


def _shapes(tensors: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.view.shape) for name, tensor in tensors.items()}


def test_backward_gets_what_the_forward_left() -> None:
    tensors = _laid_out()
    assert _shapes(tensors.inputs) == {
        "q": (2, 4, 5, 16),
        "k": (2, 2, 6, 16),
        "v": (2, 2, 6, 24),
        "out": (2, 4, 5, 24),
        "lse": (2, 4, 5),
        "dout": (2, 4, 5, 24),
        "dlse": (2, 4, 5),
    }
    assert _shapes(tensors.outputs) == {"dq": (2, 4, 5, 16), "dk": (2, 2, 6, 16), "dv": (2, 2, 6, 24)}
    out, lse = reference(*tensors.seen(), tensors.scoring)
    assert torch.equal(tensors.inputs["out"].view, out.half())
    assert torch.equal(tensors.inputs["lse"].view, lse.float())
    assert {x.view.dtype for name, x in tensors.inputs.items() if name not in ("lse", "dlse")} == {torch.float16}
    assert tensors.inputs["lse"].view.dtype == tensors.inputs["dlse"].view.dtype == torch.float32


def test_both_passes_get_the_same_inputs() -> None:
    forward, backward = _laid_out(spec=replace(_BACKWARD, op="forward")), _laid_out()
    assert set(forward.inputs) == {"q", "k", "v"}
    assert set(forward.outputs) == {"out", "lse"}
    assert all(torch.equal(forward.inputs[name].view, backward.inputs[name].view) for name in "qkv")


def test_what_is_not_wanted_is_not_there() -> None:
    probe = replace(_PROBE, dlse=False, wanted=("dk", "dsinks"))
    tensors = _laid_out(probe, replace(_EVERY, op="backward"))
    assert set(tensors.outputs) == {"dk", "dsinks"}
    assert tensors.view("dq") is None
    assert tensors.view("dlse") is None
    assert tensors.view("dk") is tensors.outputs["dk"].view


def test_features_bring_their_tensors() -> None:
    tensors = _laid_out(spec=_EVERY)
    added = {name: x for name, x in tensors.inputs.items() if name not in ("q", "k", "v")}
    assert _shapes(added) == {"alibi_slopes": (2, 4), "bias": (2, 4, 5, 6), "sinks": (4,), "seed": (2,)}
    slopes, sinks, seed = (added[name].view for name in ("alibi_slopes", "sinks", "seed"))
    assert len(slopes.unique()) == 8
    assert 0.0 <= slopes.min() <= slopes.max() <= 0.1
    assert len(sinks.unique()) == 4
    assert seed.dtype == torch.int64
    assert tensors.features.dropout_p == 0.25
    assert torch.equal(tensors.features.keep, _mask(seed, 2, 4, 5, 6, 0.25, None))  # type: ignore[arg-type]
    assert not torch.equal(seed, _laid_out(spec=_EVERY, seed=1).inputs["seed"].view)


@pytest.mark.parametrize(
    ("dims", "shape"),
    [("zhqk", (2, 4, 5, 6)), ("qk", (1, 1, 5, 6)), ("zk", (2, 1, 1, 6)), ("hq", (1, 4, 5, 1)), ("", (1, 1, 1, 1))],
)
def test_a_bias_has_length_1_where_it_broadcasts(dims: str, shape: tuple[int, ...]) -> None:
    """Its gradient has all queries and keys: a kernel sums over batches and heads."""
    tensors = _laid_out(replace(_PROBE, bias=Bias(dims=dims)), replace(_EVERY, op="backward"))
    assert tuple(tensors.inputs["bias"].view.shape) == shape
    assert tensors.features.bias is not None
    assert tuple(tensors.features.bias.shape) == (*shape[:2], 5, 6)
    dbias = tensors.outputs["dbias"].view
    assert tuple(dbias.shape) == (*shape[:2], 5, 6)
    assert dbias.dtype == torch.float32
    assert dbias.is_contiguous()


def test_a_bias_may_have_its_own_dtype() -> None:
    own, wide = (
        _laid_out(replace(_PROBE, bias=Bias(fp32=fp32)), _EVERY).inputs["bias"].view.dtype for fp32 in (False, True)
    )
    assert (own, wide) == (torch.float16, torch.float32)


@pytest.mark.parametrize(
    ("layout", "strides"),
    [("one_row", (0, 0, 0, 1)), ("cache_tail", (4 * 24 * 37, 24 * 37, 24, 1)), (None, (5 * 4 * 24, 24, 4 * 24, 1))],
)
def test_dout_has_a_layout_of_its_own(layout: Layout | None, strides: tuple[int, ...]) -> None:
    tensors = _laid_out(replace(_PROBE, dout_layout=layout))
    assert tensors.inputs["dout"].view.stride() == strides
    assert tensors.inputs["dout"].view.isfinite().all()
    assert tensors.inputs["q"].view.stride() == (5 * 4 * 16, 16, 4 * 16, 1)


def test_a_far_dout_lies_apart() -> None:
    tensors = _laid_out(replace(_PROBE, shape=(1, 1, 1, 3, 3), dout_layout="far_rows"))
    assert tensors.inputs["dout"].view.stride(2) == 2**30
    assert tensors.inputs["q"].view.stride(2) == 16


def test_gradients_that_are_written_share_no_memory() -> None:
    tensors = _laid_out(replace(_PROBE, layout="expanded"))
    assert tensors.inputs["k"].view.stride(1) == 0
    assert all(output.view.stride(1) for output in tensors.outputs.values())


def test_surroundings_of_what_is_read_are_nan() -> None:
    tensors = _laid_out(spec=replace(_EVERY, op="backward"))
    for name, tensor in tensors.inputs.items():
        if name != "seed":
            assert tensor.buffer[0].isnan()
            assert tensor.buffer[-1].isnan()
            assert int(tensor.buffer.isnan().sum()) == tensor.buffer.numel() - tensor.view.numel()


def test_unseen_keys_have_no_say_in_what_the_forward_left() -> None:
    spec = replace(_BACKWARD, window=True)
    tensors = _laid_out(Probe(name="a", op="backward", shape=(1, 2, 1, 4, 30), window=(3, 0)), spec)
    assert tensors.first_seen_key == 23
    assert tensors.inputs["k"].view[:, :, :23].isnan().all()
    assert tensors.inputs["out"].view.isfinite().all()
    assert not math.isnan(float(tensors.inputs["lse"].view.sum()))


@pytest.mark.parametrize("name", ["dout", "dlse", "lse", "seed", "sinks", "alibi_slopes", "bias"])
def test_a_changed_input_is_damage(name: str) -> None:
    tensors = _laid_out(spec=replace(_EVERY, op="backward"))
    assert tensors.damage() is None
    view = tensors.inputs[name].view
    view[(0,) * view.dim()] += 1 if name == "seed" else 0.5
    assert tensors.damage() == f"wrote to {name} or next to it"


@pytest.mark.parametrize("name", ["dq", "dk", "dv", "dbias", "dsinks"])
def test_what_is_written_beside_a_gradient_is_damage(name: str) -> None:
    tensors = _laid_out(spec=replace(_EVERY, op="backward"))
    tensors.poison()
    assert tensors.outputs[name].view.isnan().all()
    tensors.outputs[name].buffer[-1] = 0.0
    assert tensors.damage() == f"wrote outside {name}"
