"""What disturbs timings on a GPU, asked while it works: other processes, and clocks that are held down."""

from __future__ import annotations

import os

from flashgen.hardware.nvidia_smi import GpuClocks, GpuProcess, compute_processes, gpu_clocks


def disturbances(index: int, uuid: str | None) -> tuple[str, ...]:
    """A line each, for device `index` of this process; empty where nvidia-smi has no answer."""
    return (*_company(compute_processes() or [], uuid), *_slowdowns(_own_clocks(gpu_clocks() or [], index)))


def _company(processes: list[GpuProcess], uuid: str | None) -> tuple[str, ...]:
    """Inside a container this process may be listed by a pid it does not know, so it is the number that tells. The one
    that began it may be there without any work of its own."""
    on_it = [process for process in processes if uuid is not None and uuid in process.gpu_uuid]
    here = [process for process in on_it if process.pid != str(os.getppid())]
    if len(here) < 2:
        return ()
    others = [process for process in here if process.pid != str(os.getpid())]
    names = ", ".join(sorted({process.name for process in others}))
    return (f"the GPU was shared while it was timed: {len(here)} compute processes on it ({names})",)


def _own_clocks(clocks: list[GpuClocks], index: int) -> list[GpuClocks]:
    """The row of this process's device, if it can be told: torch counts only the visible ones."""
    if len(clocks) == 1:
        return clocks
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(i) for i in range(len(clocks))] if visible is None else visible.split(",")
    wanted = names[index].strip() if index < len(names) else None
    return [clock for clock in clocks if clock.index == wanted]


def _slowdowns(clocks: list[GpuClocks]) -> tuple[str, ...]:
    return tuple(
        f"{clock.name} ran at {clock.sm_mhz} of {clock.max_sm_mhz} MHz while it was timed: {', '.join(clock.slowdowns)}"
        for clock in clocks
        if clock.slowdowns
    )
