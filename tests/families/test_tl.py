"""Family tl: its space, its constraints, and the checks of its knobs."""

from __future__ import annotations

from itertools import product

import pytest

from flashgen.errors import SpecError
from flashgen.families import TL, TlConfig
from flashgen.hardware.lookup import find_gpu
from flashgen.spec import AttentionSpec

SPEC = AttentionSpec(dtype="bf16", head_dim=128, head_dim_v=128, causal=True)
PLAIN = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}


@pytest.mark.parametrize("gpu", ["h200", "a100", "mi300x"])
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_the_space_is_what_brute_force_leaves(gpu: str, dtype: str) -> None:
    target = find_gpu(gpu)
    spec = AttentionSpec(dtype=dtype, head_dim=256, head_dim_v=256)  # type: ignore[arg-type]
    choices = TL.choices(spec, target)
    every = (TL.config(dict(zip(choices, values))) for values in product(*choices.values()))
    assert list(TL.space(spec, target)) == [config for config in every if TL.excluded(spec, config, target) is None]


def test_every_config_of_the_space_is_distinct_and_has_its_own_key() -> None:
    configs = list(TL.space(SPEC, find_gpu("h200")))
    assert len({config.key for config in configs}) == len(configs) == len(set(configs))


def test_tma_is_offered_from_hopper_on_only() -> None:
    assert any(config.tma for config in TL.space(SPEC, find_gpu("h200")) if isinstance(config, TlConfig))
    assert not any(config.tma for config in TL.space(SPEC, find_gpu("a100")) if isinstance(config, TlConfig))


def test_turing_is_refused_with_its_reason() -> None:
    reason = TL.unsupported(AttentionSpec(dtype="fp16", head_dim=64, head_dim_v=64), find_gpu("t4"))
    assert reason is not None
    assert "sm_75" in reason
    assert "sm_80" in reason
    assert list(TL.space(SPEC, find_gpu("t4"))) == []


def test_first_guesses_are_in_the_space() -> None:
    for gpu in ("h200", "a100", "rtx-4090"):
        space = set(TL.space(SPEC, find_gpu(gpu)))
        assert space.intersection(TL.likely_good(SPEC, find_gpu(gpu)))


@pytest.mark.parametrize(
    "knobs",
    [
        {"BLOCK_M": 48},
        {"BLOCK_M": "64"},
        {"num_warps": 3},
        {"num_stages": 0},
        {"tma": "false"},
        {"tma": 1},
        {"programs_per_sm": True},
        {"heads_per_group": 0},
        {"maxnreg": 100},
        {"colour": 1},
    ],
)
def test_wrong_knobs_are_named(knobs: dict[str, object]) -> None:
    with pytest.raises(SpecError, match=next(iter(knobs))):
        TL.config(PLAIN | knobs)


def test_a_missing_knob_is_an_error() -> None:
    with pytest.raises(SpecError, match="BLOCK_N"):
        TL.config({"BLOCK_M": 64, "num_warps": 4, "num_stages": 3})
