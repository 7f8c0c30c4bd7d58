"""Causal attention in Helion, and its autotuner on it. Needs helion, which flashgen does not.

The kernel works on 2-D tiles, one head a program: tiles of [1, rows, columns], as in Helion's own example, are beyond
the pipeliner of triton 3.6, an assertion of which ends the compiler where num_stages is above 1.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import helion
import helion.language as hl
import torch

from flashgen.spec import Workload
from tuners.timeline import Recorder

PREFIX = "helion "  # of the names of its configs, the rest of which is their JSON
_LOG2_E = 1.4426950408889634


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """q, k, v and the result: [heads, rows, head_dim]."""
    heads, rows, head_dim = q.size()
    head_dim = hl.specialize(head_dim)
    out = torch.empty_like(q)
    scale = head_dim**-0.5 * _LOG2_E
    for tile_h, tile_m in hl.tile([heads, rows], block_size=[1, None]):
        head = tile_h.begin
        m_i = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        l_i = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, head_dim], dtype=torch.float32)
        queries = q[head, tile_m, :]
        for tile_n in hl.tile(tile_m.end):
            qk = hl.dot(queries, k[head, tile_n, :].T) * scale
            qk = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], qk, float("-inf"))
            m_ij = torch.maximum(m_i, torch.amax(qk, -1))
            p = torch.exp2(qk - m_ij[:, None])
            alpha = torch.exp2(m_i - m_ij)
            l_i = l_i * alpha + torch.sum(p, -1)
            values = v[head, tile_n, :]
            acc = hl.dot(p.to(values.dtype), values, acc=acc * alpha[:, None])
            m_i = m_ij
        out[head, tile_m, :] = (acc / l_i[:, None]).to(out.dtype)
    return out


def autotune(workload: Workload, head_dim: int, record: Recorder, folder: Path, budget_s: int) -> None:
    """Helion's search by its quick effort, told to end after `budget_s` seconds.

    Raises:
        AssertionError: what it chose is not attention.
    """
    x = _operands(workload, head_dim)
    log = folder / "helion"
    kernel = helion.kernel(
        attention,
        static_shapes=True,
        autotune_effort="quick",
        autotune_budget_seconds=budget_s,
        autotune_log=str(log),
        autotune_progress_bar=False,
    )
    bound = kernel.bind(x)
    began = time.monotonic()
    try:
        config = bound.autotune(x)
    finally:
        record_log(log.with_suffix(".csv"), began, record)
    q, k, v = (each[None] for each in x)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)[0]
    torch.testing.assert_close(bound(*x), expected, atol=2e-2, rtol=2e-2)
    record.answer(PREFIX + json.dumps(dict(config)))


def record_log(path: Path, began: float, record: Recorder) -> None:
    """What Helion's own log says it tried: a line when a config is begun, and one when it is done."""
    if not path.exists():
        return
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["status"] != "started":
                us = 1e3 * float(row["perf_ms"]) if row["perf_ms"] else None
                record.tried(PREFIX + row["config"], us, began + float(row["timestamp_s"] or 0.0))


def call_of(name: str, workload: Workload, head_dim: int) -> Callable[[], object]:
    """What launches the kernel with the config `name`. It makes its output too: host time, which is not timed."""
    x = _operands(workload, head_dim)
    config = helion.Config(**json.loads(name.removeprefix(PREFIX)))
    bound = helion.kernel(attention, static_shapes=True).bind(x)
    run: Any = bound.compile_config(config)
    return lambda: run(*x)


def _operands(workload: Workload, head_dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Contiguous, which is Helion's own choice; the values are distributed as those of flashgen's candidates are."""
    generator = torch.Generator("cuda").manual_seed(0)
    shape = (workload.batch * workload.heads_q, workload.seqlen_q, head_dim)
    q, k, v = (torch.randn(shape, dtype=torch.bfloat16, device="cuda", generator=generator) for _ in range(3))
    return q, k, v
