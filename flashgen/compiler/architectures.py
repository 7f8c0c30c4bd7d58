"""Which architectures this toolchain has a compiler for."""

from __future__ import annotations

from flashgen.compiler.crosscompile import compile_many
from flashgen.families import TlConfig
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Rejected
from flashgen.spec import AttentionSpec

# A kernel that any compiler of an architecture accepts: what fails on it has no compiler here.
_PLAIN = (
    AttentionSpec(dtype="fp16", head_dim=64, head_dim_v=64),
    TlConfig(BLOCK_M=64, BLOCK_N=32, num_warps=4, num_stages=1),
)


def missing_compiler(target: GpuTarget, jobs: int) -> str | None:
    """Why nothing compiles for the target's architecture here, or None if something does."""
    ((_, answer),) = compile_many([_PLAIN], target, jobs)
    return answer.detail if isinstance(answer, Rejected) else None
