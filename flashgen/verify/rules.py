"""The rules of an emitted module, and what there is to say of them."""

from __future__ import annotations

from dataclasses import asdict
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flashgen.compiler.invoke import all_rules
from flashgen.spec import TORCH_NAMES, AttentionSpec, Dtype, Op

if TYPE_CHECKING:
    import torch

_DTYPES: dict[str, Dtype] = {f"torch.{name}": dtype for dtype, name in TORCH_NAMES.items()}


def describe_rules(module: ModuleType, device: torch.device) -> list[dict[str, Any]]:
    """Every rule in words, in the order of all_rules; `kernel` is alike where only tiles differ. `own` marks those that
    `device` runs, `can_run` those that it could (not every GPU has Gluon's); `pattern` is that of the device names that
    they are for, None for portable ones. `spec` holds the fields of the rule's spec in its first dtype, `tiles` what
    else tells it from others."""
    own = {id(rule) for rule in module._rules_of(device)}
    runnable = getattr(module, "_runnable", lambda rules, device: rules)  # of modules with kernels in Gluon
    patterns = [pattern for pattern, rules in module.TUNED for _ in rules] + [None] * len(module.PORTABLE)
    return [
        {
            "name": _name(rule),
            "kernel": f"{_kernels(rule)} {rule.head_dim}/{rule.head_dim_v}",
            "dtypes": [_DTYPES[str(dtype)] for dtype in rule.dtypes],
            "own": id(rule) in own,
            "can_run": id(rule) in own or bool(runnable((rule,), device)),
            "tiles": _tiles(rule),
            "pattern": pattern,
            "spec": asdict(spec_of(rule, _DTYPES[str(rule.dtypes[0])])),
            "tma": getattr(rule.config, "tma", False),
        }
        for rule, pattern in zip(all_rules(module), patterns)
    ]


def spec_of(rule: Any, dtype: Dtype) -> AttentionSpec:
    """What a rule computes."""
    return AttentionSpec.of_variant(
        rule.variant, dtype=dtype, head_dim=rule.head_dim, head_dim_v=rule.head_dim_v, op=_op(rule)
    )


def _name(rule: Any) -> str:
    """Such as `_attn_fwd_causal_tma, head_dim 64, tile 128x64, 8 warps, 2 stages`."""
    head = f"{rule.head_dim}" if rule.head_dim == rule.head_dim_v else f"{rule.head_dim}/{rule.head_dim_v}"
    return f"{_kernels(rule)}, head_dim {head}, {_tiles(rule)}"


def _tiles(rule: Any) -> str:
    """How the rule's kernels are tiled, and up to how many keys they serve."""
    tiles = " and ".join(
        f"tile {tiling.BLOCK_M}x{tiling.BLOCK_N}, {tiling.num_warps} warps, {tiling.num_stages} stages"
        for tiling in _tilings(rule)
    )
    limit = "" if rule.max_seqlen_k is None else f", up to {rule.max_seqlen_k} keys"
    return f"{tiles}{limit}"


def _kernels(rule: Any) -> str:
    """The names of the kernels that a rule launches."""
    merged = getattr(rule.config, "merged", None)
    kernels = [tiling.kernel for tiling in _tilings(rule)] if merged is None else [merged]
    return " and ".join(kernel.__name__ for kernel in kernels)


def _tilings(rule: Any) -> tuple[Any, ...]:
    return (rule.config,) if hasattr(rule.config, "kernel") else (rule.config.dkdv, rule.config.dq)


def _op(rule: Any) -> Op:
    """Modules that hold forward rules alone do not say so of each."""
    op: Op = getattr(rule, "op", "forward")
    return op
