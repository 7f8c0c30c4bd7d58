"""Read-only questions to nvidia-smi. Nothing here changes a clock, a mode or a process."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

_TIMEOUT_S = 20

# NVML's nvmlClocksEventReason bits (nvml.h) that mean slower than asked for. Idle and application clocks are not.
_SLOWDOWNS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuClocks:
    """Clocks of one GPU in MHz (None where not reported), and why it runs slower than it was asked to."""

    index: str
    name: str
    sm_mhz: int | None
    max_sm_mhz: int | None
    slowdowns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuProcess:
    """A compute process on a GPU of this machine."""

    gpu_uuid: str
    pid: str
    name: str


def has_nvidia_smi() -> bool:
    return shutil.which("nvidia-smi") is not None


def driver_version() -> str | None:
    """Such as `580.159.04`; None when nvidia-smi is missing or gives no answer."""
    rows = _query("gpu", "driver_version")
    return rows[0][0] if rows else None


def gpu_clocks() -> list[GpuClocks] | None:
    """The clocks of every GPU, or None when nvidia-smi gives no answer."""
    # Drivers before R535 know the last field by its older name only.
    for reasons in ("clocks_event_reasons.active", "clocks_throttle_reasons.active"):
        rows = _query("gpu", "index", "name", "clocks.sm", "clocks.max.sm", reasons)
        if rows is not None:
            return [_clocks(row) for row in rows]
    return None


def compute_processes() -> list[GpuProcess] | None:
    """The compute processes on every GPU, this one included, or None when nvidia-smi gives no answer."""
    rows = _query("compute-apps", "gpu_uuid", "pid", "process_name")
    return None if rows is None else [GpuProcess(gpu_uuid=row[0], pid=row[1], name=row[2]) for row in rows]


def _clocks(row: list[str]) -> GpuClocks:
    index, name, sm, max_sm, reasons = row
    mask = int(reasons, 16) if reasons.startswith("0x") else 0
    slowdowns = tuple(text for bit, text in _SLOWDOWNS.items() if mask & bit)
    return GpuClocks(index=index, name=name, sm_mhz=_mhz(sm), max_sm_mhz=_mhz(max_sm), slowdowns=slowdowns)


def _mhz(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _query(subject: str, *fields: str) -> list[list[str]] | None:
    """A row of `fields` for each `subject`; None when nvidia-smi is missing, fails or hangs.

    nvidia-smi quotes nothing, so of all fields only the last one's value may hold a comma.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        answer = subprocess.run(
            [program, f"--query-{subject}={','.join(fields)}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0:
        return None
    rows = [line.split(",", len(fields) - 1) for line in answer.stdout.splitlines() if line.strip()]
    return [[cell.strip() for cell in row] for row in rows]
