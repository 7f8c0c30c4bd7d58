"""Every case of cases.yaml that is attention of given sizes, or its gradients, in every form, by pointers and TMA."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cases.case import Case, load_cases
from tests.cases.conftest import Loads, ModuleOf
from tests.cases.forms import Form, forms
from tests.cases.gradients import CHECKERS
from tests.cases.offered import not_offered, runs_from_data, unaccounted

# Each way to load, with the layout that it is called in.
LOADS = [pytest.param("pointer", "bshd", id="pointer"), pytest.param("tma", "bhsd", id="tma")]


def _form_params(gpu: bool) -> list[Any]:
    return [
        pytest.param(form, id=form.name, marks=pytest.mark.case(case.id))
        for case in load_cases()
        if runs_from_data(case)
        for form in forms(case)
        if form.gpu == gpu
    ]


@pytest.mark.parametrize(("loads", "layout"), LOADS)
@pytest.mark.parametrize("form", _form_params(gpu=False))
def test_in_the_interpreter(form: Form, loads: Loads, layout: str, module_of: ModuleOf) -> None:
    CHECKERS[form.case.op](module_of(form.case, loads), form.case, layout).check()


@pytest.mark.gpu
@pytest.mark.parametrize(("loads", "layout"), LOADS)
@pytest.mark.parametrize("form", _form_params(gpu=True))
def test_on_a_gpu(form: Form, loads: Loads, layout: str, module_of: ModuleOf) -> None:
    import torch

    if loads == "tma" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("this GPU has no TMA")
    to_the_bit = loads == "pointer" and "same_as:contiguous" in form.case.expect
    module = module_of(form.case, loads, on_gpu=True)
    CHECKERS[form.case.op](module, form.case, layout, device="cuda", to_the_bit=to_the_bit).check()


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        pytest.param(case, reason, id=case.id, marks=pytest.mark.case(case.id))
        for case in load_cases()
        if (reason := not_offered(case))
    ],
)
def test_not_offered_yet(case: Case, reason: str) -> None:
    pytest.skip(f"not offered yet: {case.id} {reason}")


def test_every_case_is_shown_or_listed_as_missing() -> None:
    assert unaccounted() == []


def test_ids_are_unique_and_real() -> None:
    ids = [case.id for case in load_cases()]
    assert len(set(ids)) == len(ids)
    from tests.cases.offered import shown_by_hand

    assert shown_by_hand() <= set(ids)
