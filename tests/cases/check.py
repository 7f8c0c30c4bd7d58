"""Running a form through an emitted module's public functions, and the expectations that cases.yaml can state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import pytest
import torch

from flashgen.verify.criterion import deviation
from flashgen.verify.reference import Scoring, reference, standard
from tests.cases.case import Case
from tests.cases.inputs import DTYPES, Inputs, make_inputs, snapshot

# `same_as:` names and what a case has to be changed in to become that.
SAME_AS: dict[str, dict[str, Any]] = {
    "causal": {"causal": True, "window": (-1, -1)},
    "full": {"causal": False, "window": (-1, -1)},
    "contiguous": {"layout": None},
}
EXTRA_KEYS = frozenset(
    (
        "scale",
        "gain",
        "gain_q",
        "gain_k",
        "fill_q",
        "fill_k",
        "fill_v",
        "q",
        "k",
        "v",
        "layout",
        "calls",
        "zero_rows",
        "small",
    )
    + ("head_dim_v", "block", "also")
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """out [Z, H, Sq, Dv] in the kernel's dtype and lse [Z, H, Sq] in fp32."""

    out: torch.Tensor
    lse: torch.Tensor

    def same_bits(self, other: Result) -> bool:
        return torch.equal(self.out, other.out) and torch.equal(self.lse, other.lse)


@contextmanager
def nan_in_new_memory() -> Iterator[None]:
    """Within, torch fills what it allocates with NaN, so that what a kernel leaves unwritten shows."""
    assert getattr(torch.utils.deterministic, "fill_uninitialized_memory")  # noqa: B009  # set by its module's class
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def scoring_of(case: Case) -> Scoring:
    left, right = case.given("window")
    return Scoring(
        scale=case.extra.get("scale", case.given("head_dim") ** -0.5),
        left=left,
        right=0 if case.causal else right,
        softcap=case.softcap or 0.0,
    )


def run(module: ModuleType, case: Case, inputs: Inputs, layout: str) -> Result:
    """`flash_attention` on the inputs; where the last dim is strided, flash-attn's own function, which copies."""
    given = inputs if layout == "bshd" else inputs.bhsd()
    strided = any(x.shape[-1] > 1 and x.stride(-1) != 1 for x in vars(inputs).values())
    options = {"softmax_scale": case.extra.get("scale"), "causal": case.causal, "softcap": case.softcap}
    with nan_in_new_memory():
        if strided:
            out, lse, _ = module.flash_attn_func(
                *vars(inputs).values(), **options, window_size=case.window, return_attn_probs=True
            )
        else:
            out, lse = module.flash_attention(
                *vars(given).values(), **options, window=case.window, return_lse=True, layout=layout
            )
    return Result(out=out.transpose(1, 2) if strided or layout == "bshd" else out, lse=lse)


class Checker:
    """The expectations, each a method, on one form in one module, called in one layout.

    `to_the_bit` says whether `same_as:` asks for equal bits: on a GPU not where the two go through different kernels.
    """

    def __init__(
        self, module: ModuleType, case: Case, layout: str, *, device: str = "cpu", to_the_bit: bool = True
    ) -> None:
        unknown = sorted(set(case.extra) - EXTRA_KEYS)
        assert not unknown, f"the harness does not know the extra key {unknown[0]!r} of {case.id}"
        self.module, self.case, self.layout, self.to_the_bit = module, case, layout, to_the_bit
        self.inputs = make_inputs(case, device)

    def check(self) -> None:
        for token in (self.case.tokens[0], *self.case.extra.get("also", ())):
            self.check_token(token)

    def check_token(self, token: str) -> None:
        word, _, argument = token.partition(":")
        checks: dict[str, Callable[[], None]] = {
            "same_as": lambda: self.same_as(argument.split()[0]),
            "within": lambda: self.within(float(argument)),
            "first_row": lambda: self.first_row(float(argument)),
            "returns_v": self.returns_v,
            "raise": self.raises,
            "raise_or_match_ref": self.matches_or_raises,
            "match_ref or raise": self.matches_or_raises,
            "bitwise_repeat": self.repeats,
            "match_ref": self.matches,
        }
        # The words after the token are for readers: "match_ref for S=1,2,3" lists sizes that forms.py has.
        name = word if word in checks else word.split()[0]
        assert name in checks, f"the harness does not know the expectation {token!r} of {self.case.id}"
        checks[name]()

    def run(self) -> Result:
        """What the module gives, with the inputs and the NaN round them left as they were."""
        before = snapshot(self.inputs)
        result = run(self.module, self.case, self.inputs, self.layout)
        assert all(map(torch.equal, before, snapshot(self.inputs))), "an input or the memory round it was changed"
        return result

    @cached_property
    def result(self) -> Result:
        return self.run()

    @cached_property
    def expected(self) -> Result:
        return self._by(reference)

    def _by(self, compute: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> Result:
        out, lse = compute(*vars(self.inputs.bhsd()).values(), scoring_of(self.case))
        return Result(out=out, lse=lse)

    def matches(self) -> None:
        result, expected, yardstick = self.result, self.expected, self._by(standard)
        assert result.out.dtype == DTYPES[self.case.given("dtype")]
        assert result.lse.dtype == torch.float32
        out = deviation(result.out, expected.out, yardstick.out)
        lse = deviation(result.lse, expected.lse, yardstick.lse, unit=1.0)
        assert max(out.ratio, lse.ratio) <= 1.0, f"out: {out}; lse: {lse}"
        blind = expected.lse == -math.inf
        assert (result.out[blind] == 0).all(), "a row that sees no key is not 0"
        if (rows := self.case.extra.get("zero_rows")) is not None:
            assert blind[0, 0].nonzero().flatten().tolist() == rows

    def matches_or_raises(self) -> None:
        try:
            self.run()
        except (TypeError, ValueError) as error:
            if str(self.case.head_dim) not in str(error):
                pytest.fail(f"the error does not say what was asked: {error}")
        else:
            self.matches()

    def raises(self) -> None:
        with pytest.raises((TypeError, ValueError), match="allowed"):
            self.run()

    def repeats(self) -> None:
        assert all(self.run().same_bits(self.result) for _ in range(3)), "a repeat differs"
        self.matches()

    def same_as(self, variant: str) -> None:
        """Equal to the variant on the same values; calls with other strides in between change nothing."""
        plain = self.inputs.contiguous()
        wanted = run(self.module, self.case.but(SAME_AS[variant]), plain, self.layout)
        for call in self.case.extra.get("calls", ["view"]):
            result = self.run() if call == "view" else run(self.module, self.case, plain, self.layout)
            assert not self.to_the_bit or result.same_bits(wanted), f"the {call} call is not the same as {variant}"
            self.result = result
            self.matches()

    def within(self, bound: float) -> None:
        assert (self.result.out - self.expected.out).abs().max().item() <= bound
        assert (self.result.lse - self.expected.lse).abs().max().item() <= bound

    def first_row(self, value: float) -> None:
        assert (self.result.out[:, :, 0] == value).all()

    def returns_v(self) -> None:
        assert torch.equal(self.result.out, self.inputs.v.transpose(1, 2))
