"""Source text to a module. Triton reads a kernel's source from its file, so the text needs one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from flashgen.compiler.cache import cache_dir, digest, write_whole


def load_file(path: Path, name: str) -> ModuleType:
    """The module in `path`, imported as `name`; imported once a name."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def load_source(text: str, stem: str = "candidate") -> ModuleType:
    """The module with this text, from a file named by its content; equal texts give the same module."""
    key = digest(text)
    path = cache_dir() / "modules" / f"{stem}_{key}.py"
    if not path.exists() or path.read_text() != text:
        write_whole(path, text)
    return load_file(path, f"flashgen_{stem}_{key}")
