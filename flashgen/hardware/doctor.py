"""The diagnosis behind `flashgen doctor`: one small check after the other, each with a next step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flashgen.hardware import machine_checks, toolchain_checks
from flashgen.hardware.checks import Check, Finding, run_check

__all__ = ["Check", "doctor"]


def doctor(cache_dir: Path | None = None) -> tuple[Check, ...]:
    """Every check in order, none skipped and none raising; takes seconds, since it compiles a kernel.

    Reads only: it changes no clock, ends no process and leaves no file. `cache_dir` is flashgen's own cache.
    """
    checks: tuple[tuple[str, Callable[[], Finding]], ...] = (
        ("python", toolchain_checks.python),
        ("torch", toolchain_checks.torch),
        ("triton", toolchain_checks.triton),
        ("torch and triton", toolchain_checks.pairing),
        ("numpy", toolchain_checks.numpy),
        ("ptxas and cuobjdump", toolchain_checks.nvidia_tools),
        ("cross-compile", toolchain_checks.cross_compile),
        ("gpus", machine_checks.gpus),
        ("clocks", machine_checks.clocks),
        ("other processes", machine_checks.processes),
        ("caches", lambda: machine_checks.caches(cache_dir)),
        ("c compiler", machine_checks.c_compiler),
        ("interpreter", machine_checks.interpreter),
    )
    return tuple(run_check(name, look) for name, look in checks)
