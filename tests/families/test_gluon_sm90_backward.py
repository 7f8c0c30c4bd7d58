"""Family gluon_sm90_backward: what it takes, and its space."""

from __future__ import annotations

import pytest

from flashgen.errors import SpecError
from flashgen.families import GLUON_SM90_BACKWARD, GluonSm90BackwardConfig
from flashgen.hardware.lookup import find_gpu
from flashgen.resources.sram import sram_bound
from flashgen.spec import AttentionSpec

H200 = find_gpu("h200")


def spec_of(variant: str, head_dim: int) -> AttentionSpec:
    return AttentionSpec.of_variant(variant, dtype="bf16", head_dim=head_dim, op="backward")


@pytest.mark.parametrize(
    ("variant", "head_dim", "gpu", "says"),
    [
        ("full", 128, "a100", "sm_90"),
        ("causal", 32, "h200", "half of head_dim 32"),
        ("window_softcap", 128, "h200", "no softcap"),
        ("full_sink", 128, "h200", "no sink"),
    ],
)
def test_what_it_cannot_write_is_refused_with_its_reason(variant: str, head_dim: int, gpu: str, says: str) -> None:
    reason = GLUON_SM90_BACKWARD.unsupported(spec_of(variant, head_dim), find_gpu(gpu))
    assert reason is not None
    assert says in reason


@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("variant", ["full", "causal", "window"])
def test_first_guesses_fit_and_are_in_the_space(variant: str, head_dim: int) -> None:
    spec = spec_of(variant, head_dim)
    space = list(GLUON_SM90_BACKWARD.space(spec, H200))
    for config in GLUON_SM90_BACKWARD.likely_good(spec, H200):
        assert config in space
        assert sram_bound(spec, config, H200) <= H200.smem_per_block


@pytest.mark.parametrize("knob", ["dq_later", "scores_ahead", "dq_as_held"])
def test_programs_of_64_keys_have_their_own_order(knob: str) -> None:
    config = GluonSm90BackwardConfig(BLOCK_M=64, BLOCK_N=64, num_stages=2, **{knob: True})
    reason = GLUON_SM90_BACKWARD.excluded(spec_of("full", 256), config, H200)
    assert reason == f"{knob} is for programs of 128 keys, not of 64"


def test_rules_from_before_there_were_orders_have_none_of_them() -> None:
    knobs = {"BLOCK_M": 64, "BLOCK_N": 128, "num_warps": 4, "num_stages": 2, "stagger": False}
    config = GLUON_SM90_BACKWARD.config(knobs)
    assert config.knobs() == knobs | {"dq_later": False, "scores_ahead": False, "dq_as_held": False}
    assert config.key == "gluon_sm90_backward:BLOCK_M=64,BLOCK_N=128,num_warps=4,num_stages=2"


@pytest.mark.parametrize(
    "knobs",
    [
        {"BLOCK_M": 32},
        {"BLOCK_N": 32},
        {"num_warps": 8},
        {"num_stages": True},
        {"stagger": 1},
        {"dq_later": 0},
    ],
)
def test_a_wrong_knob_is_named(knobs: dict[str, int]) -> None:
    with pytest.raises(SpecError, match=next(iter(knobs))):
        GluonSm90BackwardConfig(**{"BLOCK_M": 64, "BLOCK_N": 128, "num_stages": 2} | knobs)
