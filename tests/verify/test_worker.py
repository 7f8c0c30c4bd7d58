"""Proofs in a process of their own, by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flashgen.codegen.candidate import candidate_source
from flashgen.errors import FlashgenError
from flashgen.families import TL, TL_BACKWARD
from flashgen.outcome import Proof, Reason, Rejected
from flashgen.spec import AttentionSpec
from flashgen.verify import worker as worker_module
from flashgen.verify.suites import QUICK
from flashgen.verify.worker import Job, Worker, prove_in_interpreter, prove_module

_SPEC = AttentionSpec(dtype="bf16", head_dim=16, head_dim_v=16)
_CONFIG = TL.config({"BLOCK_M": 128, "BLOCK_N": 128, "num_warps": 4, "num_stages": 1})


@pytest.fixture(scope="module")
def source() -> str:
    return candidate_source(_SPEC, _CONFIG)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(interpret=True) as worker:
        yield worker


def _job(source: str, **changes: object) -> Job:
    return replace(Job(source=source, dtype="bf16", seed=3, spec=_SPEC), **changes)  # type: ignore[arg-type]


def test_bf16_is_shown_in_fp16(source: str) -> None:
    proof = prove_in_interpreter(source, _SPEC, 3, 300.0)
    assert isinstance(proof, Proof), proof
    assert (proof.where, proof.dtypes, proof.suite_hash) == ("interpreter", ("fp16",), QUICK.hash)
    assert proof.probes == len(QUICK.suited(_SPEC))


def _doing(source: str, *statements: str) -> str:
    """The module whose launch is these statements."""
    body = "".join(f"    {statement}\n" for statement in ("import os, time", *statements))
    assert source.count("def _execute(") == 1
    return source.replace("def _execute(", f"def _execute(*arguments) -> None:\n{body}\n\ndef _unused(")


def test_crash_names_probe_and_signal_and_the_next_job_runs(source: str, worker: Worker) -> None:
    rejected = worker.prove(_job(_doing(source, "os.kill(os.getpid(), 11)")), 300.0)
    assert isinstance(rejected, Rejected)
    assert rejected.reason is Reason.CRASHED
    assert f"SIGSEGV in probe {QUICK.probes[0].name!r}" in rejected.detail
    assert isinstance(worker.prove(_job(source), 300.0), Proof)


def test_crash_gives_the_last_of_stderr(source: str, worker: Worker) -> None:
    rejected = worker.prove(_job(_doing(source, 'os.write(2, b"so it ends")', "os._exit(3)")), 300.0)
    assert isinstance(rejected, Rejected)
    assert "exit code 3" in rejected.detail
    assert rejected.detail.endswith("so it ends")


def test_timeout_names_the_probe(source: str, worker: Worker) -> None:
    worker.rules(source, 300.0)  # so that starting the process is not what times out
    rejected = worker.prove(_job(_doing(source, "time.sleep(1000)")), 2.0)
    assert isinstance(rejected, Rejected)
    assert rejected.reason is Reason.TIMEOUT
    assert rejected.detail == f"no answer in 2 s in probe {QUICK.probes[0].name!r}"


def test_prints_do_not_mix_with_replies(source: str, worker: Worker) -> None:
    assert worker.rules(source + "\nprint('{\"rules\": []}')\n", 300.0)


def test_rules_are_described(source: str, worker: Worker) -> None:
    (rule,) = worker.rules(source, 300.0)
    assert rule["name"] == "_attn_fwd_full, head_dim 16, tile 128x128, 4 warps, 1 stages"
    assert (rule["dtypes"], rule["own"]) == (["bf16"], True)


def test_backward_rules_are_described(worker: Worker) -> None:
    backward = TL_BACKWARD.config(
        {"BLOCK_M": 64, "BLOCK_N": 128, "num_warps": 4, "num_stages": 1}
        | {"BLOCK_M_DQ": 128, "BLOCK_N_DQ": 32, "num_warps_dq": 8, "num_stages_dq": 2}
    )
    (rule,) = worker.rules(candidate_source(replace(_SPEC, op="backward"), backward), 300.0)
    assert rule["name"] == (
        "_attn_bwd_dkdv_full and _attn_bwd_dq_full, head_dim 16, "
        "tile 64x128, 4 warps, 1 stages and tile 128x32, 8 warps, 2 stages"
    )


@pytest.mark.parametrize(
    ("text", "says"), [("x = 1", "no emitted module: it defines no TUNED"), ("import no_such", "no_such")]
)
def test_what_is_no_emitted_module_is_an_error(text: str, says: str, worker: Worker) -> None:
    with pytest.raises(FlashgenError, match=says):
        worker.rules(text, 300.0)


def test_module_on_disk(source: str, tmp_path: Path) -> None:
    path = tmp_path / "attention.py"
    path.write_text(source)
    ((name, outcome),) = prove_module(path, full=False)
    assert name == "_attn_fwd_full, head_dim 16, tile 128x128, 4 warps, 1 stages, fp16"
    assert isinstance(outcome, Proof), outcome
    assert outcome.seed == 0


def test_missing_module_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FlashgenError, match=r"absent\.py cannot be read"):
        prove_module(tmp_path / "absent.py", full=False)


def test_one_rule_a_kernel_unless_all_are_wanted() -> None:
    """Interpreted, rules that differ in tile size only share a proof; on a GPU each own rule has its own."""
    rules = [
        (0, {"kernel": "a 64/64", "own": True}),
        (1, {"kernel": "a 64/64", "own": True}),
        (2, {"kernel": "b 64/64", "own": True}),
        (3, {"kernel": "c 64/64", "own": False}),
    ]
    assert [index for index, _ in worker_module._preferred(rules, interpret=True)] == [0, 2]
    assert [index for index, _ in worker_module._preferred(rules, interpret=False)] == [0, 1, 2]
