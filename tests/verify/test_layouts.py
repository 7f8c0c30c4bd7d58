"""Layouts put every element where it is said to be, and guards notice what is done round it."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch

from flashgen.spec import AttentionSpec
from flashgen.verify.lay_out import lay_out
from flashgen.verify.layouts import is_far, strides_of
from flashgen.verify.probes import Layout, Probe
from flashgen.verify.tensors import Tensors

_SPEC = AttentionSpec(dtype="fp16", head_dim=16, head_dim_v=24)
_LAYOUTS: tuple[Layout, ...] = tuple(layout for layout in get_args(Layout) if layout != "one_row")
_NEAR = tuple(layout for layout in _LAYOUTS if not is_far(layout))


def _laid_out(layout: Layout, shape: tuple[int, int, int, int, int] = (2, 4, 2, 5, 6)) -> Tensors:
    tensors = lay_out(Probe(name="a", shape=shape, layout=layout), _SPEC, torch.float16, torch.device("cpu"), 0)
    assert tensors is not None
    return tensors


def _view(tensors: Tensors, name: str) -> torch.Tensor:
    view = tensors.view(name)
    assert view is not None
    return view


def _addresses(view: torch.Tensor) -> torch.Tensor:
    """The place of every element in its buffer."""
    addresses = torch.tensor([view.storage_offset()])
    for length, stride in zip(view.shape, view.stride(), strict=True):
        addresses = (addresses[:, None] + torch.arange(length) * stride).flatten()
    return addresses


@pytest.mark.parametrize("layout", _NEAR)
def test_all_but_the_view_is_nan(layout: Layout) -> None:
    tensors = _laid_out(layout)
    for tensor in tensors.inputs.values():
        assert tensor.view.isfinite().all()
        assert int(tensor.buffer.isfinite().sum()) == len(set(_addresses(tensor.view).tolist()))
        assert tensor.view.stride(-1) == 1


@pytest.mark.parametrize("layout", _LAYOUTS)
def test_elements_do_not_share_memory(layout: Layout) -> None:
    tensors = _laid_out(layout, (2, 4, 2, 5, 6) if not is_far(layout) else (3, 3, 3, 3, 3))
    for name in ("q", "out") if layout == "expanded" else ("q", "k", "v", "out"):
        addresses = _addresses(_view(tensors, name))
        assert len(set(addresses.tolist())) == len(addresses)


@pytest.mark.parametrize(("layout", "dim"), [("far_batches", 0), ("far_heads", 1), ("far_rows", 2)])
@pytest.mark.parametrize("length", [2, 3, 129])
def test_far_means_beyond_int32(layout: Layout, dim: int, length: int) -> None:
    shape = (length, length, length, 16)
    strides, _ = strides_of(layout, shape)
    assert 2**31 <= (length - 1) * strides[dim] < 2**31 + 64 * length


def test_far_tensors_share_one_buffer_without_overlap() -> None:
    tensors = _laid_out("far_rows", (1, 2, 2, 3, 3))
    views = [_view(tensors, name) for name in ("q", "k", "v", "out")]
    addresses = torch.cat([_addresses(view) for view in views])
    assert len({view.untyped_storage().data_ptr() for view in views}) == 1
    assert len(set(addresses.tolist())) == len(addresses)


def test_misaligned_has_no_address_or_stride_of_16_bytes() -> None:
    view = _view(_laid_out("misaligned"), "q")
    assert view.data_ptr() % 16
    assert view.stride(2) % 8


def test_mixed_gives_each_its_own_strides() -> None:
    tensors = _laid_out("mixed")
    strides = {_view(tensors, name).stride()[:3] for name in ("q", "k", "v", "out")}
    assert len(strides) == 4


@pytest.mark.parametrize("layout", _NEAR)
def test_untouched_and_rightly_written_is_no_damage(layout: Layout) -> None:
    tensors = _laid_out(layout)
    tensors.poison()
    assert _view(tensors, "out").isnan().all()
    assert tensors.damage() is None
    for output in tensors.outputs.values():
        output.view.fill_(1.0)
    assert tensors.damage() is None


@pytest.mark.parametrize("layout", ["bshd", "packed", "every_second", "cache_tail"])
@pytest.mark.parametrize("value", [0.0, math.nan])
def test_a_row_written_beside_the_output_is_damage(layout: Layout, value: float) -> None:
    for where in (lambda view: view.storage_offset() - 1, lambda view: int(_addresses(view).max()) + 1):
        tensors = _laid_out(layout)
        tensors.outputs["out"].buffer[where(_view(tensors, "out"))] = value
        assert tensors.damage() == "wrote outside out"


@pytest.mark.parametrize("layout", ["packed", "every_second"])
def test_a_gap_between_rows_is_guarded(layout: Layout) -> None:
    tensors = _laid_out(layout)
    addresses = _addresses(_view(tensors, "out"))
    gap = next(i for i in range(int(addresses.min()), int(addresses.max())) if i not in set(addresses.tolist()))
    tensors.outputs["out"].buffer[gap] = 0.0
    assert tensors.damage() == "wrote outside out"


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("layout", ["bshd", "far_rows"])
def test_a_changed_input_is_damage(name: str, layout: Layout) -> None:
    tensors = _laid_out(layout, (1, 2, 2, 3, 3))
    _view(tensors, name)[0, 0, 2, 3] += 1.0
    assert tensors.damage() == f"wrote to {name} or next to it"


def test_lse_is_guarded() -> None:
    tensors = _laid_out("bshd")
    tensors.outputs["lse"].buffer[0] = 0.0
    assert tensors.damage() == "wrote outside lse"
