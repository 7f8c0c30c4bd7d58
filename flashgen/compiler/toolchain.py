"""The versions that a result depends on."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.metadata import version

from flashgen import __version__
from flashgen.assets import templates_dir
from flashgen.outcome import Toolchain

_KERNEL_TEMPLATES = ("kernel/*.jinja", "concern/*.jinja", "module/helpers.jinja")


@lru_cache(maxsize=1)
def templates_hash() -> str:
    """Twelve hex digits over the path and text of every template that a kernel is made of.

    What surrounds the kernels in an emitted module changes no figure; `emit --check` sees it.
    """
    root, total = templates_dir(), hashlib.sha256()
    for path in sorted(path for folder in _KERNEL_TEMPLATES for path in root.glob(folder)):
        total.update(f"{path.relative_to(root).as_posix()}\0".encode())
        total.update(path.read_bytes())
    return total.hexdigest()[:12]


@lru_cache(maxsize=1)
def toolchain() -> Toolchain:
    """The installed versions; importing neither torch nor triton."""
    return Toolchain(flashgen=__version__, triton=version("triton"), torch=version("torch"), templates=templates_hash())
