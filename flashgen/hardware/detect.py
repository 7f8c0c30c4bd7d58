"""The GPUs of this machine, as torch sees them. Importing this module imports no torch; asking does."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from flashgen.hardware.lookup import device_slug, known_by_device_name, mig_profile
from flashgen.hardware.nvidia_smi import driver_version
from flashgen.hardware.rates import Reported, estimated_rates, known_rates
from flashgen.hardware.target import GpuTarget

# GPUs whose matrix units take bf16: NVIDIA from compute capability 8.0, AMD from CDNA1 and from RDNA3.
_FIRST_BF16_MAJOR = 8
_AMD_BF16 = ("gfx908", "gfx90a", "gfx94", "gfx95", "gfx11", "gfx12")


@dataclass(frozen=True, kw_only=True, slots=True)
class DetectedGpu:
    """One device of this machine. `target` holds the device's own limits; `known` is the model's slug in the table.

    `estimated` names the fields of `target` that neither the driver nor the table gives.
    """

    index: int
    name: str
    uuid: str | None
    known: str | None
    target: GpuTarget
    estimated: tuple[str, ...] = ()


def detect_gpus() -> tuple[DetectedGpu, ...]:
    """Every device that torch can use, by index; empty when there is none (`detection_failure` says why).

    Initialises CUDA in this process, after which it must not fork workers that use the GPU.
    """
    return _detect()[0]


def detection_failure() -> str:
    """Why no GPU was detected, in one line; empty when one was."""
    return _detect()[1]


def _detect() -> tuple[tuple[DetectedGpu, ...], str]:
    try:
        import torch
    except (ImportError, OSError, RuntimeError) as error:  # a broken install raises the latter two
        return (), f"torch cannot be imported ({_first_line(error)})"
    build = torch_build(torch)
    if torch.version.cuda is None and torch.version.hip is None:
        return (), f"{build} is a CPU build; {_driver(torch)}"
    try:
        gpus = _devices(torch)
    except Exception as error:
        return (), f"{build} finds no usable GPU ({_first_line(error)}){_hidden()}; {_driver(torch)}"
    return gpus, "" if gpus else f"{build} counts 0 devices{_hidden()}; {_driver(torch)}"


def torch_build(torch: Any) -> str:
    """Such as `torch 2.11.0+cu130 (CUDA 13.0)`."""
    if torch.version.hip:
        return f"torch {torch.__version__} (ROCm {torch.version.hip})"
    return f"torch {torch.__version__}" + (f" (CUDA {torch.version.cuda})" if torch.version.cuda else "")


def interpreter_is_forced() -> bool:
    """Whether the environment makes Triton interpret kernels on the CPU, by Triton's own reading of the variable."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")


def _driver(torch: Any) -> str:
    if torch.version.hip:
        return "the amdgpu driver's /dev/kfd " + ("is there" if os.path.exists("/dev/kfd") else "is missing")
    version = driver_version()
    return f"NVIDIA driver {version} answers" if version else "no NVIDIA driver answers through nvidia-smi"


def _hidden() -> str:
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    return "".join(f", {name}={os.environ[name]!r} is set" for name in names if name in os.environ)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _devices(torch: Any) -> tuple[DetectedGpu, ...]:
    torch.cuda.init()
    is_hip = bool(torch.version.hip)
    indices = range(torch.cuda.device_count())
    return tuple(_detected(torch.cuda.get_device_properties(index), index, is_hip) for index in indices)


def _detected(properties: Any, index: int, is_hip: bool) -> DetectedGpu:
    """The device that torch's `properties` describe. Its limits win over the table's; its rates are never above."""
    name = str(properties.name).strip()
    known = known_by_device_name(name)
    reported = _reported(properties, is_hip)
    rates = estimated_rates(reported) if known is None else known_rates(known, reported)
    uuid = getattr(properties, "uuid", None)
    # Not every ROCm release fills in the opt-in limit; there it equals the plain one.
    smem_per_block = getattr(properties, "shared_memory_per_block_optin", 0) or properties.shared_memory_per_block
    target = GpuTarget(
        slug=device_slug(name, reported.arch),
        arch=reported.arch,
        sm_count=reported.sm_count,
        smem_per_block=smem_per_block,
        # Some HIP releases report the LDS of the whole device here; a workgroup can use all of its CU's.
        smem_per_sm=smem_per_block if is_hip else properties.shared_memory_per_multiprocessor,
        registers_per_sm=properties.regs_per_multiprocessor,
        l2_bytes=reported.l2_bytes,
        hbm_bytes_per_s=rates.hbm_bytes_per_s,
        bf16_flops=rates.bf16_flops,
        clock_hz=rates.clock_hz,
        has_bf16=reported.arch.startswith(_AMD_BF16) if is_hip else properties.major >= _FIRST_BF16_MAJOR,
    )
    return DetectedGpu(
        index=index,
        name=name,
        uuid=None if uuid is None else str(uuid),
        known=None if known is None else known.slug,
        target=target,
        estimated=rates.estimated,
    )


def _reported(properties: Any, is_hip: bool) -> Reported:
    khz = getattr(properties, "clock_rate", 0)
    return Reported(
        # gcnArchName carries features as well: gfx942:sramecc+:xnack-
        arch=properties.gcnArchName.partition(":")[0] if is_hip else f"sm_{properties.major}{properties.minor}",
        sm_count=properties.multi_processor_count,
        l2_bytes=properties.L2_cache_size,
        clock_hz=khz * 1e3 if khz else None,
        hbm_bytes_per_s=None if is_hip else _hbm_bytes_per_s(properties),
        is_slice=mig_profile(properties.name) is not None,
    )


def _hbm_bytes_per_s(properties: Any) -> float | None:
    """Peak of the memory bus: two transfers a clock on every bit of it. NVIDIA only: AMD reports another clock."""
    khz, bits = getattr(properties, "memory_clock_rate", 0), getattr(properties, "memory_bus_width", 0)
    return 2 * khz * 1e3 * bits / 8 or None
