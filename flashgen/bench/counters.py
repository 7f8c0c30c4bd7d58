"""HBM bytes by hardware counters: Nsight Compute watches one call of one contender, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import flashgen
from flashgen.bench.ncu import OPTIONS, NcuRefuses, complaint, find_ncu, kernels_of
from flashgen.bench.suites import BenchRow

_TIMEOUT_S = 300
_LONGEST = 240


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """HBM bytes of one contender's call, all its kernels together; without kernels, `missing` says why."""

    contender: str
    bytes_read: int = 0
    bytes_written: int = 0
    kernels: int = 0
    missing: str = ""

    @property
    def total(self) -> int:
        return self.bytes_read + self.bytes_written


def count(module: Path, suite_name: str, row: BenchRow, names: Sequence[str], device: str) -> tuple[Counted, ...]:
    """The bytes of each contender named, on a device such as `cuda:0`; `module` is the emitted file.

    What cannot be counted is no error: it says why.
    """
    import torch

    torch.cuda.empty_cache()  # the children need the memory that this process holds for its next row
    counted: list[Counted] = []
    try:
        ncu = find_ncu()
        for name in names:
            call = [str(module), "--suite", suite_name, "--row", row.key, "--contender", name, "--device", device]
            counted.append(_count(ncu, name, call))
    except NcuRefuses as refusal:
        reason = str(refusal)[:_LONGEST]
        counted += [Counted(contender=name, missing=reason) for name in names[len(counted) :]]
    return tuple(counted)


def _count(ncu: str, name: str, call: Sequence[str]) -> Counted:
    try:
        code, out, err = _run([ncu, *OPTIONS, sys.executable, "-m", "flashgen.bench.counted", *call])
    except OSError as error:
        raise NcuRefuses(f"{ncu} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        return Counted(contender=name, missing=f"no answer under ncu in {_TIMEOUT_S} s")
    if said := complaint(out + err):
        return Counted(contender=name, missing=said[:_LONGEST])
    kernels = list(kernels_of(out))
    if code or not kernels:
        last = next(filter(None, map(str.strip, reversed(err.splitlines()))), "it listed no kernel")
        return Counted(contender=name, missing=f"exit code {code} under ncu: {last}"[:_LONGEST])
    read, written = (round(sum(each)) for each in zip(*kernels))
    return Counted(contender=name, bytes_read=read, bytes_written=written, kernels=len(kernels))


def _run(command: Sequence[str]) -> tuple[int, str, str]:
    """(exit code, stdout, stderr). What ncu starts would outlive it, so they form a group that ends together."""
    root = str(Path(flashgen.__file__).parents[1])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # compile in the watched process, not in a pool of more
    }
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=_TIMEOUT_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, out, err
