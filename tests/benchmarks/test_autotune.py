"""triton.autotune on the kernels that flashgen emits, with the interpreter for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from exhaustive import RESTRICTED, SPEC
from tuners.autotune import autotune, triton_config
from tuners.timeline import Recorder, read_events

from flashgen.compiler.invoke import operands
from flashgen.families import TlConfig
from flashgen.spec import AttentionSpec, Workload
from tests.tune.replay import H200

SMALL = AttentionSpec(dtype="fp16", head_dim=32, head_dim_v=32, causal=True)
CONFIGS = [
    TlConfig(BLOCK_M=m, BLOCK_N=n, num_warps=4, num_stages=2, tma=tma, longest_first=True)
    for tma in (True, False)
    for m, n in ((64, 32), (32, 64), (64, 64))
]


def test_configs_of_triton_have_the_knobs_of_flashgens() -> None:
    for config in RESTRICTED.space(SPEC, H200):
        assert isinstance(config, TlConfig)
        made = triton_config(config)
        assert made.kwargs == {"BLOCK_M": config.BLOCK_M, "BLOCK_N": config.BLOCK_N}
        assert (made.num_warps, made.num_stages) == (config.num_warps, config.num_stages)
        assert (made.pre_hook is not None) == config.tma


@pytest.mark.parametrize("fastest", range(len(CONFIGS)))
def test_every_config_computes_attention_and_the_fastest_of_both_kernels_is_the_answer(
    fastest: int, tmp_path: Path
) -> None:
    x = operands(SMALL, Workload(batch=1, heads_q=2, heads_kv=1, seqlen_q=100, seqlen_k=100), "cpu")
    k, v = (each.repeat_interleave(2, 1) for each in (x.k, x.v))
    expected = torch.nn.functional.scaled_dot_product_attention(x.q, k, v, is_causal=True)
    benched = 0

    def bench(call: Callable[[], object], quantiles: object) -> list[float]:
        nonlocal benched
        x.out.zero_()
        call()
        torch.testing.assert_close(x.out, expected, atol=2e-3, rtol=2e-3)
        benched += 1
        return [0.5 if benched == fastest + 1 else 1.0] * 3

    autotune(SMALL, CONFIGS, x, Recorder(tmp_path / "events"), bench)
    events = read_events(tmp_path / "events", 0.0)
    assert [event.config for event in events if event.kind == "tried"] == [config.key for config in CONFIGS]
    assert [event.us for event in events if event.kind == "tried"][fastest] == 500.0
    assert events[-1].kind == "answer"
    assert events[-1].config == CONFIGS[fastest].key


def test_a_config_that_triton_skips_is_rejected_and_loses(tmp_path: Path) -> None:
    from triton.runtime.errors import OutOfResources

    x = operands(SMALL, Workload(batch=1, heads_q=1, heads_kv=1, seqlen_q=64, seqlen_k=64), "cpu")
    benched = 0

    def bench(call: Callable[[], object], quantiles: object) -> list[float]:
        nonlocal benched
        benched += 1
        if benched == 1:
            raise OutOfResources(300_000, 232_448, "shared memory")
        return [float(benched)] * 3

    autotune(SMALL, CONFIGS, x, Recorder(tmp_path / "events"), bench)
    events = read_events(tmp_path / "events", 0.0)
    assert events[0].us is None
    assert events[-1].config == CONFIGS[1].key
