"""Spaces: what a family enumerates, cut by the SRAM bound."""

from __future__ import annotations

from flashgen.families import TL
from flashgen.hardware.lookup import find_gpu
from flashgen.outcome import Reason
from flashgen.resources.sram import sram_bound
from flashgen.tune.space import Space, differences, space_of
from tests.tune.replay import H200, config, small_space, spec_of


def test_the_bound_sorts_the_familys_space_and_loses_nothing() -> None:
    spec, target = spec_of(head_dim=256), find_gpu("rtx4090")
    space = space_of(TL, spec, target, ())
    assert space.enumerated == len(list(TL.space(spec, target)))
    assert space.rejected
    assert all(sram_bound(spec, each, target) <= target.smem_per_block for each in space.configs)
    assert all(sram_bound(spec, each, target) > target.smem_per_block for each, _ in space.rejected)
    assert {rejected.reason for _, rejected in space.rejected} == {Reason.SRAM}


def test_every_config_is_found_by_its_knobs_and_no_other() -> None:
    space = space_of(TL, spec_of(causal=True), H200, ())
    assert all(space.find(each.knobs()) == each for each in space.configs)
    assert space.find(config(m=16).knobs()) is None
    assert space.find({"BLOCK_M": 128}) is None


def test_choices_are_scalars_that_some_config_has() -> None:
    space = small_space()
    assert space.choices["BLOCK_M"] == (32, 64, 128, 256)
    assert space.choices["maxnreg"] == (None,)
    scalars = (int, bool, type(None))
    assert all(type(value) in scalars for values in space.choices.values() for value in values)


def test_an_empty_space_finds_nothing() -> None:
    assert Space(configs=()).find({}) is None


def test_differences_count_knobs() -> None:
    assert differences(config(), config().knobs()) == 0
    assert differences(config(), config(m=64, stages=3).knobs()) == 2
