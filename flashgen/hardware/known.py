"""The GPUs that flashgen knows without seeing them, as data. Each figure group names where its numbers are published.

Rates are dense (no structured sparsity). bf16 rates accumulate in fp32: GeForce cards do that at half the rate of their
fp16 accumulation, which is the number their advertising gives. Where a vendor publishes only the sparse rate, ours is
half of it. A figure without a published source is not here, and neither is its GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.hardware.target import GpuTarget

_CUDA_GUIDE = 'CUDA C++ Programming Guide 13.0, Compute Capabilities, "Technical Specifications per Compute Capability"'
_CDNA3_ISA = '"AMD Instinct MI300" CDNA3 ISA reference guide: 64 KB LDS a CU; 4 SIMDs x 64 lanes x 512 VGPRs a CU'

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchLimits:
    """What one SM (AMD: compute unit) of an architecture has: bytes of shared memory, 32-bit registers.

    From sm_80 on, each resident block costs 1 KiB that it cannot use, so one block reaches smem_per_sm less 1 KiB. The
    registers of gfx942 count ordinary and accumulation VGPRs together, as HIP's regsPerMultiprocessor does.
    """

    smem_per_block: int
    smem_per_sm: int
    registers_per_sm: int
    source: str


ARCH_LIMITS: dict[str, ArchLimits] = {
    arch: ArchLimits(smem_per_block=block, smem_per_sm=sm, registers_per_sm=registers, source=source)
    for arch, block, sm, registers, source in (
        ("sm_75", 64 * KIB, 64 * KIB, 65536, _CUDA_GUIDE),
        ("sm_80", 163 * KIB, 164 * KIB, 65536, _CUDA_GUIDE),
        ("sm_86", 99 * KIB, 100 * KIB, 65536, _CUDA_GUIDE),
        ("sm_89", 99 * KIB, 100 * KIB, 65536, _CUDA_GUIDE),
        ("sm_90", 227 * KIB, 228 * KIB, 65536, _CUDA_GUIDE),
        ("sm_100", 227 * KIB, 228 * KIB, 65536, _CUDA_GUIDE),
        ("sm_120", 99 * KIB, 100 * KIB, 65536, _CUDA_GUIDE),
        ("gfx942", 64 * KIB, 64 * KIB, 131072, _CDNA3_ISA),
    )
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Chip:
    """SMs (AMD: compute units) in use, L2 bytes that one SM can reach, and the highest clock."""

    sm_count: int
    l2_bytes: int
    boost_mhz: int
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Peak rates: HBM in GB/s, dense bf16 with fp32 accumulation (fp16 where there is no bf16) in TFLOP/s."""

    hbm_gb_per_s: float
    tflops: float
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownGpu:
    """One GPU model, the names that drivers give it, and the short names that users give it."""

    slug: str
    arch: str
    chip: Chip
    speed: Speed
    device_names: tuple[str, ...]
    aliases: tuple[str, ...]

    @property
    def limits(self) -> ArchLimits:
        return ARCH_LIMITS[self.arch]

    @property
    def target(self) -> GpuTarget:
        return GpuTarget(
            slug=self.slug,
            arch=self.arch,
            sm_count=self.chip.sm_count,
            smem_per_block=self.limits.smem_per_block,
            smem_per_sm=self.limits.smem_per_sm,
            registers_per_sm=self.limits.registers_per_sm,
            l2_bytes=self.chip.l2_bytes,
            hbm_bytes_per_s=self.speed.hbm_gb_per_s * 1e9,
            bf16_flops=self.speed.tflops * 1e12,
            clock_hz=self.chip.boost_mhz * 1e6,
            has_bf16=self.arch != "sm_75",
        )


