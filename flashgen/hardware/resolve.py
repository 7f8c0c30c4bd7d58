"""From the `--gpu` that a user gives to the GPU that a run works for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from flashgen.errors import NoUsableGpu, UnknownGpu
from flashgen.hardware.detect import DetectedGpu, detect_gpus, detection_failure, interpreter_is_forced
from flashgen.hardware.known import KNOWN
from flashgen.hardware.lookup import find_gpu, slugify
from flashgen.hardware.target import GpuTarget

DEFAULT_GPU = "nvidia-h100"  # what `auto` means on a machine without a GPU


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolution:
    """The GPU to work for. `present`: it is in this machine as device `index`, so kernels can be run and timed.

    `warning` is one line for the user, or None.
    """

    target: GpuTarget
    present: bool
    index: int | None = None
    warning: str | None = None


def resolve(gpu: str, require_gpu: bool) -> Resolution:
    """`auto` is the first GPU of this machine, or DEFAULT_GPU without one; else an index of this machine's, a slug, an
    alias or a device's name.

    Raises:
        UnknownGpu: a name that is neither known nor detected.
        NoUsableGpu: an index that no GPU has, or `require_gpu`, and the GPU cannot be used here.
    """
    devices = detect_gpus()
    if gpu.isdigit():
        devices = tuple(device for device in devices if device.index == int(gpu)) or _no_such(gpu)
        gpu = "auto"
    wanted = None if slugify(gpu) == "auto" else _named(gpu, devices)
    device = next((each for each in devices if wanted in (None, each.target)), None)
    obstacle = _obstacle(wanted, device, devices)
    if obstacle is not None and require_gpu:
        raise NoUsableGpu(_refusal(gpu, obstacle))
    if obstacle is not None or device is None:
        target = wanted or (device.target if device else KNOWN[DEFAULT_GPU].target)
        return Resolution(target=target, present=False, warning=f"{obstacle}: results for {target.slug} are predicted")
    return Resolution(target=device.target, present=True, index=device.index, warning=_estimate_warning(device))


def _no_such(index: str) -> NoReturn:
    counted = ", ".join(f"{each.index}: {each.target.slug}" for each in detect_gpus()) or f"none: {detection_failure()}"
    raise NoUsableGpu(f"no GPU has the index {index}\n  found: {counted}\n  next: `flashgen gpus` lists them")


def _named(gpu: str, devices: tuple[DetectedGpu, ...]) -> GpuTarget:
    """The detected device of that name, else the known GPU: a device's own limits win over the table."""
    try:
        slug = find_gpu(gpu).slug
    except UnknownGpu:
        slug = slugify(gpu)
    for device in devices:
        if slug in (device.target.slug, slugify(device.name)):
            return device.target
    return find_gpu(gpu)


def _obstacle(wanted: GpuTarget | None, device: DetectedGpu | None, devices: tuple[DetectedGpu, ...]) -> str | None:
    """Why nothing can be timed, or None."""
    if not devices:
        return f"no usable GPU: {detection_failure()}"
    if device is None and wanted is not None:
        return f"{wanted.slug} is not in this machine, which has {', '.join(each.target.slug for each in devices)}"
    if interpreter_is_forced():
        return "TRITON_INTERPRET is set, which makes kernels run on the CPU"
    return None


def _refusal(gpu: str, obstacle: str) -> str:
    sought = "any GPU that torch can use" if slugify(gpu) == "auto" else f"the GPU {gpu!r}"
    return (
        f"a GPU is required, and none can be used\n"
        f"  looked for: {sought}\n"
        f"  found: {obstacle}\n"
        f"  next: `flashgen doctor` checks torch, the driver and the GPU; without --require-gpu, results are predicted"
    )


def _estimate_warning(device: DetectedGpu) -> str | None:
    if not device.estimated:
        return None
    return f"{device.name} is not in the table of known GPUs: its {', '.join(device.estimated)} are estimated"
