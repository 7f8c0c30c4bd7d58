"""The prover rejects every planted fault, and passes the templates as they are.

Not shown here, since the interpreter computes fp32 dots in fp32 whatever is asked for: TF32 (see test_criterion.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashgen.assets import templates_dir
from flashgen.codegen import environment
from flashgen.outcome import Proof, Reason, Rejected
from flashgen.verify.worker import Job, Worker
from tests.verify.mutant import Mutant, Setting
from tests.verify.mutants import MUTANTS, SETTINGS

_TIMEOUT_S = 300.0


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(interpret=True) as worker:
        yield worker


def _job(setting: Setting) -> Job:
    return Job(source=setting.source(), dtype=setting.dtype, seed=11, spec=setting.spec, stop_at_failure=True)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_templates_as_they_are_pass(setting: Setting, worker: Worker) -> None:
    outcome = worker.prove(_job(setting), _TIMEOUT_S)
    assert isinstance(outcome, Proof), outcome


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_fault_is_rejected(mutant: Mutant, worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = tmp_path / "templates"
    shutil.copytree(templates_dir(), planted)
    mutant.plant(planted)
    monkeypatch.setattr(environment, "templates_dir", lambda: planted)
    outcome = worker.prove(_job(mutant.setting), _TIMEOUT_S)
    assert isinstance(outcome, Rejected), f"passed, worst {outcome.worst_ratio} in {outcome.worst_probe!r}"
    assert outcome.reason is (Reason.CRASHED if mutant.crashes else Reason.INEXACT), outcome.detail


def test_mutants_have_their_own_names() -> None:
    assert len({str(mutant) for mutant in MUTANTS}) == len(MUTANTS)
