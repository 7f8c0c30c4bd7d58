"""Rules of emitted modules in words, and as specs."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch

from flashgen.compiler.invoke import all_rules
from flashgen.spec import AttentionSpec
from flashgen.verify.rules import describe_rules, spec_of

_KEY = {"dtypes": (torch.bfloat16, torch.float16), "head_dim": 64, "head_dim_v": 64, "max_seqlen_k": None}


def _kernel(name: str) -> Any:
    return SimpleNamespace(__name__=name)


def _tiling(block_m: int, block_n: int, kernel: str = "") -> Any:
    return SimpleNamespace(
        kernel=_kernel(kernel) if kernel else None, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=8, num_stages=2
    )


def _backward(**config: Any) -> Any:
    return SimpleNamespace(op="backward", variant="causal", **_KEY, config=SimpleNamespace(**config))


_FORWARD = SimpleNamespace(variant="window_softcap", **_KEY, config=_tiling(128, 64, "_attn_fwd"))
_APART = _backward(dkdv=_tiling(64, 128, "_attn_dkdv"), dq=_tiling(128, 32, "_attn_dq"))
_MERGED = _backward(dkdv=_tiling(64, 128), dq=_tiling(128, 32), merged=_kernel("_attn_merged"))


def _described(*rules: Any) -> list[dict[str, Any]]:
    module = SimpleNamespace(TUNED=[("H200", rules[:1])], PORTABLE=rules[1:], _rules_of=lambda device: rules[1:])
    assert all_rules(cast(ModuleType, module)) == list(rules)
    return describe_rules(cast(ModuleType, module), torch.device("cpu"))


@pytest.mark.parametrize(
    ("rule", "name", "kernel"),
    [
        (_FORWARD, "_attn_fwd, head_dim 64, tile 128x64, 8 warps, 2 stages", "_attn_fwd 64/64"),
        (
            _APART,
            "_attn_dkdv and _attn_dq, head_dim 64, tile 64x128, 8 warps, 2 stages and tile 128x32, 8 warps, 2 stages",
            "_attn_dkdv and _attn_dq 64/64",
        ),
        (
            _MERGED,
            "_attn_merged, head_dim 64, tile 64x128, 8 warps, 2 stages and tile 128x32, 8 warps, 2 stages",
            "_attn_merged 64/64",
        ),
    ],
)
def test_a_rule_is_named_by_its_kernels_and_tiles(rule: Any, name: str, kernel: str) -> None:
    (described,) = _described(rule)
    assert (described["name"], described["kernel"]) == (name, kernel)
    assert described["dtypes"] == ["bf16", "fp16"]


def test_a_limit_and_a_head_of_its_own_for_v_are_named() -> None:
    rule = SimpleNamespace(**vars(_FORWARD) | {"head_dim_v": 32, "max_seqlen_k": 512})
    (described,) = _described(rule)
    assert "head_dim 64/32, " in described["name"]
    assert described["name"].endswith(", up to 512 keys")


def test_own_rules_are_those_of_the_device() -> None:
    assert [described["own"] for described in _described(_FORWARD, _APART, _MERGED)] == [False, True, True]


def test_a_rule_says_which_devices_it_is_for_and_what_it_computes() -> None:
    tuned, portable, _ = _described(_FORWARD, _APART, _MERGED)
    assert (tuned["pattern"], portable["pattern"]) == ("H200", None)
    assert (tuned["tiles"], tuned["tma"]) == ("tile 128x64, 8 warps, 2 stages", False)
    assert AttentionSpec(**tuned["spec"]) == spec_of(_FORWARD, "bf16")
    assert AttentionSpec(**portable["spec"]) == spec_of(_APART, "bf16")


def test_a_rule_is_a_spec() -> None:
    """A module without backward rules does not say that a rule is a forward one."""
    assert spec_of(_FORWARD, "fp16") == AttentionSpec.of_variant("window_softcap", dtype="fp16", head_dim=64)
    assert spec_of(_APART, "bf16") == AttentionSpec.of_variant("causal", dtype="bf16", head_dim=64, op="backward")
