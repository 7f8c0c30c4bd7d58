"""`flashgen worker`: what it refuses, what it does for a run on a replayed table, and those that tune starts itself."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest

from flashgen.cli import local_workers as local
from flashgen.compiler.toolchain import toolchain
from flashgen.families import FAMILIES
from flashgen.hardware import detect
from flashgen.hardware.detect import DetectedGpu
from flashgen.hardware.lookup import find_gpu
from flashgen.hardware.resolve import Resolution
from flashgen.tune import worker
from flashgen.tune.fleet import Fleet
from flashgen.tune.identity import Identity, open_study
from flashgen.tune.owner import this_process
from flashgen.tune.space import Space, space_of
from flashgen.tune.storage import open_storage
from flashgen.tune.study import Study
from tests.cli.conftest import Cli
from tests.tune.replay import H200, WORKLOAD, Replay, spec_of
from tests.tune.studies import FAST

SPEC = spec_of("fp16", 64)


@contextmanager
def run_of(
    where: Path, label: str = "mine", budget: int = 6, owner: str = "elsewhere/1/1", **facts: Any
) -> Iterator[Study]:
    """A run, as if on another host, that wants help with one study: of an H200 unless `facts` say otherwise."""
    identity = Identity(
        label=label,
        spec=SPEC,
        family="tl",
        gpu=H200.slug,
        kind="predicted",
        workloads=(WORKLOAD,),
        toolchain=toolchain(),
    )
    space = space_of(FAMILIES["tl"], SPEC, H200, (WORKLOAD,))
    few = facts.pop("few", None)
    with open_storage(where) as storage, Fleet(storage, label, FAST, owner).joined("tune") as fleet:
        identity = replace(identity, **facts)
        study, _ = open_study(identity, Space(configs=space.configs[:few]), fleet, 0, budget)
        with fleet.announced(study.name):
            yield study


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> Replay:
    """A table in the place of compiler and cost model."""
    stages = Replay(kind="predicted")
    work = partial(worker.work, make_stages=lambda _request, _workloads: stages)
    monkeypatch.setattr(worker, "work", work)
    return stages


def test_it_tries_the_budget_of_a_run_and_ends_with_it(cli: Cli, replayed: Replay, tmp_path: Path) -> None:
    path = tmp_path / "study.journal"

    def lead() -> int:
        with run_of(path) as study:
            end = time.monotonic() + 60
            while study.spent() < 6 and time.monotonic() < end:
                time.sleep(0.05)
            study.await_others(end)
            return len(study.records())

    with ThreadPoolExecutor(1) as pool:
        tried = pool.submit(lead)
        done = cli("worker", "--storage", path, "--study", "mine", "--gpu", "h200", "--json")
        assert tried.result(60) == 6
    assert done.code == 0
    assert done.document == {"gpu": "nvidia-h200", "ended": "done", "tried": {SPEC.key: 6}}
    assert f"{SPEC.key}: " in done.err


def test_it_leaves_other_runs_alone(cli: Cli, replayed: Replay, tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    with run_of(path, label="another's"):
        done = cli("worker", "--storage", path, "--study", "mine", "--gpu", "h200", "--wait", 0)
    assert (done.code, done.out) == (0, "0 configs tried; no run of this name came\n")


def test_it_ends_in_time(cli: Cli, replayed: Replay, tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    with run_of(path, budget=2):
        done = cli("worker", "--storage", path, "--study", "mine", "--gpu", "h200", "--timeout", 2)
    assert (done.code, done.out) == (0, f"{SPEC.key}: 2 tried here\n2 configs tried; its time is over\n")


def test_a_study_that_another_run_deletes_ends_no_worker(
    cli: Cli, replayed: Replay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, deleted, search = tmp_path / "study.journal", [], worker.search

    def search_of_what_is_gone(study: Study, *rest: Any) -> bool:
        with open_storage(path) as storage:
            storage.optuna.delete_study(storage.optuna.get_study_id_from_name(study.name))
        deleted.append(study.name)
        return search(study, *rest)

    monkeypatch.setattr(worker, "search", search_of_what_is_gone)
    with run_of(path) as study:
        done = cli("worker", "--storage", path, "--study", "mine", "--gpu", "h200", "--timeout", 2)
        assert deleted == [study.name]
    assert done.code == 0
    assert "its time is over" in done.out


@pytest.mark.parametrize(
    ("gpu", "facts", "code", "message"),
    [
        ("h100", {}, 3, "is for nvidia-h200, and this worker for nvidia-h100"),
        ("h200", {"kind": "measured"}, 3, "is measured, and this worker could only predict"),
        ("h200", {"toolchain": replace(toolchain(), triton="3.5.1")}, 6, "triton 3.5.1 -> "),
        ("h200", {"toolchain": replace(toolchain(), kernels="0123456789ab")}, 6, "kernels 0123456789ab -> "),
        ("h200", {"few": 1}, 6, "knob BLOCK_M ["),
    ],
)
def test_what_it_does_not_help(
    gpu: str, facts: dict[str, Any], code: int, message: str, cli: Cli, replayed: Replay, tmp_path: Path
) -> None:
    path = tmp_path / "study.journal"
    with run_of(path, **facts) as study:
        done = cli("worker", "--storage", path, "--study", "mine", "--gpu", gpu)
        assert done.code == code
        assert message in done.err
        assert study.name in done.err
        assert "next: " in done.err
        assert study.spent() == 0


@pytest.mark.case("optuna-01")
@pytest.mark.parametrize("command", ["tune", "worker"])
def test_sqlite_is_refused(command: str, cli: Cli) -> None:
    done = cli(command, "--storage", "sqlite:///study.db")
    assert done.code == 2
    assert "'database is locked'; give a journal file, such as study.journal" in done.err


def test_a_worker_of_tune_ends_with_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "study.journal"
    with (
        local.local_workers(["h200"], str(path), "mine", jobs=1) as storage,
        run_of(path, budget=0, owner=this_process()) as study,
    ):
        assert storage == str(path)
        others = Fleet(study.fleet.storage, "mine", FAST)
        end = time.monotonic() + 60
        while not any(held and held["role"] == "worker" for held in others._members().values()):
            assert time.monotonic() < end
            time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_a_worker_of_tune_that_fails_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "study.journal"
    with run_of(path, owner=this_process()) as study:
        with local.local_workers(["h100"], str(path), "mine", jobs=1):
            pass
        assert study.spent() == 0
    error = capsys.readouterr().err
    assert "warning: the worker on GPU h100 ended with exit code 3; the run went on without it" in error
    assert "is for nvidia-h200, and this worker for nvidia-h100" in error


def test_one_worker_is_the_run_itself() -> None:
    with local.local_workers([], None, "", jobs=1) as storage:
        assert storage is None


def test_workers_without_a_storage_share_a_file_that_is_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, Any]] = []

    def popen(command: list[str], *, env: dict[str, str], **_: Any) -> subprocess.Popen[bytes]:
        started.append({"storage": env["FLASHGEN_STORAGE"], "command": command})
        return real(["true"])

    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", popen)
    with local.local_workers(["1", "2"], None, "", jobs=3) as storage:
        assert storage is not None
        assert Path(storage).parent.is_dir()
    assert not Path(storage).parent.exists()
    assert [each["storage"] for each in started] == [storage] * 2
    assert [each["command"][3:] for each in started] == [
        ["worker", "--study", "", "--leader", this_process(), "--gpu", gpu, "--jobs", "3"] for gpu in ("1", "2")
    ]


def test_every_other_gpu_of_the_model_gets_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    slugs = ("h100", "h200", "h200", "h200")
    devices = tuple(
        DetectedGpu(index=index, name=slug, uuid=None, known=None, target=find_gpu(slug))
        for index, slug in enumerate(slugs)
    )
    monkeypatch.setattr(detect, "detect_gpus", lambda: devices)
    here = Resolution(target=H200, present=True, index=1)
    assert local.other_gpus(here, None) == ("2", "3")
    assert local.other_gpus(here, 2) == ("2",)
    assert local.other_gpus(here, 1) == ()
    with pytest.raises(click.UsageError, match="--workers 4: each needs a GPU, and this machine has 3 nvidia-h200"):
        local.other_gpus(here, 4)


def test_predictions_have_as_many_workers_as_are_asked_for() -> None:
    here = Resolution(target=H200, present=False)
    assert local.other_gpus(here, None) == ()
    assert local.other_gpus(here, 3) == ("nvidia-h200", "nvidia-h200")
