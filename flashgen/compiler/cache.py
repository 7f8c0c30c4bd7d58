"""Where flashgen keeps what can be made again: rendered candidates and the compiler's answers."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

from flashgen.outcome import Rejected, Resources


def cache_dir() -> Path:
    """$FLASHGEN_CACHE_DIR, else $XDG_CACHE_HOME/flashgen, else ~/.cache/flashgen; made if missing."""
    named = os.environ.get("FLASHGEN_CACHE_DIR")
    base = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "flashgen"
    base.mkdir(parents=True, exist_ok=True)
    return base


def digest(*parts: str) -> str:
    """Twenty hex digits over the parts; their borders count."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]


def write_whole(path: Path, text: str) -> None:
    """Writes through a temporary name, so that a reader sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.replace(name, path)


def recall(key: str) -> Resources | Rejected | None:
    """The compiler's answer under `key`; None if there is none, or what is stored cannot be read."""
    try:
        stored = json.loads((cache_dir() / "compile" / f"{key}.json").read_text())
        if "reason" in stored:
            return Rejected.of(stored)
        return Resources(**stored)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def remember(key: str, answer: Resources | Rejected) -> None:
    write_whole(cache_dir() / "compile" / f"{key}.json", json.dumps(asdict(answer)))
