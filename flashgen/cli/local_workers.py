"""The processes that `flashgen tune` starts beside itself, one for each further GPU of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from flashgen.cli.output import warn
from flashgen.cli.worker import INTERRUPTED, STORAGE
from flashgen.tune.owner import this_process

if TYPE_CHECKING:
    from flashgen.hardware.resolve import Resolution

_FAREWELL_S = 10.0  # a worker looks twice a second whether its run is done


def other_gpus(resolution: Resolution, workers: int | None) -> tuple[str, ...]:
    """What `--gpu` is for each worker beside the run itself, `workers` in all. None: one for each GPU of the model.

    Raises:
        click.UsageError: more than there are GPUs: kernels that share one could not be timed.
    """
    if not resolution.present:
        return (resolution.target.slug,) * ((workers or 1) - 1)
    from flashgen.hardware.detect import detect_gpus

    slug = resolution.target.slug
    alike = [str(each.index) for each in detect_gpus() if each.target.slug == slug and each.index != resolution.index]
    if workers is not None and workers > 1 + len(alike):
        here = 1 + len(alike)
        raise click.UsageError(
            f"--workers {workers}: each needs a GPU, and this machine has {here} {slug}; give at most {here}"
        )
    return tuple(alike if workers is None else alike[: workers - 1])


@contextmanager
def local_workers(gpus: Sequence[str], storage: str | None, study: str, jobs: int) -> Iterator[str | None]:
    """Workers for this process's run until the end of the block, one for each of `gpus`; gives the storage that they
    share with it, in a temporary file if there is none. One that fails is named in a warning: the run goes on."""
    with ExitStack() as stack:
        if not gpus:
            yield storage
            return
        if storage is None:
            storage = str(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flashgen-"))) / "study.journal")
        for gpu in gpus:
            stack.enter_context(_worker(gpu, storage, study, jobs))
        yield storage


@contextmanager
def _worker(gpu: str, storage: str, study: str, jobs: int) -> Iterator[None]:
    command = [sys.executable, "-m", "flashgen.cli", "worker", "--study", study, "--leader", this_process()]
    command += ["--gpu", gpu, "--jobs", str(jobs)]
    with tempfile.TemporaryFile() as said:
        environment = os.environ | {STORAGE: storage}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, env=environment
        )
        try:
            yield
        finally:
            _end(process, gpu, said)


def _end(process: subprocess.Popen[bytes], gpu: str, said: IO[bytes]) -> None:
    """Waits for a worker that sees its run done, ends one that does not, and warns of one that failed."""
    try:
        code = process.wait(_FAREWELL_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return
    if code not in (0, INTERRUPTED):
        said.seek(0)
        lines = said.read().decode(errors="replace").strip()[-2000:]
        warn(f"the worker on GPU {gpu} ended with exit code {code}; the run went on without it\n{lines}")
