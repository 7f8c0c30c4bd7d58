"""Sizes whose products pass 2**16 or 2**31: the grid's shape, and offsets into memory that is never touched."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from flashgen.verify.expected import expected_gradients, expected_outputs
from flashgen.verify.reference import Features, Scoring
from tests.kernels.emission import STRUCTURES, Emitter, backward_rows_of, content_of, rows_of, training_rows_of

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


@pytest.mark.case("big-01")
@pytest.mark.parametrize(("batch", "heads"), [(65536, 1), (1, 80000)])
@pytest.mark.parametrize("knobs", [{}, {"tma": True, "merged": True}], ids=["pointer", "merged"])
def test_only_the_first_axis_grows_in_the_backward_pass(
    knobs: dict[str, Any], batch: int, heads: int, emitter: Emitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = ("full", "causal", "window")
    rows = rows_of(("fp16",), 16, variants=variants) + backward_rows_of(("fp16",), 16, variants=variants, **knobs)
    module: ModuleType = emitter.load(content_of(rows))
    grids: list[tuple[int, ...]] = []
    for kernel in [x for name, x in vars(module).items() if name.startswith("_attn_")]:
        monkeypatch.setattr(kernel, "run", lambda *_, grid, **__: grids.append(grid))
    x = torch.zeros(batch, 40, heads, 16, dtype=torch.float16, requires_grad=True)
    masks: list[dict[str, Any]] = [{}, {"causal": True}, {"window": (3, 2)}]
    for mask in masks:
        torch.autograd.grad(module.flash_attention(x, x, x, **mask).sum(), x)
    # Two blocks of queries, one for the row sums, and two of keys and two of queries.
    blocks = (2, 1, 4) if knobs else (2, 1, 2, 2)
    assert grids == len(masks) * [(batch * heads * count,) for count in blocks]


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
FORWARD = ("q", "k", "v", "out", "lse")
BACKWARD = ("dout", "dlse", *FORWARD, "dq", "dk", "dv")

def filled(rule, given):
    '''What the rule writes.'''
    forward = rule.op == "forward"
    execute, names = (module._execute, FORWARD) if forward else (module._execute_backward, BACKWARD)
    execute(rule, *(given[name] for name in names), 0.25, *MASKS[rule.variant], 0.0)
    return [given[name] for name in (("out", "lse") if forward else ("dq", "dk", "dv"))]

for dim, (batch, heads) in enumerate([(3, 1), (1, 3), (1, 1)]):  # of [Z, H, S, D]
    normal = {name: torch.randn(batch, heads, 3, 16).half() for name in ("q", "k", "v", "out", "dout")}
    fresh = {name: torch.zeros(batch, heads, 3, 16).half() for name in ("dq", "dk", "dv")}
    plain = normal | fresh | {"lse": torch.randn(batch, heads, 3), "dlse": None}
    for rule in module._rules_of(torch.device("cpu")):
        variants = list(MASKS) if rule.op == "forward" else [list(MASKS)[dim]]  # masks take turns
        if rule.variant not in variants or getattr(rule.config, "tma", False) != (sys.argv[2] == "tma"):
            continue
        expected = [x.clone() for x in filled(rule, {name: x if x is None else x.clone() for name, x in plain.items()})]
        for name in ("q", "k", "v", "out") if rule.op == "forward" else (*normal, *fresh):
            given = {other: x if x is None else x.clone() for other, x in plain.items()}
            given[name] = spread(given[name], dim)
            assert all(map(torch.equal, filled(rule, given), expected)), (rule.op, rule.variant, dim, name)

    def differentiate(q, k, v, dout):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out = module.flash_attention(*leaves, softmax_scale=0.25, layout="bhsd")
        return [out, *torch.autograd.grad(out, leaves, dout)]

    far = differentiate(*(spread(plain[name], dim) for name in ("q", "k", "v", "dout")))
    assert all(map(torch.equal, far, differentiate(*(plain[name] for name in ("q", "k", "v", "dout")))))
print("all equal")
"""


@pytest.mark.case("big-05")
@pytest.mark.parametrize("structure", ["pointer", "tma"])
def test_offsets_beyond_2_to_the_31(structure: str, emitter: Emitter) -> None:
    """Rows, heads or batches 2**30 elements apart: an int32 offset wraps at the third and reads what is not there."""
    portable = rows_of(("fp16",), 16) + backward_rows_of(("fp16",), 16)
    small = rows_of(("fp16",), 16, block_m=16, block_n=16, **STRUCTURES[structure])
    small += backward_rows_of(("fp16",), 16, kept=16, step=16, tma=structure == "tma")
    path = emitter.write(content_of(portable, small))
    done = subprocess.run(
        [sys.executable, "-c", STRIDED, str(path), structure],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-2000:]}"
    assert done.stdout == "all equal\n"


@pytest.mark.case("big-08")
@pytest.mark.parametrize(
    ("device", "batch", "heads", "seqlen"),
    [("cpu", 2, 3, 40), pytest.param("cuda", 64, 128, 520, marks=pytest.mark.gpu)],
)
def test_the_last_of_many_heads_drops_what_the_mask_says(
    device: str, batch: int, heads: int, seqlen: int, emitter: Emitter
) -> None:
    """On a GPU more than 2**31 pairs, in both passes; of the last head those of the first 8 queries are looked at."""
    module = emitter.load(content_of(training_rows_of(("fp16",), 16, variants=("full_dropout",))))
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, generator=generator).half()

    x = [normal(batch, heads, seqlen, 16).requires_grad_() for _ in "qkv"]
    seed = torch.tensor([3, 2**33], device=device)
    out = module.flash_attention(*x, dropout_p=0.5, dropout_seed=seed, layout="bhsd")
    dout = torch.zeros_like(out)
    dout[-1, -1, :8] = normal(8, 16)
    dq, dk, dv = (gradient[-1:, -1:] for gradient in torch.autograd.grad(out, x, dout))
    q, k, v = (each.detach()[-1:, -1:] for each in x)
    keep = module.dropout_mask(seed, batch, heads, 8, seqlen, 0.5)[-1:, -1:]
    given = (q[:, :, :8], k, v)
    scoring, features = Scoring(scale=0.25), Features(keep=keep, dropout_p=0.5)
    expected = expected_outputs(*given, scoring, features)
    expected |= expected_gradients(*given, dout[-1:, -1:, :8], scoring, features)
    results = {"out": out.detach()[-1:, -1:, :8], "dq": dq[:, :, :8], "dk": dk, "dv": dv}
    for name, result in results.items():
        found = expected[name].deviation_of(result)
        assert found.ratio <= 1.0, f"{name}: {found}"
