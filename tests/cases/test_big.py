"""Sizes whose products pass 2**16 or 2**31: the grid's shape, and offsets into memory that is never touched."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType

import pytest
import torch

from tests.kernels.emission import STRUCTURES, Emitter, content_of, rows_of

MAX_GRID_YZ = 65535


@pytest.mark.case("big-01")
@pytest.mark.case("big-02")
@pytest.mark.parametrize(("batch", "heads"), [(65536, 1), (10923, 6), (1, 80000)])
@pytest.mark.parametrize("structure", ["pointer", "tma", "persistent"])
def test_only_the_first_axis_of_the_grid_grows(
    structure: str, batch: int, heads: int, emitter: Emitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: ModuleType = emitter.load(content_of(rows_of(("fp16",), 16, **STRUCTURES[structure])))
    grids: list[tuple[int, ...]] = []
    for rule in module.PORTABLE:
        monkeypatch.setattr(rule.config.kernel, "run", lambda *_, grid, **__: grids.append(grid))
    x = torch.zeros(batch, 40, heads, 16, dtype=torch.float16)
    module.flash_attention(x, x, x)
    module.flash_attention(x, x, x, causal=True)
    module.flash_attention(x, x, x, window=(3, 2))
    assert len(grids) == 3
    for grid in grids:
        assert max(grid[1:], default=1) <= MAX_GRID_YZ
        assert grid[0] == (2 if structure == "persistent" else batch * heads * 2)  # two SMs, or two blocks of queries


STRIDED = """
import sys
from pathlib import Path
import torch
from flashgen.compiler.load import load_file

module = load_file(Path(sys.argv[1]), "emitted")
STRIDE = 2**30
torch.manual_seed(0)

def spread(x, dim):
    '''x with 2**30 elements between its members along `dim`, in memory of which only they are touched.'''
    strides = list(x.stride())
    strides[dim] = STRIDE
    view = torch.empty(2 * STRIDE + x.numel(), dtype=x.dtype).as_strided(x.shape, strides)
    return view.copy_(x)

MASKS = {"full": (-1, -1), "causal": (-1, 0), "window": (1, 1)}
for dim, (batch, heads) in enumerate([(3, 1), (1, 3), (1, 1)]):  # of [Z, H, S, D]
    q, k, v = (torch.randn(batch, heads, 3, 16).half() for _ in "qkv")
    for rule in module._rules_of(q.device):
        if rule.variant not in MASKS or getattr(rule.config, "tma", False) != (sys.argv[2] == "tma"):
            continue

        def attend(q, k, v, out):
            lse = torch.empty(batch, heads, 3)
            module._execute(rule, q, k, v, out, lse, 0.25, *MASKS[rule.variant], 0.0)
            return out

        expected = attend(q, k, v, torch.empty_like(q))
        for i in range(4):
            given = [q, k, v, torch.zeros_like(q)]
            given[i] = spread(given[i], dim)
            assert torch.equal(attend(*given), expected), (rule.variant, dim, "qkvo"[i])
    out = module.flash_attention(*(spread(x, dim) for x in (q, k, v)), softmax_scale=0.25, layout="bhsd")
    assert torch.equal(out, module.flash_attention(q, k, v, softmax_scale=0.25, layout="bhsd"))
print("all equal")
"""


@pytest.mark.parametrize("structure", ["pointer", "tma"])
def test_offsets_beyond_2_to_the_31(structure: str, emitter: Emitter) -> None:
    """Rows, heads or batches 2**30 elements apart: an int32 offset wraps at the third and reads what is not there."""
    small = rows_of(("fp16",), 16, block_m=16, block_n=16, **STRUCTURES[structure])
    path = emitter.write(content_of(rows_of(("fp16",), 16), small))
    done = subprocess.run(
        [sys.executable, "-c", STRIDED, str(path), structure],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-2000:]}"
    assert done.stdout == "all equal\n"
