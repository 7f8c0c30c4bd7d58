"""Family tl_backward: its two passes, its space, its constraints, and the checks of its knobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashgen.errors import SpecError
from flashgen.families import FAMILIES, TL, TL_BACKWARD, TlBackwardConfig, serving
from flashgen.hardware.lookup import find_gpu
from flashgen.spec import AttentionSpec

SPEC = AttentionSpec(op="backward", dtype="bf16", head_dim=128, head_dim_v=128, causal=True)
PLAIN = TlBackwardConfig(
    BLOCK_M=64,
    BLOCK_N=128,
    num_warps=8,
    num_stages=2,
    BLOCK_M_DQ=128,
    BLOCK_N_DQ=32,
    num_warps_dq=4,
    num_stages_dq=1,
)


def test_each_op_has_its_families() -> None:
    assert list(serving("forward")) == ["tl", "gluon_sm90"]
    assert list(serving("backward")) == ["tl_backward", "gluon_sm90_backward"]
    assert serving("backward", {"tl": TL}) == {}
    assert {family.op for family in FAMILIES.values()} == {"forward", "backward"}


def test_a_pass_keeps_what_it_has_gradients_for() -> None:
    dkdv, dq = TL_BACKWARD.passes(replace(SPEC, head_dim_v=64), PLAIN)
    assert (dkdv.name, dkdv.keeps_keys, dkdv.kept, dkdv.step, dkdv.num_warps) == ("dK, dV", True, 128, 64, 8)
    assert (dq.name, dq.keeps_keys, dq.kept, dq.step, dq.num_warps) == ("dQ", False, 128, 32, 4)
    assert (dkdv.matmul_columns, dkdv.accumulator_columns) == (2 * (128 + 64), 128 + 64)
    assert (dq.matmul_columns, dq.accumulator_columns) == (128 + 64 + 128, 128)


@pytest.mark.parametrize("gpu", ["h200", "a100", "rtx-4090", "mi300x"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_first_guesses_are_in_the_space(gpu: str, head_dim: int) -> None:
    spec, target = replace(SPEC, head_dim=head_dim, head_dim_v=head_dim), find_gpu(gpu)
    space = set(TL_BACKWARD.space(spec, target))
    assert space.intersection(TL_BACKWARD.likely_good(spec, target))
    assert all(TL_BACKWARD.excluded(spec, config, target) is None for config in space)


def test_tma_and_merged_passes_are_offered_from_hopper_on_only() -> None:
    assert {config.knobs()["merged"] for config in TL_BACKWARD.space(SPEC, find_gpu("h200"))} == {False, True}
    for config in TL_BACKWARD.space(SPEC, find_gpu("a100")):
        assert not config.knobs()["tma"]
        assert not config.knobs()["merged"]


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"merged": True}, "merged needs tma"),
        ({"merged": True, "tma": True}, "equal ones in both passes"),
        ({"BLOCK_N": 64}, "dK, dV: 8 warps share 64 rows"),
        ({"num_warps": 4}, "dK, dV: accumulators and scores take"),
        ({"num_warps_dq": 16}, "dQ: 16 warps share 128 rows"),
    ],
)
def test_excluded_says_which_pass_and_why(knobs: dict[str, int], words: str) -> None:
    assert TL_BACKWARD.excluded(SPEC, PLAIN, find_gpu("h200")) is None
    reason = TL_BACKWARD.excluded(SPEC, replace(PLAIN, **knobs), find_gpu("h200"))
    assert reason is not None
    assert words in reason


def test_turing_is_refused_with_its_reason() -> None:
    reason = TL_BACKWARD.unsupported(replace(SPEC, dtype="fp16"), find_gpu("t4"))
    assert reason is not None
    assert "sm_75" in reason


@pytest.mark.parametrize(
    "knobs",
    [
        {"BLOCK_M_DQ": 48},
        {"BLOCK_N_DQ": "64"},
        {"num_warps_dq": 3},
        {"num_stages_dq": 0},
        {"merged": 1},
        {"tma": "false"},
        {"dp_first": None},
    ],
)
def test_a_knob_that_cannot_be_is_refused_by_name(knobs: dict[str, object]) -> None:
    with pytest.raises(SpecError, match=next(iter(knobs))):
        TL_BACKWARD.config(PLAIN.knobs() | knobs)


def test_knobs_of_the_forward_are_not_its_own() -> None:
    with pytest.raises(SpecError, match="family 'tl_backward' has no knob 'maxnreg'"):
        TL_BACKWARD.config(PLAIN.knobs() | {"maxnreg": 128})
    with pytest.raises(SpecError, match="family 'tl' has no knob 'BLOCK_M_DQ'"):
        TL.config(PLAIN.knobs())
