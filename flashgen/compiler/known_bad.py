"""Candidates that crash what works on them, or never end. What is known of them is kept, so that no run meets it twice.

One file a candidate, GPU architecture, triton version and kind of work, in `known-bad` beside the compiler's answers.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from flashgen.compiler.cache import cache_dir, digest, write_whole
from flashgen.compiler.toolchain import toolchain
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Reason, Rejected

# How often it must have happened. A machine that is busy, or short of memory, can do the latter two to a sound kernel.
_ENOUGH = {Reason.CRASHED: 1, Reason.TIMEOUT: 2, Reason.KILLED: 2}


def bad_key(source: str, target: GpuTarget, *work: str) -> str:
    """What a candidate's `source` is known by where `work` is done on it, such as `compile` or `timing`."""
    return digest(source, target.arch, toolchain().triton, *work)


def known_bad(key: str) -> Rejected | None:
    """How the candidate ended before, or None if it may be tried."""
    held = _held(key)
    if held is None or held["times"] < _ENOUGH[held["reason"]]:
        return None
    detail = f"{held['detail']} (known from before; `flashgen tune --force` tries it again)"
    return Rejected(reason=held["reason"], detail=detail)


def note_bad(key: str, rejected: Rejected) -> None:
    """Keeps how a candidate ended; what fell in another way than by a crash, a kill or a timeout is not kept."""
    if rejected.reason not in _ENOUGH:
        return
    before = _held(key)
    times = 1 + (before["times"] if before is not None and before["reason"] == rejected.reason else 0)
    write_whole(_path(key), json.dumps({"reason": rejected.reason, "detail": rejected.detail, "times": times}))


def forget_bad() -> None:
    """Lets every candidate be tried again."""
    shutil.rmtree(_path("").parent, ignore_errors=True)


def _held(key: str) -> dict[str, Any] | None:
    """None as well for a file that cannot be read: the worst that comes of it is another try."""
    try:
        held = json.loads(_path(key).read_text())
        return {"reason": Reason(held["reason"]), "detail": str(held["detail"]), "times": int(held["times"])}
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _path(key: str) -> Path:
    return cache_dir() / "known-bad" / f"{key}.json"
