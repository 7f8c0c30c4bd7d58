"""A module with rules in Gluon where Gluon cannot run: its other kernels serve, with one warning on a GPU."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

import pytest
import torch
import triton

from flashgen.codegen.module import render_module
from tests.kernels.emission import Emitter, content_of, gluon_backward_rows_of, gluon_rows_of, rows_of, training_rows_of
from tests.kernels.gluon.language import interpreted_gluon

HALF = ("bf16", "fp16")
HOPPER = torch.device("cuda:0")


@pytest.fixture
def module(emitter: Emitter) -> ModuleType:
    return emitter.load(content_of(rows_of(HALF, 64), gluon_rows_of(HALF)["every_knob"], "NVIDIA H200"))


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    """This machine has an H200, as far as the module can tell."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    module._rules_of.cache_clear()
    module._candidates.cache_clear()


def is_gluon(rule: Any) -> bool:
    return type(rule.config).__name__ == "HopperConfig"


def test_on_a_cpu_the_portable_kernels_run_without_a_word(module: ModuleType) -> None:
    q, k, v = torch.randn(3, 1, 40, 2, 64, dtype=torch.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        out = module.flash_attention(q, k, v, causal=True)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2).double() for x in (q, k, v)), is_causal=True
    )
    torch.testing.assert_close(out.double(), expected.transpose(1, 2), rtol=2e-3, atol=2e-3)


@pytest.mark.usefixtures("hopper")
def test_on_hopper_the_rules_in_gluon_come_first(module: ModuleType) -> None:
    rules = module._rules_of(HOPPER)
    assert is_gluon(rules[0])
    assert not is_gluon(rules[-1])


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("version", ["3.5.1", "3.10.0", "4.0.0"])
def test_a_triton_that_it_was_not_shown_with_warns_once(
    version: str, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "__version__", version)
    with pytest.warns(UserWarning, match=f"triton 3.6 to 3.9, not with {version}"):
        rules = module._rules_of(HOPPER)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert module._rules_of(HOPPER) == rules
    assert not any(map(is_gluon, rules))
    assert {rule.variant for rule in rules} == {"full", "causal", "window", "window_softcap"}


@pytest.mark.usefixtures("hopper")
def test_a_triton_without_gluon_warns_once(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "gluon", None)
    with pytest.warns(UserWarning, match="known to work with triton") as caught:
        assert not any(map(is_gluon, module._rules_of(HOPPER)))
    assert len(caught) == 1


@pytest.mark.usefixtures("hopper")
def test_tensors_that_tma_cannot_describe_go_to_other_kernels(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = (torch.empty(1, 2, 40, 64, dtype=torch.float16) for _ in range(3))
    rules = module._candidates(HOPPER, torch.float16, 64, 64, "causal")
    assert [is_gluon(rule) for rule in rules] == [True, False]
    monkeypatch.setattr(module, "_candidates", lambda *arguments: rules)
    assert is_gluon(module._select("causal", q, k, v))
    odd = torch.empty(1, 2, 40, 65, dtype=torch.float16)[..., :64]
    assert not is_gluon(module._select("causal", odd, k, v))


@pytest.mark.usefixtures("hopper")
def test_who_asks_for_the_same_bits_gets_kernels_that_give_them(emitter: Emitter) -> None:
    tuned = gluon_backward_rows_of(HALF)
    training = emitter.load(content_of(training_rows_of(HALF, 64), tuned, "NVIDIA H200"))
    q, k, v = (torch.empty(1, 2, 40, 64, dtype=torch.float16) for _ in range(3))
    rules = tuple(rule for rule in training._rules_of(HOPPER) if (rule.op, rule.variant) == ("backward", "causal"))
    training._candidates = lambda *arguments: rules
    assert training._select("backward", "causal", q, k, v).config.unordered == ("dq",)
    assert not hasattr(training._select("backward", "causal", q, k, v, deterministic=True).config, "unordered")


def test_sms_are_counted_where_programs_are_persistent() -> None:
    stays = {"full": {"programs_per_sm": 1}}
    tables = (gluon_backward_rows_of(HALF), gluon_backward_rows_of(HALF, **stays))
    texts = [render_module(content_of(training_rows_of(HALF, 64), table)) for table in tables]
    for word in ("programs_per_sm", "_sm_count", "_gl_turns"):
        assert [word in text for text in texts] == [False, True]


def test_a_training_module_differentiates_on_a_cpu_by_its_other_kernels(emitter: Emitter) -> None:
    training = emitter.load(content_of(training_rows_of(HALF, 64), gluon_backward_rows_of(HALF), "NVIDIA H100"))
    q, k, v = (torch.randn(1, 20, 2, 64, dtype=torch.float16).requires_grad_() for _ in range(3))
    for deterministic in (False, True):
        training.flash_attention(q, k, v, causal=True, deterministic=deterministic).sum().backward()
    doubles = [x.detach().double().requires_grad_() for x in (q, k, v)]
    heads = [x.transpose(1, 2) for x in doubles]
    torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True).sum().backward()
    for x, expected in zip((q, k, v), doubles):
        torch.testing.assert_close(x.grad.double(), 2 * expected.grad, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_operators_take_the_wish_for_determinism(emitter: Emitter, deterministic: bool) -> None:
    training = emitter.load(content_of(training_rows_of(HALF, 64), gluon_backward_rows_of(HALF), "NVIDIA H100"))
    q, k, v = (torch.randn(1, 20, 2, 64, dtype=torch.float16).requires_grad_() for _ in range(3))
    scores = (0.125, -1, 0, 0.0)
    torch.library.opcheck(training._forward, (q, k, v, *scores, deterministic, "bshd"))
    out, lse = training._forward(q, k, v, *scores, deterministic, "bshd")
    plain = [x.detach() for x in (q, k, v)]
    held = (out.detach(), None, out.detach(), lse.detach(), *plain, *scores, deterministic, "bshd", [True, True, True])
    torch.library.opcheck(training._backward, held)


def test_a_module_is_imported_where_gluon_is_not(emitter: Emitter, monkeypatch: pytest.MonkeyPatch) -> None:
    content = content_of(rows_of(HALF, 64, variants=("full",)), gluon_rows_of(HALF)["plain"])
    with interpreted_gluon():
        import sys

        del sys.modules["triton.experimental.gluon.language.nvidia.hopper"].warpgroup_mma  # type: ignore[attr-defined]
        module = emitter.load(content)
    assert module.gluon is None
    assert module._no_gluon(torch.device("cpu")) is not None
