"""Family gluon_sm90: what it takes, and its space."""

from __future__ import annotations

import pytest

from flashgen.errors import SpecError
from flashgen.families import GLUON_SM90, GluonSm90Config, serving
from flashgen.hardware.lookup import find_gpu
from flashgen.resources.sram import sram_bound
from flashgen.spec import OPS, AttentionSpec, Workload
from flashgen.tune.space import space_of

H200 = find_gpu("h200")
TILE = {"BLOCK_M": 128, "BLOCK_N": 64, "num_stages": 2}


def spec_of(variant: str = "causal", head_dim: int = 128, dtype: str = "bf16") -> AttentionSpec:
    return AttentionSpec.of_variant(variant, dtype=dtype, head_dim=head_dim)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "gpu", "says"),
    [
        (spec_of(), "a100", "sm_90"),
        (spec_of(), "b200", "sm_90"),
        (spec_of(dtype="fp32"), "h200", "TF32"),
        (spec_of(dtype="fp8"), "a100", "sm_90"),
        (spec_of("full", 256, "fp8"), "h200", "up to 128 columns; head_dim_v 256 has more"),
        (spec_of("full", 16, "fp8"), "h200", "32 columns at a time; head_dim 16"),
        (spec_of("causal_alibi"), "h200", "no alibi"),
        (spec_of("full_dropout"), "h100", "no dropout"),
    ],
)
def test_what_it_cannot_write_is_refused_with_its_reason(spec: AttentionSpec, gpu: str, says: str) -> None:
    reason = GLUON_SM90.unsupported(spec, find_gpu(gpu))
    assert reason is not None
    assert says in reason
    assert list(GLUON_SM90.space(spec, find_gpu(gpu))) == []


@pytest.mark.parametrize(
    ("dtype", "head_dim"),
    [("bf16", 64), ("bf16", 96), ("bf16", 128), ("bf16", 192), ("bf16", 256), ("fp8", 64), ("fp8", 96), ("fp8", 128)],
)
@pytest.mark.parametrize("variant", ["full", "causal", "window", "window_softcap"])
def test_first_guesses_fit_and_are_in_the_space(dtype: str, head_dim: int, variant: str) -> None:
    spec = spec_of(variant, head_dim, dtype)
    space = list(GLUON_SM90.space(spec, H200))
    assert len({config.key for config in space}) == len(space)
    for config in GLUON_SM90.likely_good(spec, H200):
        assert config in space
        assert sram_bound(spec, config, H200) <= H200.smem_per_block


def test_longest_first_is_for_masks_only() -> None:
    assert not any(config.longest_first for config in GLUON_SM90.space(spec_of("full"), H200))


@pytest.mark.parametrize(
    "knobs",
    [{"BLOCK_M": 96}, {"BLOCK_N": 32}, {"num_warps": 8}, {"num_stages": 0}, {"num_stages": True},
     {"programs_per_sm": 2}, {"ping_pong": 1}, {"own_keys": 0}, {"fused_scale": "yes"}, {"lane_sums": 4},
     {"rescale_first": 1}, {"joint_release": 1}, {"pack_gqa": 8},
     {"q_stages": 3}, {"heads_per_group": 0}],
)  # fmt: skip
def test_a_wrong_knob_is_named(knobs: dict[str, object]) -> None:
    with pytest.raises(SpecError, match=next(iter(knobs))):
        GluonSm90Config(**TILE | knobs)  # type: ignore[arg-type]


def test_no_other_family_writes_fp8() -> None:
    for op in OPS:
        for family in serving(op).values():
            spec = AttentionSpec.of_variant("full", dtype="fp8", head_dim=64, op=op)
            assert (family.unsupported(spec, H200) is None) == (family is GLUON_SM90)


def test_the_output_takes_memory_where_it_cannot_use_that_of_q() -> None:
    spec = AttentionSpec(dtype="bf16", head_dim=192, head_dim_v=128)
    names = [tile.name for tile in GLUON_SM90.shared_tiles(spec, GluonSm90Config(**TILE), H200)]  # type: ignore[arg-type]
    assert names == ["Q", "K", "V", "Out"]


def test_packs_are_searched_where_heads_share_keys() -> None:
    alone, shared = (Workload(batch=1, heads_q=8, heads_kv=heads, seqlen_q=64, seqlen_k=8192) for heads in (8, 2))
    assert space_of(GLUON_SM90, spec_of(), H200, (alone,)).choices["pack_gqa"] == (False,)
    assert space_of(GLUON_SM90, spec_of(), H200, (alone, shared)).choices["pack_gqa"] == (False, True)
    assert not any(config.pack_gqa for config in GLUON_SM90.space(spec_of(dtype="fp8"), H200))  # type: ignore[attr-defined]
