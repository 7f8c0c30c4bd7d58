"""Which pass a row's call runs, and what it answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flashgen.bench.call import draw, prepare
from flashgen.bench.contenders import Contender
from flashgen.bench.suites import BenchRow
from tests.bench.small import attention, contender, row


class Counting:
    """A contender that counts its forwards and backwards."""

    def __init__(self) -> None:
        self.forwards = self.backwards = 0
        self.contender = Contender("counting", lambda row, device: self._attend)

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        out = attention(q, k, v, causal=False)
        if out.requires_grad:
            out.register_hook(self._count)
        return out

    def _count(self, gradient: torch.Tensor) -> None:
        self.backwards += 1


@pytest.mark.parametrize(
    ("op", "with_forward", "ran"),
    [("forward", False, (1, 0)), ("backward", False, (0, 1)), ("backward", True, (1, 1))],
)
def test_the_call_runs_the_rows_passes_and_no_other(op: str, with_forward: bool, ran: tuple[int, int]) -> None:
    counting, of = Counting(), row(op, with_forward=with_forward)  # type: ignore[arg-type]
    prepared = prepare(of, counting.contender, draw(of, "cpu"))
    for _ in range(2):  # the same graph serves every sample
        counting.forwards = counting.backwards = 0
        prepared.call()
        assert (counting.forwards, counting.backwards) == ran


@pytest.mark.parametrize("with_forward", [False, True])
def test_the_answer_holds_the_gradients_of_dout(with_forward: bool) -> None:
    of = row("backward", heads_kv=1, causal=True, with_forward=with_forward)
    inputs = draw(of, "cpu")
    leaves = [x.clone().requires_grad_() for x in (inputs.q, inputs.k, inputs.v)]
    out = attention(*leaves, causal=True)
    out.backward(inputs.dout)
    answer = prepare(of, contender("torch"), inputs).answer
    assert list(answer) == ["out", "dq", "dk", "dv"]
    torch.testing.assert_close(answer["out"], out.detach())
    for name, leaf in zip(("dq", "dk", "dv"), leaves):
        torch.testing.assert_close(answer[name], leaf.grad)
    assert not any(x.requires_grad for x in (inputs.q, inputs.k, inputs.v))


def test_a_forward_row_keeps_no_graph() -> None:
    out = prepare(row(), contender("torch"), draw(row(), "cpu")).answer["out"]
    assert not out.requires_grad


def test_a_contender_in_another_dtype_gets_the_same_values() -> None:
    given: list[torch.Tensor] = []

    def make(row: BenchRow, device: str) -> Any:
        return lambda q, k, v: given.extend((q, k, v)) or q.bfloat16()

    plain = row()
    of = replace(plain, spec=replace(plain.spec, dtype="fp8"))
    inputs = draw(of, "cpu")
    assert (inputs.q.dtype, inputs.dout.dtype) == (torch.float8_e4m3fn, torch.bfloat16)
    for dtype in (None, "bf16"):
        prepare(of, Contender("any", make, dtype=dtype), inputs)
    assert {x.dtype for x in given[:3]} == {torch.float8_e4m3fn}
    assert {x.dtype for x in given[3:]} == {torch.bfloat16}
    assert all(torch.equal(a.float(), b.float()) for a, b in zip(given[:3], given[3:]))


def test_a_contender_without_a_backward_pass_says_so() -> None:
    with pytest.raises(NotImplementedError, match="no backward pass"):
        prepare(row("backward"), contender("torch", torch.Tensor.detach), draw(row(), "cpu"))


def test_tensors_are_of_the_rows_dtype_and_the_same_each_time() -> None:
    first, second = draw(row(heads_kv=1), "cpu"), draw(row(heads_kv=1), "cpu")
    assert first.q.dtype == torch.float32
    assert first.k.shape == first.v.shape == (1, 1, 32, 64)
    assert first.q.shape == first.dout.shape == (1, 2, 32, 64)
    assert torch.equal(first.dout, second.dout)
