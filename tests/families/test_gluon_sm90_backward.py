"""Family gluon_sm90_backward: what it takes, and its space."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flashgen.errors import SpecError
from flashgen.families import GLUON_SM90_BACKWARD, GluonSm90BackwardConfig
from flashgen.hardware.lookup import find_gpu
from flashgen.resources.sram import sram_bound
from flashgen.spec import AttentionSpec

H200 = find_gpu("h200")


def spec_of(variant: str, head_dim: int, head_dim_v: int | None = None) -> AttentionSpec:
    return AttentionSpec.of_variant(variant, dtype="bf16", head_dim=head_dim, head_dim_v=head_dim_v, op="backward")


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


@pytest.mark.parametrize(
    ("head_dim", "head_dim_v"), [(64, 64), (64, 128), (96, 96), (128, 128), (192, 192), (192, 128), (256, 256)]
)
@pytest.mark.parametrize("variant", ["full", "causal", "window"])
def test_first_guesses_fit_and_are_in_the_space(variant: str, head_dim: int, head_dim_v: int) -> None:
    spec = spec_of(variant, head_dim, head_dim_v)
    space, guesses = list(GLUON_SM90_BACKWARD.space(spec, H200)), GLUON_SM90_BACKWARD.likely_good(spec, H200)
    assert len(set(guesses)) == len(guesses)
    for config in guesses:
        assert config in space
        assert sram_bound(spec, config, H200) <= H200.smem_per_block


@pytest.mark.parametrize(
    "knobs",
    [{"dq_later": True}, {"dq_as_held": True}, {"dk_runs_on": True}, {"one_ring": True}, {"programs_per_sm": 1}],
    ids=lambda knobs: next(iter(knobs)),
)
def test_programs_of_64_keys_have_one_order_and_one_tile(knobs: dict[str, Any]) -> None:
    (knob,) = knobs
    config = GluonSm90BackwardConfig(BLOCK_M=64, BLOCK_N=64, num_stages=2, **knobs)
    reason = GLUON_SM90_BACKWARD.excluded(spec_of("full", 256), config, H200)
    assert reason == f"{knob} is for programs of 128 keys, not of 64"


def test_one_ring_counts_what_dq_later_counts() -> None:
    config = GluonSm90BackwardConfig(BLOCK_M=64, BLOCK_N=128, num_stages=2, dq_later=True, one_ring=True)
    assert GLUON_SM90_BACKWARD.excluded(spec_of("full", 128), config, H200) is None
    for other in ({"dq_later": False}, {"num_stages": 1}, {"programs_per_sm": 1}):
        reason = GLUON_SM90_BACKWARD.excluded(spec_of("full", 128), replace(config, **other), H200)
        assert reason is not None
        assert reason.startswith("one_ring is for dq_later with 2 num_stages")


def test_dk_runs_on_behind_a_dq_that_waits_for_no_other_consumer() -> None:
    config = GluonSm90BackwardConfig(BLOCK_M=64, BLOCK_N=128, num_stages=2, dk_runs_on=True)
    reason = GLUON_SM90_BACKWARD.excluded(spec_of("full", 128), config, H200)
    assert reason is not None
    assert reason.startswith("dk_runs_on is for dq_later")
    assert GLUON_SM90_BACKWARD.excluded(spec_of("full", 128), replace(config, dq_later=True), H200) is None


def test_a_persistent_program_keeps_dk_or_dv_beside_the_next_tile() -> None:
    config = GluonSm90BackwardConfig(BLOCK_M=64, BLOCK_N=128, num_stages=2)
    stays, spec = replace(config, programs_per_sm=1), spec_of("causal", 128)
    held, more = (GLUON_SM90_BACKWARD.shared_tiles(spec, each, H200) for each in (config, stays))
    assert more[:-1] == held
    assert (more[-1].name, more[-1].total_bytes) == ("dK or dV", 128 * 128 * 2)


def test_a_persistent_program_has_dk_and_dv_alike() -> None:
    config = GluonSm90BackwardConfig(BLOCK_M=64, BLOCK_N=128, num_stages=2, programs_per_sm=1)
    reasons = [
        GLUON_SM90_BACKWARD.excluded(spec_of("full", 128, head_dim_v), config, H200) for head_dim_v in (128, 96, 64)
    ]
    assert reasons[:2] == [None, None]  # 96 columns take as much memory as 128
    assert reasons[2] is not None
    assert "by way of the same memory; theirs have 128 and 64 columns" in reasons[2]


@pytest.mark.parametrize("variant", ["full", "window"])
def test_only_causal_tiles_differ_in_length(variant: str) -> None:
    config = GluonSm90BackwardConfig(BLOCK_M=64, BLOCK_N=128, num_stages=2, heads_per_group=4)
    assert GLUON_SM90_BACKWARD.excluded(spec_of("causal", 128), config, H200) is None
    reason = GLUON_SM90_BACKWARD.excluded(spec_of(variant, 128), config, H200)
    assert reason == f"tiles are all as long without a causal mask, here {variant}"


def test_rules_from_before_there_were_orders_have_none_of_them() -> None:
    knobs = {"BLOCK_M": 64, "BLOCK_N": 128, "num_warps": 4, "num_stages": 2, "stagger": False}
    config = GLUON_SM90_BACKWARD.config(knobs)
    assert config.knobs() == knobs | {
        "dq_later": False,
        "dq_as_held": False,
        "dk_runs_on": False,
        "one_ring": False,
        "programs_per_sm": 0,
        "heads_per_group": 1,
    }
    assert config.key == "gluon_sm90_backward:BLOCK_M=64,BLOCK_N=128,num_warps=4,num_stages=2,heads_per_group=1"


@pytest.mark.parametrize(
    "knobs",
    [
        {"BLOCK_M": 32},
        {"BLOCK_N": 32},
        {"num_warps": 8},
        {"num_stages": True},
        {"stagger": 1},
        {"dq_later": 0},
        {"dk_runs_on": 1},
        {"programs_per_sm": 2},
        {"programs_per_sm": False},
        {"heads_per_group": 0},
    ],
)
def test_a_wrong_knob_is_named(knobs: dict[str, int]) -> None:
    with pytest.raises(SpecError, match=next(iter(knobs))):
        GluonSm90BackwardConfig(**{"BLOCK_M": 64, "BLOCK_N": 128, "num_stages": 2} | knobs)
