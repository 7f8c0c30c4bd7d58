"""What an emitted module says of itself when it is run: a line a rule and dtype, and whether all are exact."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.kernels.emission import Emitter, backward_rows_of, content_of, rows_of, training_rows_of

FEATURED = ("causal", "full_alibi", "window_bias", "causal_sink", "full_dropout", "window_softcap_bias_sink")
SMALL = ((1, 2, 1, 20, 33, 1.0), (1, 1, 1, 30, 17, 8.0))  # sharp, and rows that see nothing under a causal mask


@pytest.fixture(scope="module")
def module(emitter: Emitter) -> ModuleType:
    return emitter.load(content_of(training_rows_of(("fp32",), 16, variants=FEATURED)))


@pytest.fixture
def prove(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[ModuleType], tuple[int, list[list[str]]]]:
    """main's exit code, and the words of each line, on small probes."""

    def run(module: ModuleType) -> tuple[int, list[list[str]]]:
        monkeypatch.setattr(module, "_PROBES", SMALL)
        code = module.main()
        return code, [line.split() for line in capsys.readouterr().out.splitlines()]

    return run


def test_an_exact_module_says_so(module: ModuleType, prove: Any) -> None:
    code, (notice, header, *rules, verdict) = prove(module)
    assert "bf16" in notice
    assert header == ["pass", "kernel", "dtype", "head_dim", "tiles", "error/allowed"]
    assert [rule[0] for rule in rules] == ["forward"] * 6 + ["backward"] * 6
    assert all(float(rule[-1]) <= 1.0 for rule in rules)
    assert {rule[4] for rule in rules} == {"32x16", "16x32"}
    assert (code, verdict) == (0, ["exact"])


@pytest.mark.parametrize("output", ["dq", "dk", "dv", "dbias", "dsinks"])
def test_a_wrong_gradient_shows(output: str, module: ModuleType, prove: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    execute = module._execute_backward

    def spoilt(rule: Any, *tensors: Any, **gradients: Any) -> None:
        execute(rule, *tensors, **gradients)
        found = dict(zip(("dq", "dk", "dv"), tensors[7:10], strict=True)) | gradients
        if found[output] is not None:
            found[output] *= 1.01

    monkeypatch.setattr(module, "_execute_backward", spoilt)
    code, (*_, verdict) = prove(module)
    wrong = {"dbias": 2, "dsinks": 2}.get(output, 6)  # of the six rules
    assert (code, verdict) == (1, [str(wrong), "kernels", "are", "NOT", "exact"])


def unwritten(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_execute", lambda *_: None)


def unrepeatable(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    execute, turns = module._execute, iter(range(100))

    def attend(rule: Any, q: Any, k: Any, v: Any, out: torch.Tensor, lse: torch.Tensor, *rest: Any) -> None:
        execute(rule, q, k, v, out, lse, *rest)
        lse += 1e-7 * next(turns)

    monkeypatch.setattr(module, "_execute", attend)


@pytest.mark.parametrize("fault", [unwritten, unrepeatable], ids=lambda f: f.__name__)
def test_what_is_not_written_or_differs_from_run_to_run_shows(
    fault: Callable[..., None], emitter: Emitter, prove: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = emitter.load(content_of(rows_of(("fp32",), 16, variants=("causal",), block_n=32)))
    fault(module, monkeypatch)
    code, (*_, rule, verdict) = prove(module)
    assert rule[-3:] == ["inf", "NOT", "EXACT"]
    assert (code, verdict) == (1, ["1", "kernels", "are", "NOT", "exact"])


def test_a_candidate_of_the_backward_pass_proves_itself(emitter: Emitter, prove: Any) -> None:
    module = emitter.load(content_of(backward_rows_of(("fp16",), 16, variants=("window",))))
    assert not hasattr(module, "flash_attention")
    code, (*_, rule, _) = prove(module)
    assert (code, rule[0]) == (0, "backward")
