"""Names of GPUs: slugs and aliases that users type, device names that drivers report."""

from __future__ import annotations

import difflib
import re

from flashgen.errors import UnknownGpu
from flashgen.hardware.known import KNOWN, KnownGpu
from flashgen.hardware.target import GpuTarget

_MIG = re.compile(r"\s+MIG\s+(?P<profile>\S.*)$")
_VENDORS = ("nvidia", "amd")


def slugify(name: str) -> str:
    """Lower case, with each run of anything but letters and digits as one dash: `NVIDIA H200` -> `nvidia-h200`."""
    plain = re.sub(r"\((?:tm|r)\)", "", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


def find_gpu(name: str) -> GpuTarget:
    """The known GPU of that slug, alias or device name; case, spaces and underscores don't matter.

    Raises:
        UnknownGpu: no such name; the text offers the closest ones.
    """
    slug = names_by_slug().get(slugify(name))
    if slug is not None:
        return KNOWN[slug].target
    raise UnknownGpu(f"no GPU is known as {name!r}{_closest(name)}; `flashgen gpus` lists every name")


def names_by_slug() -> dict[str, str]:
    """Every name a user may type, slugified, with the slug it means."""
    names = {}
    for slug, gpu in KNOWN.items():
        for name in (slug, *gpu.aliases, *gpu.device_names):
            names[slugify(name)] = slug
    return names


def _closest(name: str) -> str:
    """` (closest: h200, h100)`, at most three GPUs and each once, or nothing when no name comes near."""
    names = names_by_slug()
    near: dict[str, str] = {}
    for match in difflib.get_close_matches(slugify(name), names, n=6, cutoff=0.5):
        near.setdefault(names[match], match)
    return f" (closest: {', '.join(list(near.values())[:3])})" if near else ""


def known_by_device_name(device_name: str) -> KnownGpu | None:
    """The known GPU that a driver reports as `device_name`, a MIG slice's whole GPU included.

    Older drivers leave the vendor out (`A100-SXM4-40GB`). Names match as a whole: `NVIDIA GeForce RTX 4090 Laptop GPU`
    is another GPU than `NVIDIA GeForce RTX 4090`.
    """
    whole = without_vendor(slugify(_MIG.sub("", device_name)))
    for gpu in KNOWN.values():
        if whole in {without_vendor(slugify(name)) for name in gpu.device_names}:
            return gpu
    return None


def without_vendor(slug: str) -> str:
    vendor, _, rest = slug.partition("-")
    return rest if vendor in _VENDORS else slug


def mig_profile(device_name: str) -> str | None:
    """`1g.10gb` of `NVIDIA H100 80GB HBM3 MIG 1g.10gb`; None when the device is no slice."""
    match = _MIG.search(device_name)
    return match["profile"] if match else None


def device_slug(device_name: str, arch: str) -> str:
    """The slug of a detected device. A MIG slice has its own, since what is fastest on it isn't on the whole GPU."""
    vendor = "nvidia" if arch.startswith("sm_") else "amd"
    known = known_by_device_name(device_name)
    profile = mig_profile(device_name)
    if known is not None:
        return known.slug if profile is None else f"{known.slug}-mig-{slugify(profile)}"
    # ROCm reports an empty name where it lacks the table of product names.
    slug = slugify(device_name) or slugify(arch)
    return slug if slug.startswith(_VENDORS) else f"{vendor}-{slug}"
