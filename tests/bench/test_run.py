"""A row from tensors to samples, with contenders that a CPU can run."""

from __future__ import annotations

import pytest

from flashgen.bench.contenders import Contender, flashgen_contender
from flashgen.bench.run import bench
from flashgen.bench.suites import BenchRow
from tests.bench.small import CallingClock, contender, module, row


def _absent(row: BenchRow, device: str) -> object:
    raise ModuleNotFoundError("No module named 'absent'")


ENTERED = (
    flashgen_contender(module()),
    contender("doubled", lambda out: 2 * out),
    Contender("absent", _absent),  # type: ignore[arg-type]
    contender("peer"),
)


@pytest.mark.parametrize("of", [row(), row("backward", causal=True), row("backward", with_forward=True)])
def test_who_agrees_is_timed_and_who_does_not_says_why(of: BenchRow) -> None:
    (result,) = bench([of], ENTERED, CallingClock(), "cpu", rounds=2)
    timed = {each.contender: each for each in result.timed}
    assert list(timed) == ["flashgen", "doubled", "absent", "peer"]
    assert timed["flashgen"].rounds == ((100.0,) * 7,) * 2
    assert timed["peer"].median_us == 200.0
    assert "out is 1 of the norm from flashgen's" in timed["doubled"].missing
    assert "No module named 'absent'" in timed["absent"].missing
    assert result.rates() == [of.flops / 100.0 * 1e-6, None, None, of.flops / 200.0 * 1e-6]


def test_a_wrong_gradient_is_found_though_out_is_right() -> None:
    entered = (contender("a"), contender("b"), contender("skewed", lambda out: out + out.detach() - out.detach() ** 2))
    half = contender("half", lambda out: 0.5 * out + 0.5 * out.detach())
    (result,) = bench([row("backward")], (*entered, half), CallingClock(), "cpu", rounds=1)
    missing = {each.contender: each.missing for each in result.timed}
    assert not missing["a"]
    assert not missing["b"]
    assert missing["half"] == "wrong answer: dq is 0.5 of the norm from a's"
    assert missing["skewed"].startswith("wrong answer: out")


def test_each_row_is_given_as_it_is_done() -> None:
    results = bench([row(), row("backward")], ENTERED[:1], CallingClock(), "cpu", rounds=1)
    assert next(results).row == row()
    assert next(results).row == row("backward")
