"""The versions that a result depends on."""

from __future__ import annotations

import hashlib
import io
import tokenize
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version

from flashgen import __version__
from flashgen.assets import templates_dir
from flashgen.codegen.candidate import candidate_kernels
from flashgen.config import KernelConfig
from flashgen.outcome import Toolchain
from flashgen.spec import AttentionSpec
from flashgen.store.entry import TunedEntry

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
    """The installed versions, importing neither torch nor triton; `kernels` is over every template."""
    return Toolchain(flashgen=__version__, triton=version("triton"), torch=version("torch"), kernels=templates_hash())


def kernels_hash(spec: AttentionSpec, config: KernelConfig) -> str:
    """Twelve hex digits over a rule's kernels, but not over comments and blank lines: a rule is stale when its kernels
    would be other code now."""
    total = hashlib.sha256()
    for token in tokenize.generate_tokens(io.StringIO(candidate_kernels(spec, config)).readline):
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            total.update(f"{tokenize.tok_name[token.type]} {token.string.strip()}\0".encode())
    return total.hexdigest()[:12]


def toolchain_of(entry: TunedEntry) -> Toolchain:
    """What the entry's rule would be made with today."""
    return replace(toolchain(), kernels=kernels_hash(entry.spec, entry.config))
