"""The sizes that a rule is tuned on unless the user brings others."""

from __future__ import annotations

from typing import Literal

from flashgen.spec import AttentionSpec, Workload

Preset = Literal["quick", "full"]

# As in the FlashAttention papers: 16k tokens a batch, a hidden size of 2048, so that every length is as much memory.
_TOKENS, _HIDDEN = 16384, 2048
_SEQLENS: dict[Preset, tuple[int, ...]] = {"quick": (4096,), "full": (1024, 4096, 16384)}
TRIALS: dict[Preset, int] = {"quick": 40, "full": 200}


def default_workloads(spec: AttentionSpec, preset: Preset) -> tuple[Workload, ...]:
    """Self-attention over 16384 tokens in sequences of 4096 (quick), or of 1024, 4096 and 16384."""
    heads = max(1, _HIDDEN // spec.head_dim)
    return tuple(
        Workload(batch=_TOKENS // seqlen, heads_q=heads, heads_kv=heads, seqlen_q=seqlen, seqlen_k=seqlen)
        for seqlen in _SEQLENS[preset]
    )
