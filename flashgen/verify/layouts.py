"""Where a tensor lies in memory: the layouts that callers bring, inside guard bands."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashgen.verify.probes import Layout

if TYPE_CHECKING:
    import torch

Shape = tuple[int, int, int, int]

# Rows that a tile may reach past the end of a tensor, with room to spare: no family has blocks above 256 rows.
_GUARD_ROWS = 320
_CACHE_ROWS = 32
_INT32 = 2**31
_FAR_SLOT = 2**18  # elements that one tensor may fill around each far row
FAR_ELEMENTS = _INT32 + 2**24


def is_far(layout: Layout) -> bool:
    """Whether the layout spans 2^31 elements, most of which are never touched."""
    return layout.startswith("far_")


@dataclass(frozen=True, kw_only=True, slots=True)
class Guarded:
    """A view into a flat buffer whose other elements no kernel may use.

    Read, they are NaN or a sentinel; written, `intact` says so.
    """

    buffer: torch.Tensor
    view: torch.Tensor
    sentinel: float | None  # what surrounds the view; None where the surroundings are not kept

    def intact(self) -> bool:
        """Whether everything outside the view still holds the sentinel."""
        import torch

        if self.sentinel is None:
            return True
        outside = self.buffer.clone()
        _as_strided_like(outside, self.view).fill_(self.sentinel)
        return torch.equal(bits(outside), bits(torch.full_like(outside, self.sentinel)))


def bits(x: torch.Tensor) -> torch.Tensor:
    """x's bits as integers: equal iff the same, NaN included."""
    import torch

    return x.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def guarded(layout: Layout, shape: Shape, dtype: torch.dtype, device: torch.device, sentinel: float) -> Guarded:
    """A view of `shape`, laid out as `layout` says, in a buffer of `sentinel`."""
    import torch

    strides, start = strides_of(layout, shape)
    row = max(strides[2], shape[3])
    band = _GUARD_ROWS * row
    extent = 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True) if length)
    buffer = torch.full((start + extent + 2 * band,), sentinel, dtype=dtype, device=device)
    return Guarded(buffer=buffer, view=buffer.as_strided(shape, strides, band + start), sentinel=sentinel)


def contiguous(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, sentinel: float) -> Guarded:
    """A contiguous view of `shape`, of however many dims, in a buffer of `sentinel`."""
    import torch

    band, size = _GUARD_ROWS * shape[-1], math.prod(shape)
    buffer = torch.full((size + 2 * band,), sentinel, dtype=dtype, device=device)
    return Guarded(buffer=buffer, view=buffer[band : band + size].view(shape), sentinel=sentinel)


def far(layout: Layout, shape: Shape, buffer: torch.Tensor, slot: int) -> Guarded:
    """A view of `shape` whose last row, head or batch lies 2^31 elements in; in its slot of a buffer others share."""
    strides, _ = strides_of(layout, shape)
    return Guarded(buffer=buffer, view=buffer.as_strided(shape, strides, slot * _FAR_SLOT), sentinel=None)


def strides_of(layout: Layout, shape: Shape) -> tuple[Shape, int]:
    """Strides of [Z, H, S, D] and the first element's place, in elements."""
    batch, heads, rows, width = shape
    token = heads * width
    match layout:
        case "bhsd":
            return (token * rows, rows * width, width, 1), 0
        case "expanded":  # one head in memory
            return (rows * width, 0, width, 1), 0
        case "one_row":  # the gradient of a sum, expanded
            return (0, 0, 0, 1), 0
        case "every_second":
            return (2 * token * rows, width, 2 * token, 1), 0
        case "packed":  # as q, k and v split from one projection
            return (3 * token * rows, width, 3 * token, 1), token
        case "cache_tail":  # the last rows of a longer buffer
            longer = rows + _CACHE_ROWS
            return (token * longer, longer * width, width, 1), _CACHE_ROWS * width
        case "odd_singletons":  # a stride of a dim of length 1 may be anything
            return (7 if batch == 1 else token * rows, 7 if heads == 1 else rows * width, width, 1), 0
        case "misaligned":  # no address and no stride a multiple of 16 bytes
            odd = token | 1
            return (odd * rows, width, odd, 1), 1
        case "far_rows":
            return (token, width, _far_stride(rows), 1), 0
        case "far_heads":
            return (rows * width, _far_stride(heads), width, 1), 0
        case "far_batches":
            return (_far_stride(batch), rows * width, width, 1), 0
        case _:
            return (token * rows, width, token, 1), 0


def _far_stride(length: int) -> int:
    """The least multiple of 64 that puts the last of `length` things 2^31 elements from the first."""
    return -(-_INT32 // (64 * (length - 1))) * 64


def _as_strided_like(buffer: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    return buffer.as_strided(view.shape, view.stride(), view.storage_offset())
