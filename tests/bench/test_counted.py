"""The process that is watched: warm-up first, then exactly one call in the profiler's range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flashgen.bench.counted import main
from flashgen.bench.suites import SUITES
from tests.bench.small import row

MODULE = """
import torch

CALLS = []


def flash_attention(q, k, v, *, causal, layout):
    CALLS.append(q.shape)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
"""


def test_one_call_lies_between_start_and_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    events: list[Any] = []

    def calls() -> int:
        return len(sys.modules["flashgen_benched"].CALLS)

    small = row("backward", with_forward=True)
    monkeypatch.setitem(SUITES, "paper", lambda: (row("backward"), small))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: events.append("synchronised"))
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: events.append(("start", calls())))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: events.append(("stop", calls())))
    monkeypatch.delitem(sys.modules, "flashgen_benched", raising=False)
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    main([str(path), "--suite", "paper", "--row", small.key, "--contender", "flashgen", "--device", "cpu"])
    before = events[1][1]
    assert before >= 3
    assert events == ["synchronised", ("start", before), "synchronised", ("stop", before + 1)]
    monkeypatch.delitem(sys.modules, "flashgen_benched")
