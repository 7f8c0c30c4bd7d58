"""The expectations of a backward pass: what torch.autograd gets of an emitted module's public function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch

from flashgen.verify.expected import Expected, expected_gradients
from tests.cases.case import Case
from tests.cases.check import Checker, Results, attend, nan_in_new_memory, scoring_of
from tests.cases.inputs import Inputs, make_dout


class GradientChecker(Checker):
    """The expectations of both passes: of out and lse, and of the gradients of q, k, v and a bias.

    `needs` of a case names those of q, k and v that need a gradient alone.
    """

    def __init__(self, module: ModuleType, case: Case, layout: str, *, device: str = "cpu", **options: Any) -> None:
        super().__init__(module, case, layout, device=device, **options)
        self.dout = make_dout(case, device)
        self.needs: list[str] = [*case.extra.get("needs", [*"qkv", *{"bias"}.intersection(self.features)])]

    def checks(self, argument: str) -> dict[str, Callable[[], None]]:
        """Where a case leaves it open whether to refuse, being right is expected."""
        return {
            "match_ref_grad": self.matches,
            "match_ref_grad or raise": self.matches,
            "raise_or_match_ref": self.matches,
            "needs_autocast": self.needs_autocast,
            "raise on second backward": self.has_no_second_derivative,
            "raise_or_mask_consistent": self.drops_by_the_seed,
            "ok": self.compiles,
        }

    def read(self) -> list[torch.Tensor]:
        return [*super().read(), self.dout]

    @nan_in_new_memory()
    def compute(self, case: Case, inputs: Inputs) -> Results:
        return self.differentiate(case, inputs)

    def differentiate(self, case: Case, inputs: Inputs, *, create_graph: bool = False) -> Results:
        """The results of both passes; with `create_graph` the gradients have one of their own."""
        given = {name: self.leaf(name, x) for name, x in {**vars(inputs), **self.features}.items()}
        features = {name: given[name] for name in self.features}
        out, lse = attend(self.module, case, Inputs(**{name: given[name] for name in "qkv"}), features, self.layout)
        wanted = [given[name] for name in self.needs]
        gradients = torch.autograd.grad(out, wanted, self.dout.transpose(1, 2), create_graph=create_graph)
        found = {f"d{name}": x if name == "bias" else x.transpose(1, 2) for name, x in zip(self.needs, gradients)}
        return Results(out=out.detach(), lse=lse.detach(), **found)

    def leaf(self, name: str, x: Any) -> Any:
        """The same memory, which autograd differentiates by if it is to."""
        return x.detach().requires_grad_() if name in self.needs else x

    def expect(self) -> dict[str, Expected]:
        dout, scoring = self.dout.transpose(1, 2), scoring_of(self.case)
        return super().expect() | expected_gradients(*self.seen(), dout, scoring, self.seen_features())

    def dtypes(self) -> dict[str, torch.dtype]:
        """Of a gradient, what it is the gradient of."""
        given: dict[str, torch.Tensor] = {**vars(self.inputs), **self.features}
        return super().dtypes() | {f"d{name}": given[name].dtype for name in self.needs}

    def needs_autocast(self) -> None:
        with pytest.raises(ValueError, match="allowed: one dtype"):
            self.compute(self.case.but({"dtypes": None}), self.inputs)

    def has_no_second_derivative(self) -> None:
        """The first is right all the same."""
        first = self.differentiate(self.case, self.inputs, create_graph=True)
        with pytest.raises(NotImplementedError, match=r"no second derivative.*next: "):
            first["dq"].square().sum().backward()
        assert first.same_bits(self.result)
        self.matches()

    def drops_by_the_seed(self) -> None:
        """What `dropout_mask` says, whatever the tiles; the same again for the same seed, another for another."""
        self.matches()
        assert self.run().same_bits(self.result), "one seed drops differently in two calls"
        seed, offset = self.features["dropout_seed"].tolist()
        for other in ([seed + 1, offset], [seed, offset + 1]):
            results = self.but({"dropout_seed": other}).run()
            assert not any(torch.allclose(results[name], self.result[name]) for name in ("out", "dq", "dk", "dv"))
            assert torch.equal(results["lse"], self.result["lse"])

    def compiles(self) -> None:
        """Whole, in both passes and for lengths that are known or not, to the bits of the call as it is."""
        self.matches()
        backend = "inductor" if self.device.startswith("cuda") else "aot_eager"
        for dynamic in (False, True):
            torch._dynamo.reset()
            compiled: Callable[..., Any] = torch.compile(
                self.module.flash_attention, fullgraph=True, backend=backend, dynamic=dynamic
            )
            results = self.but({}, cast(ModuleType, SimpleNamespace(flash_attention=compiled))).run()
            assert results.same_bits(self.result), f"compiled with dynamic={dynamic} it differs"

    def but(self, changes: Mapping[str, Any], module: ModuleType | None = None) -> GradientChecker:
        """The checker of another case, or of another module."""
        return GradientChecker(module or self.module, self.case.but(changes), self.layout, device=self.device)


CHECKERS: dict[str, type[Checker]] = {"fwd": Checker, "bwd": GradientChecker}
