"""What passes as exact and what does not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from flashgen.verify.criterion import deviation, error_ratio
from flashgen.verify.expected import expected_gradients
from flashgen.verify.reference import PLAIN, Features, Scoring, reference, standard
from tests.verify.fused import fused, fused_backward, tf32

QKV = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

_DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def _inputs(dtype: torch.dtype, *, gain_v: float = 1.0, offset_v: float = 0.0) -> QKV:
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, 2, rows, 64, generator=generator) for rows in (130, 257, 257))
    return q.to(dtype), k.to(dtype), (v * gain_v + offset_v).to(dtype)


def _ratios(inputs: QKV, scoring: Scoring, **fault: Any) -> tuple[float, float]:
    """(out, lse) of the emulated kernel."""
    q, k, v = inputs
    results, expected, yardstick = (f(q, k, v, scoring) for f in (lambda *x: fused(*x, **fault), reference, standard))
    return (
        error_ratio(results[0], expected[0], yardstick[0]),
        error_ratio(results[1], expected[1], yardstick[1], unit=1.0),
    )


@pytest.mark.parametrize("right", [-1, 0])
@pytest.mark.parametrize("offset_v", [0.0, 1000.0])
@pytest.mark.parametrize("gain_v", [1.0, 2.0**-18])
@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_exact_kernel_passes_with_room(dtype: torch.dtype, gain_v: float, offset_v: float, right: int) -> None:
    inputs = _inputs(dtype, gain_v=gain_v, offset_v=offset_v)
    assert max(_ratios(inputs, Scoring(scale=0.125, right=right))) < 0.6


@pytest.mark.parametrize("right", [-1, 0])
def test_tf32_does_not_pass_for_fp32(right: int) -> None:
    out, _ = _ratios(_inputs(torch.float32), Scoring(scale=0.125, right=right), operand=tf32)
    assert out > 5.0


@pytest.mark.parametrize(
    ("dtype", "p_dtype"), [(torch.float32, torch.float16), (torch.float16, torch.bfloat16)], ids=str
)
def test_coarser_probabilities_do_not_pass(dtype: torch.dtype, p_dtype: torch.dtype) -> None:
    assert _ratios(_inputs(dtype), Scoring(scale=0.125), p_dtype=p_dtype)[0] > 1.0


_SHAPES = {"ragged": (37, 69), "one key": (99, 1), "few": (2, 5), "keys are few": (70, 17)}


def _backward_inputs(dtype: torch.dtype, sizes: tuple[int, int], offset_v: float = 0.0) -> tuple[torch.Tensor, ...]:
    """q, k, v and dout of two query heads and one kv head."""
    generator = torch.Generator().manual_seed(3)
    (seqlen_q, seqlen_k), drawn = sizes, []
    for heads, rows, offset in ((2, seqlen_q, 0.0), (1, seqlen_k, 0.0), (1, seqlen_k, offset_v), (2, seqlen_q, 0.0)):
        drawn.append((torch.randn(1, heads, rows, 64, generator=generator) + offset).to(dtype))
    return tuple(drawn)


def _gradient_ratios(
    inputs: tuple[torch.Tensor, ...],
    scoring: Scoring,
    features: Features = PLAIN,
    dlse: torch.Tensor | None = None,
    change: Any = None,
    **fault: Any,
) -> dict[str, float]:
    """By gradient, of the emulated kernel; `change` may spoil what it found."""
    given = (*inputs, scoring, features, dlse)
    found, expected = fused_backward(*given, **fault), expected_gradients(*given)
    if change is not None:
        change(found)
    return {name: expected[name].deviation_of(result).ratio for name, result in found.items()}


@pytest.mark.parametrize("right", [-1, 0])
@pytest.mark.parametrize("offset_v", [0.0, 1000.0])
@pytest.mark.parametrize("sizes", _SHAPES.values(), ids=_SHAPES)
@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_exact_gradients_pass_with_room(
    dtype: torch.dtype, sizes: tuple[int, int], offset_v: float, right: int
) -> None:
    inputs = _backward_inputs(dtype, sizes, offset_v)
    assert max(_gradient_ratios(inputs, Scoring(scale=0.125, right=right)).values()) < 0.6


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_exact_gradients_with_every_feature_pass_with_room(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(9)
    scores = (1, 2, 37, 69)
    features = Features(
        alibi_slopes=0.1 * torch.rand(1, 2, generator=generator),
        bias=torch.randn(scores, generator=generator).to(dtype),
        sinks=torch.randn(2, generator=generator),
        keep=torch.rand(scores, generator=generator) > 0.5,
        dropout_p=0.5,
    )
    dlse = torch.randn(1, 2, 37, generator=generator)
    ratios = _gradient_ratios(_backward_inputs(dtype, (37, 69)), Scoring(scale=0.125, softcap=2.0), features, dlse)
    assert set(ratios) == {"dq", "dk", "dv", "dbias", "dsinks"}
    assert max(ratios.values()) < 0.6


def test_tf32_gradients_do_not_pass_for_fp32() -> None:
    ratios = _gradient_ratios(_backward_inputs(torch.float32, (37, 69)), Scoring(scale=0.125), operand=tf32)
    assert min(ratios.values()) > 2.0


@pytest.mark.parametrize(
    ("dtype", "p_dtype"), [(torch.float32, torch.float16), (torch.float16, torch.bfloat16)], ids=str
)
def test_coarser_factors_of_gradients_do_not_pass(dtype: torch.dtype, p_dtype: torch.dtype) -> None:
    ratios = _gradient_ratios(_backward_inputs(dtype, (37, 69)), Scoring(scale=0.125), p_dtype=p_dtype)
    assert min(ratios.values()) > 1.0


@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_one_row_of_a_gradient_off_by_a_hundredth_does_not_pass(dtype: torch.dtype, name: str) -> None:
    """In bf16 by a thirtieth: a hundredth is its rounding."""
    off = 1.03 if dtype is torch.bfloat16 else 1.01
    inputs, scoring = _backward_inputs(dtype, (70, 17)), Scoring(scale=0.125)
    ratios = _gradient_ratios(inputs, scoring, change=lambda found: found[name][0, 0, -1].mul_(off))
    assert {other for other, ratio in ratios.items() if ratio > 1.0} == {name}


def test_gradient_of_one_key_must_cancel() -> None:
    """dq of a query with one key is 0; what rounding leaves passes, a delta without its rounding's size does not."""
    inputs, scoring = _backward_inputs(torch.float32, (99, 1)), Scoring(scale=0.125)
    assert _gradient_ratios(inputs, scoring)["dq"] < 0.1
    out, lse = reference(*inputs[:3], scoring)
    assert _gradient_ratios(inputs, scoring, out=out * (1 + 2.0**-10), lse=lse)["dq"] > 1.0


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_same_bits_pass_with_ratio_zero(dtype: torch.dtype) -> None:
    result = torch.full((1, 1, 1, 64), 2.0**13 * 1.015625, dtype=dtype)
    assert error_ratio(result, result.double(), result) == 0.0


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_allowance_shrinks_with_the_values(dtype: torch.dtype) -> None:
    """Zeros in place of outputs near 1e-5 fail: there is no absolute tolerance that hides them."""
    inputs = _inputs(dtype, gain_v=1e-4)
    expected, yardstick = reference(*inputs, Scoring(scale=0.125))[0], standard(*inputs, Scoring(scale=0.125))[0]
    assert error_ratio(torch.zeros_like(yardstick), expected, yardstick) > 10.0


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_one_wrong_element_is_measured_by_the_values_too(dtype: torch.dtype) -> None:
    expected = torch.full((1, 1, 8, 64), 2.0**-9).double()
    result = expected.to(dtype)
    rounding = 256 if dtype is torch.float32 else 1
    result[0, 0, 3, 5] *= 1.0 + 4 * rounding * torch.finfo(dtype).eps
    found = deviation(result, expected, expected.to(dtype))
    assert found.measure == "largest error"
    assert 2.0 < found.ratio < 5.0


