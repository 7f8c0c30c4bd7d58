"""`flashgen gpus`: the table of known GPUs, and what this machine has."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from flashgen.cli import options
from flashgen.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from flashgen.hardware.detect import DetectedGpu
    from flashgen.hardware.known import KnownGpu
    from flashgen.hardware.target import GpuTarget

_FIGURES = ("arch", "SMs", "SRAM/block", "SRAM/SM", "L2", "HBM", "bf16", "clock")


@click.command("gpus")
@click.option("--sources", is_flag=True, help="Also say where each figure is published.")
@options.as_json
def command(sources: bool, as_json: bool) -> None:
    """List the GPUs that flashgen knows, with the figures it reasons with, and the GPUs of this machine.

    --gpu takes any of the names. A GPU that is not listed can be tuned where it is: its limits come from the driver.
    """
    from flashgen.hardware.detect import detect_gpus, detection_failure
    from flashgen.hardware.known import KNOWN

    devices = detect_gpus()
    if as_json:
        print_json(
            {
                "known": [_known_document(gpu, sources=sources) for gpu in KNOWN.values()],
                "detected": [asdict(device) for device in devices],
                "detection_failure": detection_failure(),
            }
        )
        return
    rows = [(slug, ", ".join(gpu.aliases), *_figures(gpu.target)) for slug, gpu in KNOWN.items()]
    print_table("Known GPUs", ("slug", "also", *_FIGURES), rows, right=_FIGURES[1:])
    if sources:
        print_table(
            "Sources", ("slug", "figures", "published in"), [row for gpu in KNOWN.values() for row in _sources(gpu)]
        )
    if devices:
        detected = [_detected(device) for device in devices]
        print_table("In this machine", ("index", "name", "slug", *_FIGURES, "estimated"), detected, right=_FIGURES[1:])
    else:
        print_line(f"In this machine: none. {detection_failure()}")


def _figures(target: GpuTarget) -> tuple[str, ...]:
    """As _FIGURES: bytes in KiB and MiB, rates in TB/s and TFLOP/s, as vendors give them."""
    return (
        target.arch,
        str(target.sm_count),
        f"{target.smem_per_block // 1024} KiB",
        f"{target.smem_per_sm // 1024} KiB",
        f"{target.l2_bytes / 1024**2:g} MiB",
        f"{target.hbm_bytes_per_s / 1e12:.3g} TB/s",
        f"{target.bf16_flops / 1e12:g} TFLOP/s{'' if target.has_bf16 else ' (fp16)'}",
        f"{target.clock_hz / 1e6:.0f} MHz",
    )


def _detected(device: DetectedGpu) -> tuple[str, ...]:
    target = device.target
    return (str(device.index), device.name, target.slug, *_figures(target), ", ".join(device.estimated))


def _sources(gpu: KnownGpu) -> list[tuple[str, str, str]]:
    return [
        (gpu.slug, "shared memory, registers", gpu.limits.source),
        ("", "SMs, L2, clock", gpu.chip.source),
        ("", "HBM, bf16", gpu.speed.source),
    ]


def _known_document(gpu: KnownGpu, *, sources: bool) -> dict[str, object]:
    document = asdict(gpu.target) | {"aliases": gpu.aliases, "device_names": gpu.device_names}
    named = {"limits": gpu.limits.source, "chip": gpu.chip.source, "speed": gpu.speed.source}
    return document | ({"sources": named} if sources else {})
