"""triton.autotune on flashgen's own kernels: those of one structure, with the knobs that triton.Config has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flashgen.codegen.candidate import candidate_source
from flashgen.compiler.invoke import Operands, all_rules
from flashgen.compiler.load import load_source
from flashgen.families import TlConfig
from flashgen.spec import AttentionSpec
from tuners.timeline import Recorder

Bench = Callable[..., Any]

_ROWS = {"Q": "BLOCK_M", "K": "BLOCK_N", "V": "BLOCK_N", "Out": "BLOCK_M"}  # of the blocks that TMA moves


def autotune(
    spec: AttentionSpec, configs: Sequence[TlConfig], x: Operands, record: Recorder, do_bench: Bench | None = None
) -> None:
    """Tunes the kernel with TMA, then the one without, each on `x`; the answer is the better one by triton's own times.
    `do_bench` is triton's unless given."""
    timings: dict[str, float] = {}
    for tma in (True, False):
        if of_kernel := [config for config in configs if config.tma == tma]:
            timings |= _tuned(spec, of_kernel, x, record, do_bench)
            record.answer(min(timings, key=timings.__getitem__))


def _tuned(
    spec: AttentionSpec, configs: Sequence[TlConfig], x: Operands, record: Recorder, do_bench: Bench | None
) -> dict[str, float]:
    """Milliseconds by config; infinite for what triton skipped."""
    import triton
    from triton.testing import do_bench as tritons_own

    (rule,) = all_rules(module := load_source(candidate_source(spec, configs[0])))
    keys = [config.key for config in configs]
    tuner = triton.autotune(
        configs=[triton_config(config) for config in configs],
        key=["seqlen_q", "seqlen_k"],
        do_bench=_watched(iter(keys), record, do_bench or tritons_own),
        cache_results=False,
    )(rule.config.kernel)
    _launch(tuner, module, rule, spec, x)
    return {key: float(times[0]) for key, times in zip(keys, tuner.configs_timings.values(), strict=True)}


def triton_config(config: TlConfig) -> Any:
    """Descriptors of whole blocks are arguments here, so those of a config are made right before its launch."""
    import triton

    tiles = {"BLOCK_M": config.BLOCK_M, "BLOCK_N": config.BLOCK_N}
    hook = _set_blocks if config.tma else None
    return triton.Config(tiles, num_warps=config.num_warps, num_stages=config.num_stages, pre_hook=hook)


def _set_blocks(arguments: dict[str, Any]) -> None:
    for name, rows in _ROWS.items():
        block = arguments[name].block_shape
        arguments[name].block_shape = [*block[:2], arguments[rows], block[3]]


def _watched(keys: Iterator[str], record: Recorder, do_bench: Bench) -> Bench:
    """`do_bench`, which triton calls once a config in their order."""

    def bench(call: Callable[[], object], quantiles: Sequence[float]) -> Any:
        key = next(keys)
        try:
            times = do_bench(call, quantiles=quantiles)
        except Exception:  # triton skips some and gives up for others
            record.tried(key, None)
            raise
        record.tried(key, 1e3 * times[0])
        return times

    return bench


def _launch(kernel: Any, module: Any, rule: Any, spec: AttentionSpec, x: Operands) -> None:
    """As the module's own launcher does, but for the knobs, which are the autotuner's."""
    config, tensors = rule.config, (x.q, x.k, x.v, x.out)
    batch, nheads_q, seqlen_q, _ = x.q.shape
    nheads_k, seqlen_k = x.k.shape[1:3]
    right = 0 if spec.causal else -1
    scoring = module.Scoring(softmax_scale=spec.head_dim**-0.5, left=-1, right=right, softcap=0.0)
    kernel[lambda meta: (batch * nheads_q * -(-seqlen_q // meta["BLOCK_M"]),)](
        *module._arguments(config, tensors, (config.BLOCK_M, config.BLOCK_N, config.BLOCK_N, config.BLOCK_M)),
        x.lse,
        *module._strides(config, tensors),
        *scoring.arguments(rule, seqlen_q, seqlen_k),
        batch * nheads_q,
        nheads_q,
        nheads_q // nheads_k,
        seqlen_q,
        seqlen_k,
        HEADS_PER_GROUP=config.heads_per_group,
        **module._sizes(config, x.q, x.v),
        enable_fp_fusion=True,
    )
