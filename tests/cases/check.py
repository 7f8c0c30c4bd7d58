"""Running a form through an emitted module's public functions, and the expectations that cases.yaml can state."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from types import ModuleType
from typing import Any

import pytest
import torch

from flashgen.verify.expected import Expected, expected_outputs
from flashgen.verify.reference import Features, Scoring
from tests.cases.case import Case
from tests.cases.inputs import DTYPES, Inputs, make_features, make_inputs, snapshot

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
    + ("bias", "bias_row", "dropout", "dropout_seed", "do_layout", "do_dtype", "dtypes", "needs")
)


class Results(dict[str, torch.Tensor]):
    """What a call gave, by name: out [Z, H, Sq, Dv] and lse [Z, H, Sq]; of gradients dq, dk, dv alike, and dbias."""

    def same_bits(self, other: Results) -> bool:
        return self.keys() == other.keys() and all(torch.equal(self[name], other[name]) for name in self)


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


def attend(
    module: ModuleType, case: Case, inputs: Inputs, features: Mapping[str, Any], layout: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [Z, H, Sq, Dv], lse) of `flash_attention`; where the last dim is strided, of flash-attn's own, which copies.

    Inputs of several dtypes are under autocast.
    """
    given = inputs if layout == "bshd" else inputs.bhsd()
    strided = any(x.shape[-1] > 1 and x.stride(-1) != 1 for x in vars(inputs).values())
    options = {"softmax_scale": case.extra.get("scale"), "causal": case.causal, "softcap": case.softcap}
    with _autocast(case, inputs):
        if strided:
            assert not features, f"{case.id} has features and a strided last dim, which no one function takes"
            out, lse, _ = module.flash_attn_func(
                *vars(inputs).values(), **options, window_size=case.window, return_attn_probs=True
            )
        else:
            out, lse = module.flash_attention(
                *vars(given).values(), **options, **features, window=case.window, return_lse=True, layout=layout
            )
    return out.transpose(1, 2) if strided or layout == "bshd" else out, lse


def _autocast(case: Case, inputs: Inputs) -> AbstractContextManager[Any]:
    if "dtypes" not in case.extra:
        return nullcontext()
    return torch.autocast(inputs.q.device.type, dtype=DTYPES[case.given("dtype")])


class Checker:
    """The expectations of a forward pass, each a method, on one form in one module, called in one layout.

    `to_the_bit` says whether `same_as:` asks for equal bits: on a GPU not where the two go through different kernels.
    """

    def __init__(
        self, module: ModuleType, case: Case, layout: str, *, device: str = "cpu", to_the_bit: bool = True
    ) -> None:
        unknown = sorted(set(case.extra) - EXTRA_KEYS)
        assert not unknown, f"the harness does not know the extra key {unknown[0]!r} of {case.id}"
        self.module, self.case, self.layout = module, case, layout
        self.device, self.to_the_bit = device, to_the_bit
        self.inputs, self.features = make_inputs(case, device), make_features(case, device)

    def check(self) -> None:
        for token in (self.case.tokens[0], *self.case.extra.get("also", ())):
            self.check_token(token)

    def check_token(self, token: str) -> None:
        word, _, argument = token.partition(":")
        checks = self.checks(argument)
        # The words after the token are for readers: "match_ref for S=1,2,3" lists sizes that forms.py has.
        name = word if word in checks else re.split(r"\W", word)[0]
        assert name in checks, f"the harness does not know the expectation {token!r} of {self.case.id}"
        checks[name]()

    def checks(self, argument: str) -> dict[str, Callable[[], None]]:
        """The expectations by token, of which some have an argument."""
        return {
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

    def run(self) -> Results:
        """What the module gives, with the inputs and the NaN round them left as they were."""
        before = snapshot(self.read())
        results = self.compute(self.case, self.inputs)
        assert all(map(torch.equal, before, snapshot(self.read()))), "an input or the memory round it was changed"
        return results

    def read(self) -> list[torch.Tensor]:
        """The tensors that a call is given."""
        return [x for x in (*vars(self.inputs).values(), *self.features.values()) if isinstance(x, torch.Tensor)]

    @nan_in_new_memory()
    def compute(self, case: Case, inputs: Inputs) -> Results:
        out, lse = attend(self.module, case, inputs, self.features, self.layout)
        return Results(out=out, lse=lse)

    @cached_property
    def result(self) -> Results:
        return self.run()

    @cached_property
    def expected(self) -> dict[str, Expected]:
        return self.expect()

    def expect(self) -> dict[str, Expected]:
        return expected_outputs(*self.seen(), scoring_of(self.case), self.seen_features())

    def seen(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v as [Z, H, S, D], in the dtype that is computed in."""
        given, dtype = self.inputs.bhsd(), DTYPES[self.case.given("dtype")]
        return given.q.to(dtype), given.k.to(dtype), given.v.to(dtype)

    def seen_features(self) -> Features:
        """As the reference takes them, with the pairs that the module's own dropout_mask keeps."""
        given = dict(self.features)
        if (seed := given.pop("dropout_seed", None)) is not None:
            q, k, _ = self.seen()
            given["keep"] = self.module.dropout_mask(seed, *q.shape[:3], k.shape[2], given["dropout_p"])
        return Features(**given)

    def dtypes(self) -> dict[str, torch.dtype]:
        """What the results must be in."""
        return {"out": DTYPES[self.case.given("dtype")], "lse": torch.float32}

    def matches(self) -> None:
        dtypes = self.dtypes()
        for name, result in self.result.items():
            assert result.dtype == dtypes[name]
            found = self.expected[name].deviation_of(result)
            assert found.ratio <= 1.0, f"{name}: {found}"
        blind = self.expected["lse"].reference == -math.inf
        for name in {"out", "dq"} & self.result.keys():
            assert (self.result[name][blind] == 0).all(), f"{name} of a row that sees no key is not 0"
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
        wanted = self.compute(self.case.but(SAME_AS[variant]), plain)
        for call in self.case.extra.get("calls", ["view"]):
            result = self.run() if call == "view" else self.compute(self.case, plain)
            assert not self.to_the_bit or result.same_bits(wanted), f"the {call} call is not the same as {variant}"
            self.result = result
            self.matches()

    def within(self, bound: float) -> None:
        for name, result in self.result.items():
            assert (result - self.expected[name].reference).abs().max().item() <= bound

    def first_row(self, value: float) -> None:
        assert (self.result["out"][:, :, 0] == value).all()

    def returns_v(self) -> None:
        assert torch.equal(self.result["out"], self.inputs.v.transpose(1, 2))
