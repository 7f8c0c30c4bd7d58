"""A tuner in a process of its own, with cold caches and a limit on its wall time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tuners.timeline import Event, read_events

_CACHES = ("FLASHGEN_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")

_BENCHMARKS = Path(__file__).parents[1]
_GONE_S = 15.0  # what was killed on the GPU leaves it within seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """What a program did until it ended, and how: by its own word, at its limit, or without a word."""

    ended: str
    wall_s: float
    events: tuple[Event, ...]


def run(command: Sequence[str], folder: Path, limit_s: float, caches: Path | None = None) -> Ran:
    """Runs a program that writes its events to events_of(`folder`), until it ends or for `limit_s`; its output goes to
    `folder`/log. It finds what was compiled before in `caches`, nothing unless given. Nothing of it is left running
    when this returns."""
    folder.mkdir(parents=True, exist_ok=True)
    caches = caches or caches_of(folder)
    paths = [str(_BENCHMARKS), str(_BENCHMARKS.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {name: str(caches / name.lower()) for name in _CACHES}
    environment |= {"PYTHONPATH": os.pathsep.join(paths)}
    began = time.monotonic()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        wall_s = time.monotonic() - began
        process.kill()
        process.wait()
        _end_all(caches)
    events = read_events(events_of(folder), began)
    last = events[-1] if events and events[-1].kind == "ended" else None
    ended = f"stopped at {limit_s:.0f} s" if code is None else f"exit code {code}: {last_lines(folder, 1)}"
    if last is not None:
        ended, wall_s = last.text or "", last.s or wall_s
    return Ran(ended=ended, wall_s=round(wall_s, 3), events=tuple(event for event in events if event is not last))


def events_of(folder: Path) -> Path:
    return folder / "events.jsonl"


def caches_of(folder: Path) -> Path:
    return folder / "caches"


def _end_all(caches: Path) -> None:
    """Kills what the program left, such as workers in sessions of their own: their environment names its caches."""
    deadline = time.monotonic() + _GONE_S
    while (left := list(_with_environment(str(caches).encode()))) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)


def _with_environment(text: bytes) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if text in path.read_bytes():
                yield int(path.parent.name)


def last_lines(folder: Path, count: int = 12) -> str:
    """Of what a program printed that ran in `folder`."""
    log = folder / "log"
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return "\n".join(lines[-count:])
