"""What may run: to the byte at both limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashgen.hardware.known import KNOWN
from flashgen.hardware.lookup import find_gpu
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Reason, Resources
from flashgen.resources.limits import MAX_SPILL_BYTES, over_limit
from flashgen.resources.portable import SHARED_BYTES, SUPPORTED, is_supported, one_gpu_an_arch, portable_target

FITS = Resources(shared_bytes=1024, registers=128, spill_bytes=0, num_warps=4)


@pytest.mark.parametrize("target", [gpu.target for gpu in KNOWN.values()], ids=lambda target: target.slug)
def test_the_last_byte_of_shared_memory_may_be_used(target: GpuTarget) -> None:
    assert over_limit(replace(FITS, shared_bytes=target.smem_per_block), target) is None
    over = over_limit(replace(FITS, shared_bytes=target.smem_per_block + 1), target)
    assert over is not None
    assert over.reason is Reason.SRAM
    limit = target.smem_per_block
    assert over.detail == f"needs {limit + 1} bytes of shared memory, {target.slug} has {limit}"


def test_few_spills_are_let_through() -> None:
    assert over_limit(replace(FITS, spill_bytes=MAX_SPILL_BYTES), find_gpu("h200")) is None
    over = over_limit(replace(FITS, spill_bytes=MAX_SPILL_BYTES + 1), find_gpu("h200"))
    assert over is not None
    assert over.reason is Reason.SPILLS


def test_what_fits_the_portable_target_fits_every_gpu_that_it_stands_for() -> None:
    assert portable_target().smem_per_block == SHARED_BYTES == 65536
    assert over_limit(replace(FITS, shared_bytes=SHARED_BYTES + 1), portable_target()) is not None
    for target in SUPPORTED:
        assert over_limit(replace(FITS, shared_bytes=SHARED_BYTES), target) is None
    assert {target.arch for target in one_gpu_an_arch()} == {target.arch for target in SUPPORTED}
    assert [slug for slug, gpu in KNOWN.items() if not is_supported(gpu.target)] == ["nvidia-t4"]
