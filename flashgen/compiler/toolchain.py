"""The versions that a result depends on."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.metadata import version

from flashgen import __version__
from flashgen.assets import templates_dir
from flashgen.outcome import Toolchain


@lru_cache(maxsize=1)
def templates_hash() -> str:
    """Twelve hex digits over every template's path and text."""
    root, total = templates_dir(), hashlib.sha256()
    for path in sorted(root.rglob("*.jinja")):
        total.update(f"{path.relative_to(root).as_posix()}\0".encode())
        total.update(path.read_bytes())
    return total.hexdigest()[:12]


@lru_cache(maxsize=1)
def toolchain() -> Toolchain:
    """The installed versions; importing neither torch nor triton."""
    return Toolchain(flashgen=__version__, triton=version("triton"), torch=version("torch"), templates=templates_hash())
