"""Who is said to be wrong, and in what."""

from __future__ import annotations

import math

import torch

from flashgen.bench.agreement import AGREE_FP8, faults

RIGHT = torch.randn(1, 2, 64, 16, generator=torch.Generator().manual_seed(0))


def _answer(**wrong: torch.Tensor) -> dict[str, torch.Tensor]:
    return dict.fromkeys(("out", "dq", "dk", "dv"), RIGHT) | wrong


def test_answers_that_differ_by_rounding_agree() -> None:
    rounded = {name: x.bfloat16() for name, x in _answer().items()}
    assert faults({"flashgen": _answer(), "peer": rounded}) == {}
    assert faults({}) == {}


def test_the_tensor_and_its_distance_are_named() -> None:
    found = faults({"flashgen": _answer(), "peer": _answer(dk=1.5 * RIGHT)})
    assert found == {"peer": "wrong answer: dk is 0.5 of the norm from flashgen's"}


def test_the_first_is_wrong_where_the_others_agree_without_it() -> None:
    answers = {"flashgen": _answer(dv=2 * RIGHT), "a": _answer(), "b": _answer(), "c": _answer(out=-RIGHT)}
    assert faults(answers) == {
        "flashgen": "wrong answer: dv is 1 of the norm from a's",
        "c": "wrong answer: out is 2 of the norm from a's",
    }


def test_how_near_two_right_answers_are_is_given() -> None:
    answers = {"flashgen": _answer(), "peer": _answer(out=1.05 * RIGHT)}
    assert list(faults(answers)) == ["peer"]
    assert faults(answers, agree=AGREE_FP8) == {}


def test_nan_is_wrong() -> None:
    found = faults({"flashgen": _answer(dq=RIGHT * math.nan), "a": _answer(), "b": _answer()})
    assert list(found) == ["flashgen"]
    assert "dq is nan" in found["flashgen"]


def test_dropout_must_be_there_and_independent() -> None:
    """Of ones: what is kept is 1 / (1 - p), so two answers are sqrt(2p) of the norm apart."""
    p, ones = 0.1, torch.ones(1, 8, 512, 64)
    generator = torch.Generator().manual_seed(1)

    def dropped() -> dict[str, torch.Tensor]:
        return {"out": torch.bernoulli(ones * (1 - p), generator=generator) / (1 - p)}

    a, b, c = dropped(), dropped(), dropped()
    assert faults({"a": a, "b": b, "c": c}, dropout_p=p) == {}
    assert list(faults({"a": a, "b": b, "c": c, "undropped": {"out": ones}}, dropout_p=p)) == ["undropped"]
    assert list(faults({"a": a, "b": a}, dropout_p=p)) == ["b"]
