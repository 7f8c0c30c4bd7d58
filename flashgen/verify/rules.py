"""The rules of an emitted module, and what there is to say of them."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from flashgen.spec import TORCH_NAMES, AttentionSpec, Dtype, Op

if TYPE_CHECKING:
    import torch

_DTYPES: dict[str, Dtype] = {f"torch.{name}": dtype for dtype, name in TORCH_NAMES.items()}


def all_rules(module: ModuleType) -> list[Any]:
    """Tuned ones first."""
    return [rule for _, rules in module.TUNED for rule in rules] + list(module.PORTABLE)


def describe_rules(module: ModuleType, device: torch.device) -> list[dict[str, Any]]:
    """Every rule in words, in the order of all_rules; `kernel` is alike where only tiles differ. `own` marks those that
    `device` runs."""
    own = {id(rule) for rule in module._rules_of(device)}
    return [
        {
            "name": _name(rule),
            "kernel": f"{_kernels(rule)} {rule.head_dim}/{rule.head_dim_v}",
            "dtypes": [_DTYPES[str(dtype)] for dtype in rule.dtypes],
            "own": id(rule) in own,
        }
        for rule in all_rules(module)
    ]


def spec_of(rule: Any, dtype: Dtype) -> AttentionSpec:
    """What a rule computes."""
    return AttentionSpec.of_variant(
        rule.variant, dtype=dtype, head_dim=rule.head_dim, head_dim_v=rule.head_dim_v, op=_op(rule)
    )


def _name(rule: Any) -> str:
    """Such as `_attn_fwd_causal_tma, head_dim 64, tile 128x64, 8 warps, 2 stages`."""
    head = f"{rule.head_dim}" if rule.head_dim == rule.head_dim_v else f"{rule.head_dim}/{rule.head_dim_v}"
    tiles = " and ".join(
        f"tile {tiling.BLOCK_M}x{tiling.BLOCK_N}, {tiling.num_warps} warps, {tiling.num_stages} stages"
        for tiling in _tilings(rule)
    )
    limit = "" if rule.max_seqlen_k is None else f", up to {rule.max_seqlen_k} keys"
    return f"{_kernels(rule)}, head_dim {head}, {tiles}{limit}"


def _kernels(rule: Any) -> str:
    """The names of the kernels that a rule launches."""
    merged = getattr(rule.config, "merged", None)
    kernels = [tiling.kernel for tiling in _tilings(rule)] if merged is None else [merged]
    return " and ".join(kernel.__name__ for kernel in kernels)


def _tilings(rule: Any) -> tuple[Any, ...]:
    return (rule.config,) if _op(rule) == "forward" else (rule.config.dkdv, rule.config.dq)


def _op(rule: Any) -> Op:
    """Modules that hold forward rules alone do not say so of each."""
    op: Op = getattr(rule, "op", "forward")
    return op
