"""Contenders agree with each other where a CPU can run them, and say what they cannot do."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from flashgen.bench.agreement import faults
from flashgen.bench.call import draw, prepare
from flashgen.bench.contenders import PEERS, STANDARD, Contender, contenders, flashgen_contender
from tests.bench.small import attention, module, row

BY_NAME = {each.name: each for each in contenders(module(), "paper", peers=True)}


def test_only_the_paper_is_compared_with_standard_attention_with_peers_or_without() -> None:
    peers = ["FA2 (SDPA)", "cuDNN (SDPA)", "FlexAttention", "FA4"]
    assert [each.name for each in contenders(module(), "anchors", peers=True)] == ["flashgen", *peers]
    assert [each.name for each in contenders(module(), "anchors", peers=False)] == ["flashgen"]
    assert [each.name for each in contenders(module(), "paper", peers=False)] == ["flashgen", STANDARD]
    assert list(BY_NAME) == ["flashgen", STANDARD, *peers]


def test_fp8_is_compared_with_the_modules_own_bf16_and_cudnns() -> None:
    assert [each.name for each in contenders(module(), "fp8", peers=False)] == ["flashgen", "flashgen bf16"]
    entered = contenders(module(), "fp8", peers=True)
    assert [(each.name, each.dtype) for each in entered[1:]] == [
        ("flashgen bf16", "bf16"),
        ("cuDNN (SDPA) bf16", "bf16"),
    ]


@pytest.mark.parametrize("name", [STANDARD, "FA2 (SDPA)"])
def test_standard_attention_and_sdpa_answer_as_the_module_does(name: str) -> None:
    small = row("backward", with_forward=True)
    answers = {each: prepare(small, BY_NAME[each], draw(small, "cpu")).answer for each in ("flashgen", name)}
    assert faults(answers) == {}


def test_sdpa_takes_causal_and_grouped_rows() -> None:
    small = row("backward", heads_kv=1, causal=True)
    answers = {name: prepare(small, BY_NAME[name], draw(small, "cpu")).answer for name in ("flashgen", "FA2 (SDPA)")}
    assert faults(answers) == {}


def test_standard_attention_drops_what_it_is_asked_to() -> None:
    plain, dropped = row(seqlen=256), row(seqlen=256, dropout=True)
    inputs = draw(plain, "cpu")
    out = prepare(plain, BY_NAME[STANDARD], inputs).answer["out"]
    distance = float((prepare(dropped, BY_NAME[STANDARD], inputs).answer["out"] - out).norm() / out.norm())
    assert distance == pytest.approx((0.1 / 0.9) ** 0.5, rel=0.1)


@pytest.mark.parametrize("dropout", [False, True])
def test_the_module_is_asked_for_dropout_only_where_the_row_has_it(dropout: bool) -> None:
    asked: list[dict[str, Any]] = []

    def flash_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> torch.Tensor:
        asked.append(given)
        return q

    emitted: Any = SimpleNamespace(flash_attention=flash_attention)
    prepare(row(causal=True, dropout=dropout), flashgen_contender(emitted), draw(row(), "cpu"))
    assert asked == [{"causal": True, "layout": "bhsd"} | ({"dropout_p": 0.1} if dropout else {})]


def test_flex_attention_and_fa4_refuse_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    _install_fa4(monkeypatch)
    for name in ("FlexAttention", "FA4"):
        with pytest.raises(NotImplementedError, match=f"{name} has no dropout"):
            BY_NAME[name].make(row(dropout=True), "cpu")


def test_fa4_gets_its_own_layout_and_answers_in_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = _install_fa4(monkeypatch)
    small = row("backward", heads_kv=1, causal=True)
    inputs = draw(small, "cpu")
    answers = {name: prepare(small, BY_NAME[name], inputs).answer for name in ("flashgen", "FA4")}
    assert shapes[0] == [(1, 32, 2, 64), (1, 32, 1, 64), (1, 32, 1, 64)]
    assert {name: x.shape for name, x in answers["FA4"].items()} == {n: x.shape for n, x in answers["flashgen"].items()}
    assert faults(answers) == {}


def test_a_peer_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn.cute", None)
    fa4: Contender = PEERS[-1]
    with pytest.raises(ImportError, match="flash_attn"):
        fa4.make(row(), "cpu")


def _install_fa4(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, ...]]]:
    """A package that answers as FA4 does, [Z, S, H, D] and lse beside out; returns the shapes it is called with."""
    shapes: list[list[tuple[int, ...]]] = []

    def flash_attn_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[torch.Tensor, None]:
        assert all(x.is_contiguous() for x in (q, k, v))
        shapes.append([tuple(x.shape) for x in (q, k, v)])
        return attention(*(x.transpose(1, 2) for x in (q, k, v)), causal).transpose(1, 2), None

    cute = ModuleType("flash_attn.cute")
    cute.flash_attn_func = flash_attn_func  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", cute)
    return shapes
