"""Checks of the machine: its GPUs and their clocks, other processes on them, disk, C compiler, environment."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

from flashgen.hardware.checks import Finding, fail, ok, warn
from flashgen.hardware.detect import DetectedGpu, detect_gpus, detection_failure, interpreter_is_forced
from flashgen.hardware.nvidia_smi import GpuClocks, compute_processes, gpu_clocks, has_nvidia_smi

_FREE_BYTES_WANTED = 2 * 1024**3  # a full search leaves some thousand compiled kernels of 50 to 500 KB


def gpus() -> Finding:
    devices = detect_gpus()
    if devices:
        return ok("; ".join(_describe(device) for device in devices))
    return warn(
        f"{detection_failure()}: configs can be predicted here, not measured",
        "to measure, use a machine with a GPU, its driver and a CUDA or ROCm build of torch",
    )


def _describe(device: DetectedGpu) -> str:
    target = device.target
    facts = (
        f"{target.slug}, {target.arch}, {target.sm_count} SMs, {target.smem_per_block} bytes of shared memory a block"
    )
    note = f"; estimated: {', '.join(device.estimated)}" if device.estimated else ""
    return f"{device.index}: {device.name} ({facts}{note})"


def clocks() -> Finding:
    if not has_nvidia_smi():
        return ok("nvidia-smi is not on PATH: clocks were not read")
    found = gpu_clocks()
    if found is None:
        return warn("nvidia-smi gives no clocks", "run nvidia-smi by hand: it may name a driver mismatch")
    detail = "; ".join(_describe_clocks(gpu) for gpu in found)
    if any(gpu.slowdowns for gpu in found):
        return warn(detail, "let the GPU cool down or raise its power limit before you measure")
    return ok(detail)


def _describe_clocks(gpu: GpuClocks) -> str:
    slowed = f", slowed by {' and '.join(gpu.slowdowns)}" if gpu.slowdowns else ""
    return f"{gpu.index}: {gpu.sm_mhz or '?'} of {gpu.max_sm_mhz or '?'} MHz{slowed}"


def processes() -> Finding:
    if not has_nvidia_smi():
        return ok("nvidia-smi is not on PATH: processes were not read")
    found = compute_processes()
    if found is None:
        return warn("nvidia-smi lists no processes", "make sure by hand that nothing else uses the GPU")
    others = [process for process in found if process.pid != str(os.getpid())]
    if not others:
        return ok("no other compute process on a GPU")
    listed = ", ".join(f"{process.name} (pid {process.pid})" for process in others)
    return warn(f"other compute processes on a GPU: {listed}", "stop them before you measure, or take another GPU")


def caches(extra: Path | None = None) -> Finding:
    """Triton's cache directory, and flashgen's own where the caller names it."""
    folders = [folder for folder in (triton_cache_dir(), extra) if folder is not None]
    closed = [str(folder) for folder in folders if not os.access(_existing(folder), os.W_OK)]
    if closed:
        return fail(
            f"cannot write to {' and '.join(closed)}", "set TRITON_CACHE_DIR to a directory that you can write to"
        )
    free = min(shutil.disk_usage(_existing(folder)).free for folder in folders)
    detail = f"{' and '.join(map(str, folders))}: {free / 1e9:.1f} GB free"
    if free < _FREE_BYTES_WANTED:
        return warn(detail, f"free {_FREE_BYTES_WANTED / 1e9:.1f} GB, or set TRITON_CACHE_DIR to another disk")
    return ok(detail)


def triton_cache_dir() -> Path:
    """Where Triton keeps compiled kernels, by its own rules."""
    named = os.environ.get("TRITON_CACHE_DIR")
    return Path(named) if named else Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"


def _existing(folder: Path) -> Path:
    """The folder, or the nearest parent that exists: the one that must allow its creation."""
    return next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())


def c_compiler() -> Finding:
    """Triton builds a small C module before its first launch on a GPU; without a GPU nothing is launched."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    missing = []
    if compiler is None or shutil.which(compiler.split()[0]) is None:
        missing.append("a C compiler (gcc, clang or $CC)")
    if not header.exists():
        missing.append(f"Python's headers ({header})")
    if not missing:
        return ok(f"{compiler}, and Python's headers")
    detail = f"{' and '.join(missing)} missing: Triton builds its launcher in C before a kernel starts on a GPU"
    next_step = "install gcc and the Python development package"
    return fail(detail, next_step) if detect_gpus() else warn(detail, f"{next_step} before you use a GPU")


def interpreter() -> Finding:
    if not interpreter_is_forced():
        return ok("TRITON_INTERPRET is not set")
    detail = f"TRITON_INTERPRET={os.environ['TRITON_INTERPRET']}: kernels run on the CPU, slowly, and cannot be timed"
    return warn(detail, "unset TRITON_INTERPRET")