_GPUS = (
    KnownGpu(
        slug="nvidia-t4",
        arch="sm_75",
        chip=Chip(
            sm_count=40,
            l2_bytes=4 * MIB,
            boost_mhz=1590,
            source="NVIDIA Turing GPU Architecture whitepaper, Tesla P4 and T4 compared: 40 SMs, 4096 KB L2, 1590 MHz",
        ),
        speed=Speed(
            hbm_gb_per_s=320,
            tflops=65,
            source="NVIDIA T4 datasheet: 65 TFLOPS fp16 (no bf16 unit), 320 GB/s",
        ),
        device_names=("Tesla T4", "NVIDIA T4"),
        aliases=("t4", "tesla-t4"),
    ),
    KnownGpu(
        slug="nvidia-a100",
        arch="sm_80",
        chip=Chip(
            sm_count=108,
            l2_bytes=40 * MIB,
            boost_mhz=1410,
            source="NVIDIA A100 Tensor Core GPU Architecture whitepaper V1.0: 108 SMs, 40960 KB L2, boost 1410 MHz",
        ),
        # The 40 GB and PCIe cards differ in HBM rate only; detection takes theirs from the driver.
        speed=Speed(
            hbm_gb_per_s=2039,
            tflops=312,
            source="NVIDIA A100 datasheet, A100 80GB SXM: 312 TFLOPS bf16, 2,039 GB/s",
        ),
        device_names=(
            "NVIDIA A100-SXM4-80GB",
            "NVIDIA A100-SXM4-40GB",
            "NVIDIA A100-PCIE-40GB",
            "NVIDIA A100 80GB PCIe",
        ),
        aliases=("a100", "a100-sxm"),
    ),
    KnownGpu(
        slug="nvidia-a10",
        arch="sm_86",
        chip=Chip(
            sm_count=72,
            l2_bytes=6 * MIB,
            boost_mhz=1695,
            source="CUDA driver attributes of NVIDIA A10 (deviceQuery): 72 SMs, 6291456 bytes L2, 1695 MHz",
        ),
        speed=Speed(
            hbm_gb_per_s=600,
            tflops=125,
            source="NVIDIA A10 datasheet: 125 TFLOPS bf16 dense (250 with sparsity), 600 GB/s",
        ),
        device_names=("NVIDIA A10",),
        aliases=("a10",),
    ),
    KnownGpu(
        slug="nvidia-geforce-rtx-3090",
        arch="sm_86",
        chip=Chip(
            sm_count=82,
            l2_bytes=6 * MIB,
            boost_mhz=1695,
            source="NVIDIA Ampere GA102 GPU Architecture whitepaper V2: RTX 3090: 82 SMs, 6144 KB L2, boost 1695 MHz",
        ),
        speed=Speed(
            hbm_gb_per_s=936,
            tflops=71,
            source="NVIDIA Ampere GA102 GPU Architecture whitepaper V2: RTX 3090: 71 TFLOPS bf16 dense, 936 GB/s",
        ),
        device_names=("NVIDIA GeForce RTX 3090",),
        aliases=("rtx-3090", "rtx3090"),
    ),
    KnownGpu(
        slug="nvidia-l4",
        arch="sm_89",
        chip=Chip(
            sm_count=58,
            l2_bytes=48 * MIB,
            boost_mhz=2040,
            source="NVIDIA Ada GPU Architecture whitepaper V2.01, L4 appendix: 58 SMs, 49152 KB L2, boost 2040 MHz",
        ),
        speed=Speed(
            hbm_gb_per_s=300,
            tflops=121,
            source="NVIDIA L4 datasheet: 242 TFLOPS bf16 with sparsity (121 dense), 300 GB/s",
        ),
        device_names=("NVIDIA L4",),
        aliases=("l4",),
    ),
    KnownGpu(
        slug="nvidia-l40s",
        arch="sm_89",
        chip=Chip(
            sm_count=142,
            l2_bytes=96 * MIB,
            boost_mhz=2520,
            source="NVIDIA L40S product brief: 18,176 cores (142 SMs), boost 2520 MHz; Ada whitepaper V2.01: AD102 L2",
        ),
        speed=Speed(
            hbm_gb_per_s=864,
            tflops=362.05,
            source="NVIDIA L40S datasheet: 362.05 TFLOPS bf16 dense, 864 GB/s",
        ),
        device_names=("NVIDIA L40S",),
        aliases=("l40s",),
    ),
    KnownGpu(
        slug="nvidia-geforce-rtx-4090",
        arch="sm_89",
        chip=Chip(
            sm_count=128,
            l2_bytes=72 * MIB,
            boost_mhz=2520,
            source="NVIDIA Ada GPU Architecture whitepaper V2.01: RTX 4090: 128 SMs, 73728 KB L2, boost 2520 MHz",
        ),
        speed=Speed(
            hbm_gb_per_s=1008,
            tflops=165.2,
            source="NVIDIA Ada GPU Architecture whitepaper V2.01: RTX 4090: 165.2 TFLOPS bf16 dense, 1008 GB/s",
        ),
        device_names=("NVIDIA GeForce RTX 4090",),
        aliases=("rtx-4090", "rtx4090"),
    ),
    KnownGpu(
        slug="nvidia-h100",
        arch="sm_90",
        chip=Chip(
            sm_count=132,
            l2_bytes=50 * MIB,
            boost_mhz=1980,
            source="NVIDIA H100 Tensor Core GPU Architecture whitepaper V1.04: SXM5: 132 SMs, 50 MB L2, boost 1980 MHz",
        ),
        # The whitepaper states this rate at 1830 MHz, the boost clock while the matrix units run.
        speed=Speed(
            hbm_gb_per_s=3350,
            tflops=989.4,
            source="NVIDIA H100 whitepaper V1.04: 989.4 TFLOPS bf16 dense; H100 datasheet, SXM: 3.35 TB/s",
        ),
        device_names=("NVIDIA H100 80GB HBM3",),
        aliases=("h100", "h100-sxm"),
    ),
    KnownGpu(
        slug="nvidia-h100-pcie",
        arch="sm_90",
        chip=Chip(
            sm_count=114,
            l2_bytes=50 * MIB,
            boost_mhz=1755,
            source="NVIDIA H100 Tensor Core GPU Architecture whitepaper V1.04: PCIe: 114 SMs, 50 MB L2, boost 1755 MHz",
        ),
        speed=Speed(
            hbm_gb_per_s=2000,
            tflops=756,
            source="NVIDIA H100 whitepaper V1.04: 756 TFLOPS bf16 dense; H100 datasheet, PCIe: 2 TB/s",
        ),
        device_names=("NVIDIA H100 PCIe",),
        aliases=("h100-pcie",),
    ),
    KnownGpu(
        slug="nvidia-h200",
        arch="sm_90",
        chip=Chip(
            sm_count=132,
            l2_bytes=60 * MIB,
            boost_mhz=1980,
            source="CUDA driver attributes of NVIDIA H200 (SXM): 132 SMs, 62914560 bytes L2, 1980 MHz",
        ),
        speed=Speed(
            hbm_gb_per_s=4800,
            tflops=989.4,
            source="NVIDIA H200 datasheet, SXM: 1,979 TFLOPS bf16 with sparsity as H100 (989.4 dense), 4.8 TB/s",
        ),
        device_names=("NVIDIA H200",),
        aliases=("h200", "h200-sxm"),
    ),
    KnownGpu(
        slug="nvidia-b200",
        arch="sm_100",
        chip=Chip(
            sm_count=148,
            l2_bytes=126 * MIB,
            boost_mhz=1965,
            source="CUDA Blackwell Tuning Guide: 126 MB L2; driver attributes of NVIDIA B200: 148 SMs, 1965 MHz",
        ),
        speed=Speed(
            hbm_gb_per_s=7700,
            tflops=2250,
            source="NVIDIA Blackwell datasheet, HGX B200, each GPU: 4.5 PFLOPS bf16 with sparsity, 7.7 TB/s",
        ),
        device_names=("NVIDIA B200",),
        aliases=("b200",),
    ),
    KnownGpu(
        slug="nvidia-geforce-rtx-5090",
        arch="sm_120",
        chip=Chip(
            sm_count=170,
            l2_bytes=96 * MIB,
            boost_mhz=2407,
            source="NVIDIA RTX Blackwell GPU Architecture whitepaper: RTX 5090: 170 SMs, 98304 KB L2, boost 2407 MHz",
        ),
        speed=Speed(
            hbm_gb_per_s=1792,
            tflops=209.5,
            source="NVIDIA RTX Blackwell GPU Architecture whitepaper: RTX 5090: 209.5 TFLOPS bf16 dense, 1792 GB/s",
        ),
        device_names=("NVIDIA GeForce RTX 5090",),
        aliases=("rtx-5090", "rtx5090"),
    ),
    KnownGpu(
        slug="amd-instinct-mi300x",
        arch="gfx942",
        # Each of the eight dies has an L2 of its own: bytes that programs on several dies read are cached once a die.
        chip=Chip(
            sm_count=304,
            l2_bytes=4 * MIB,
            boost_mhz=2100,
            source="AMD Instinct MI300X data sheet: 304 CUs, 2100 MHz; AMD CDNA 3 whitepaper: 4 MB L2 a die (XCD)",
        ),
        speed=Speed(
            hbm_gb_per_s=5300,
            tflops=1307.4,
            source="AMD Instinct MI300X data sheet: 1307.4 TFLOPS bf16 dense, 5.3 TB/s",
        ),
        device_names=("AMD Instinct MI300X", "AMD Instinct MI300X OAM", "AMD Instinct MI300X VF"),
        aliases=("mi300x", "amd-mi300x"),
    ),
)

KNOWN: dict[str, KnownGpu] = {gpu.slug: gpu for gpu in _GPUS}
