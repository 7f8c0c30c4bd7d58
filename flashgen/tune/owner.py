"""The name of a process that no other one has had, and whether a process of this machine has ended."""

from __future__ import annotations

import hashlib
import os
import socket
from functools import cache
from pathlib import Path


def this_process() -> str:
    """A name for this process: `machine/pid/start time`."""
    return f"{_machine()}/{os.getpid()}/{_start_time(os.getpid())}"


def has_ended(process: str) -> bool | None:
    """Whether a process that `this_process` named has ended; None for another machine's, of which nothing is known."""
    machine, _, rest = process.rpartition("/")[0].rpartition("/")
    if machine != _machine() or not rest.isdigit():
        return None
    return _start_time(int(rest)) != process.rpartition("/")[2]


@cache
def _machine() -> str:
    """Where pids mean the same: the host's name, with a digest of its boot and of the container's pid namespace, as
    containers share names."""
    try:
        space = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return f"{socket.gethostname()}-{hashlib.sha256(space.encode()).hexdigest()[:8]}"


def _start_time(pid: int) -> str:
    """Clock ticks after boot at which a process started, or `` if there is none: pids alone are used again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The second field is the program's name in parentheses, and may hold spaces; the start time is the 22nd.
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state == "Z" else fields[18]
