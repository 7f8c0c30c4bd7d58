"""The sizes that a rule is tuned on unless the user brings others."""

from __future__ import annotations

from typing import Literal

from flashgen.spec import AttentionSpec, Workload

Preset = Literal["quick", "medium", "full"]

# As in the FlashAttention papers: 16k tokens a batch, a hidden size of 2048, so that every length is as much memory.
_TOKENS, _HIDDEN = 16384, 2048
_SEQLENS: dict[Preset, tuple[int, ...]] = {
    "quick": (4096,),
    "medium": (1024, 4096, 16384),
    "full": (512, 1024, 2048, 4096, 8192, 16384),
}
_GROUPED: dict[Preset, tuple[int, ...]] = {"quick": (), "medium": (), "full": (1024, 4096, 16384)}
_GROUP = 4  # query heads that share a head of keys and values, as in Llama 3 8B and Mistral 7B
TRIALS: dict[Preset, int] = {"quick": 40, "medium": 80, "full": 200}


def default_workloads(spec: AttentionSpec, preset: Preset) -> tuple[Workload, ...]:
    """Self-attention over 16384 tokens: in sequences of 4096 (quick), of 1024, 4096 and 16384 (medium), or of each
    power of two from 512 to 16384, and for those three in groups of four query heads too (full)."""
    heads = max(1, _HIDDEN // spec.head_dim)
    shared = max(1, heads // _GROUP)
    plain = [_self_attention(seqlen, heads, heads) for seqlen in _SEQLENS[preset]]
    return (*plain, *(_self_attention(seqlen, shared * _GROUP, shared) for seqlen in _GROUPED[preset]))


def _self_attention(seqlen: int, heads_q: int, heads_kv: int) -> Workload:
    return Workload(batch=_TOKENS // seqlen, heads_q=heads_q, heads_kv=heads_kv, seqlen_q=seqlen, seqlen_k=seqlen)