def test_one_wrong_row_does_not_drown() -> None:
    """The last row, of small outputs, beside rows whose outputs and standard errors are ten times as large."""
    inputs, scoring = _inputs(torch.bfloat16), Scoring(scale=0.125, right=0)
    out, expected, yardstick = fused(*inputs, scoring)[0], reference(*inputs, scoring)[0], standard(*inputs, scoring)[0]
    out[0, 0, -1] *= 1.03
    found = deviation(out, expected, yardstick)
    assert found.ratio > 1.0
    assert found.measure == "row error"


def test_overflow_of_the_yardstick_loosens_nothing() -> None:
    expected = torch.ones(1, 1, 4, 32, dtype=torch.float64)
    broken = torch.full((1, 1, 4, 32), math.nan, dtype=torch.float16)
    assert error_ratio(torch.full_like(broken, 1.01), expected, broken) > 1.0
    assert error_ratio(torch.ones_like(broken), expected, broken) == 0.0


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("in_result", [True, False])
def test_special_values_never_match_numbers(special: float, in_result: bool) -> None:
    number, other = torch.zeros(3, 32), torch.zeros(3, 32)
    other[1, 5] = special
    result, expected = (other, number) if in_result else (number, other)
    assert error_ratio(result, expected.double(), number) == math.inf


