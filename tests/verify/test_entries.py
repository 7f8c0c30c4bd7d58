"""Rules of tuned configs are proven again as the candidates they were, each on the device that can show them."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from flashgen.outcome import Proof, Rejected
from flashgen.verify import entries as module
from flashgen.verify.entries import prove_entries
from flashgen.verify.worker import Job
from tests.kernels.emission import spec_of
from tests.tune.replay import PROOF
from tests.tuned import entry_of, file_of

CAUSAL = spec_of("causal", "bf16", 64)
H200 = file_of("nvidia-h200", [entry_of(CAUSAL, tma=True)])


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, Job]]:
    """What workers are asked: (whether it is interpreted, the job)."""
    asked: list[tuple[bool, Job]] = []

    class Recorder:
        def __init__(self, *, interpret: bool) -> None:
            self.interpret = interpret

        def __enter__(self) -> Recorder:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def prove(self, job: Job, timeout_s: float) -> Proof | Rejected:
            asked.append((self.interpret, job))
            return PROOF

    monkeypatch.setattr(module, "Worker", Recorder)
    monkeypatch.setattr(module, "interpreter_is_forced", lambda: False)
    return asked


def machine(monkeypatch: pytest.MonkeyPatch, *slugs: str) -> None:
    devices: Iterator[Any] = (SimpleNamespace(target=SimpleNamespace(slug=slug)) for slug in slugs)
    found = tuple(devices)
    monkeypatch.setattr(module, "detect_gpus", lambda: found)


def test_interpreted_without_a_gpu(jobs: list[tuple[bool, Job]], monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    ((rule, dtype, outcome),) = prove_entries([H200], full=False, seed=7)
    ((interpret, job),) = jobs
    assert (rule, dtype, outcome) == ("nvidia-h200 forward-bf16-d64-causal seqlen_k 1..", "fp16", PROOF)
    assert (interpret, job.suite, job.dtype, job.seed) == (True, "quick", "fp16", 7)
    assert job.spec == spec_of("causal", "fp16", 64)
    assert "_attn_fwd_causal_tma" in job.source


def test_on_its_gpu_every_dtype_by_the_full_suite(
    jobs: list[tuple[bool, Job]], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, "nvidia-h200")
    list(prove_entries([H200], full=False))
    assert [(interpret, job.suite, job.dtype) for interpret, job in jobs] == [
        (False, "full", "bf16"),
        (False, "full", "fp16"),
    ]


def test_rules_of_another_gpu_are_interpreted_and_portable_ones_are_not(
    jobs: list[tuple[bool, Job]], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, "nvidia-l4")
    list(prove_entries([H200, file_of("portable", [entry_of(CAUSAL)])], full=False))
    assert [interpret for interpret, _ in jobs] == [True, False, False]


def test_interpreted_one_rule_a_kernel_unless_full(
    jobs: list[tuple[bool, Job]], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch)
    file = file_of("nvidia-h200", [entry_of(CAUSAL, keys=(1, 512)), entry_of(CAUSAL, keys=(513, None), BLOCK_M=128)])
    assert len(list(prove_entries([file], full=False))) == 1
    assert len(list(prove_entries([file], full=True))) == 2
