"""A check that lets something pass proves nothing: what flashgen's own judgement of exactness must refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch

from flashgen.outcome import Proof
from flashgen.verify.criterion import deviation
from flashgen.verify.probes import Suite
from flashgen.verify.prove import prove_rule
from flashgen.verify.reference import standard
from flashgen.verify.suites import QUICK
from tests.cases.case import case_of
from tests.cases.check import scoring_of
from tests.cases.gradients import GradientChecker
from tests.kernels.emission import Emitter, content_of, rows_of, spec_of


def ratio(result: float, reference: float, standard: float = 0.0) -> float:
    x, ref, std = (torch.full((1, 1, 4, 16), value) for value in (result, reference, standard))
    return deviation(x, ref.double(), std).ratio


@pytest.mark.case("mask-11")
def test_nan_equals_no_number_on_either_side() -> None:
    assert ratio(0.0, 0.0) <= 1.0
    assert not ratio(math.nan, 0.0) <= 1.0
    assert not ratio(0.0, math.nan) <= 1.0
    assert not ratio(math.nan, 0.0, standard=math.nan) <= 1.0


@pytest.mark.case("mask-11")
@pytest.mark.parametrize(("result", "reference"), [(0.0, -math.inf), (-math.inf, 0.0), (math.inf, -math.inf)])
def test_an_infinity_equals_only_itself(result: float, reference: float) -> None:
    """A row that sees no key has lse -inf, and no other row has."""
    assert ratio(reference, reference) <= 1.0
    assert not ratio(result, reference) <= 1.0


@pytest.mark.case("mask-11")
def test_one_nan_among_many_numbers_fails() -> None:
    reference = torch.randn(2, 4, 64, 16).double()
    result = reference.float()
    assert deviation(result, reference, result).ratio <= 1.0
    result[1, 2, 33, 7] = math.nan
    assert not deviation(result, reference, reference.float()).ratio <= 1.0


@pytest.mark.case("num-14")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_reference_that_rounds_is_refused(dtype: torch.dtype) -> None:
    x = torch.zeros(1, 1, 4, 16)
    with pytest.raises(ValueError, match=f"the reference is {dtype}.*use float64"):
        deviation(x, x.to(dtype), x)


# What may become of dq [1, 40, 2, 32] on its way, of whose rows the first 23 see nothing.
FAULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "the last row 1% off": lambda dq: torch.cat([dq[:, :39], dq[:, 39:] * 1.01], 1),
    "NaN in one element": lambda dq: dq.index_put(tuple(torch.tensor([[0], [39], [0], [3]])), torch.tensor(math.nan)),
    "not quite 0 where nothing is seen": lambda dq: dq + 1e-9,
    "two rows swapped": lambda dq: dq[:, [*range(38), 39, 38]],
}


@pytest.mark.case("mask-07")
@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_a_gradient_with_a_fault_is_refused(fault: str | None) -> None:
    """By the cases' own harness, which takes what standard attention in fp32 gives as it is."""
    case = case_of("mask-07")

    def flash_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **_: Any) -> tuple[torch.Tensor, ...]:
        q = q * 1.0
        if fault is not None:
            q.register_hook(FAULTS[fault])
        out, lse = standard(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), scoring_of(case))
        return out.transpose(1, 2), lse

    checker = GradientChecker(cast(ModuleType, SimpleNamespace(flash_attention=flash_attention)), case, "bshd")
    if fault is None:
        checker.check()
    else:
        with pytest.raises(AssertionError, match="dq"):
            checker.check()


@pytest.mark.case("num-11")
def test_bf16_in_the_interpreter_is_no_evidence(emitter: Emitter) -> None:
    """Neither for a kernel nor against it: it is not run, and the proof of fp16 does not claim it."""
    module = emitter.load(content_of(rows_of(("bf16", "fp16"), 16, variants=("full",))))
    rule, spec = module.PORTABLE[0], spec_of("full", "bf16", 16)
    few = Suite(name="few", probes=QUICK.probes[:3])
    with pytest.raises(ValueError, match="bf16 on the CPU"):
        prove_rule(module, rule, spec, "bf16", "cpu", few, seed=0)
    found = prove_rule(module, rule, spec, "fp16", "cpu", few, seed=0)
    assert isinstance(found, Proof), found
    assert found.dtypes == ("fp16",)
    assert found.where == "interpreter"