def test_infinities_must_have_the_sign() -> None:
    minus = torch.full((4,), -math.inf)
    assert error_ratio(minus, minus.double(), minus, unit=1.0) == 0.0
    assert error_ratio(-minus, minus.double(), minus, unit=1.0) == math.inf


def test_nan_where_nan_is_right() -> None:
    nan = torch.full((4, 16), math.nan)
    assert error_ratio(nan, nan.double(), nan) == 0.0


def test_masked_row_must_be_zero() -> None:
    expected = torch.randn(3, 32, generator=torch.Generator().manual_seed(0)).double()
    expected[0] = 0.0
    result = expected.half()
    assert error_ratio(result, expected, result) <= 1.0
    result[0, 7] = 1e-5
    assert error_ratio(result, expected, expected.half()) > 1.0


def test_empty_is_exact() -> None:
    empty = torch.zeros(1, 2, 0, 16)
    assert error_ratio(empty, empty.double(), empty) == 0.0


def test_lse_is_judged_absolutely_below_one() -> None:
    expected = torch.full((1, 1, 8), 1e-7, dtype=torch.float64)
    rounded = torch.zeros(1, 1, 8)
    assert error_ratio(rounded, expected, rounded, unit=1.0) < 1.0
    assert error_ratio(rounded + 1e-3, expected, rounded, unit=1.0) > 1.0


def test_scale_of_the_values_does_not_matter() -> None:
    inputs, scoring = _inputs(torch.bfloat16), Scoring(scale=0.125)
    triple = fused(*inputs, scoring)[0], reference(*inputs, scoring)[0], standard(*inputs, scoring)[0]
    result, expected, yardstick = (x * 2.0**-40 for x in triple)
    assert error_ratio(result, expected, yardstick) == pytest.approx(error_ratio(*triple), rel=1e-6)


def test_reference_that_rounds_is_refused() -> None:
    x = torch.zeros(1, 16)
    with pytest.raises(ValueError, match="float32"):
        error_ratio(x, x, x)
    with pytest.raises(ValueError, match=r"\(1, 16\), \(16, 1\)"):
        error_ratio(x, x.double().T, x)


def test_text_gives_the_numbers() -> None:
    expected = torch.ones(1, 1, 4, 32, dtype=torch.float64)
    found = deviation(torch.full((1, 1, 4, 32), 1.25).half(), expected, expected.half())
    assert str(found).startswith(("largest error 2.50e-01 is", "row error 1.41e+00 is"))
    assert "NaN" in str(deviation(torch.full((1, 1, 4, 32), math.nan), expected, expected.float()))


def test_what_exp2_flushes_is_allowed_and_no_more() -> None:
    reference = torch.full((1, 1, 2, 32), 1e-39, dtype=torch.float64)
    flushed = torch.zeros(1, 1, 2, 32, dtype=torch.bfloat16)
    assert error_ratio(flushed, reference, reference.to(torch.bfloat16)) <= 1.0
    assert error_ratio(flushed, 1e9 * reference, (1e9 * reference).to(torch.bfloat16)) > 1.0
