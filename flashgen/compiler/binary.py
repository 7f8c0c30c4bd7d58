"""Resources of a compiled kernel, read from its binary."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from flashgen.outcome import Resources


def resources_of(compiled: Any) -> Resources:
    """What triton's CompiledKernel needs: shared bytes from its metadata, registers and spills from the binary."""
    if "cubin" in compiled.asm:
        registers, spills = _nvidia_usage(compiled.asm["cubin"])
    else:
        registers, spills = _amd_usage(compiled.asm["amdgcn"])
    metadata = compiled.metadata
    return Resources(
        shared_bytes=metadata.shared, registers=registers, spill_bytes=spills, num_warps=metadata.num_warps
    )


def cuobjdump() -> Path:
    """The disassembler that triton's wheel ships."""
    import triton

    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def _nvidia_usage(cubin: bytes) -> tuple[int, int]:
    """(registers, stack bytes) a thread. A stack in a kernel without calls or arrays holds spills."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(cuobjdump()), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    match = re.search(r"REG:(\d+) STACK:(\d+)", text)
    if match is None:
        raise RuntimeError(f"cuobjdump reported no registers: {text.strip()[:200]!r}")
    return int(match[1]), int(match[2])


def _amd_usage(assembly: str) -> tuple[int, int]:
    """(vector registers, spilled bytes) a lane, from the kernel's metadata."""

    def field(name: str) -> int:
        match = re.search(rf"\.{name}:\s+(\d+)", assembly)
        return int(match[1]) if match else 0

    return field("vgpr_count"), 4 * field("vgpr_spill_count")
