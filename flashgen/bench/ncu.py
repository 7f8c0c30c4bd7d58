"""Nsight Compute's command line: where it is, what it is asked, and how its answer reads."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
# Caches and clocks stay as the call finds them. Only what lies between cudaProfilerStart and Stop is counted.
OPTIONS = (
    *("--clock-control", "none", "--cache-control", "none"),
    *("--target-processes", "application-only", "--profile-from-start", "off"),
    *("--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(METRICS)),
)
_ELSEWHERE = (("/usr/local", "cuda*/bin/ncu"), ("/opt/nvidia/nsight-compute", "*/ncu"))
_UNITS = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12}
_FOR_ALL = ("ERR_NVGPUCTRPERM", "Failed to initialize")  # of ncu's errors, those that every call would meet


class NcuRefuses(Exception):
    """Nsight Compute cannot count on this machine, whatever the call; the text says why."""


def find_ncu(elsewhere: Sequence[tuple[str, str]] = _ELSEWHERE) -> str:
    """The path of `ncu`: the one on PATH, else the last of those in (directory, pattern).

    Raises:
        NcuRefuses: there is none.
    """
    if (on_path := shutil.which("ncu")) is not None:
        return on_path
    for directory, pattern in elsewhere:
        if found := sorted(Path(directory).glob(pattern)):
            return str(found[-1])
    places = " or ".join(f"{directory}/{pattern}" for directory, pattern in elsewhere)
    raise NcuRefuses(f"Nsight Compute is not here: no ncu on PATH, nor at {places}")


def kernels_of(text: str) -> Iterator[tuple[float, float]]:
    """(bytes read, bytes written) of every kernel in the raw page as CSV, among whatever else ncu says.

    Raises:
        NcuRefuses: a counter has no column, no unit of bytes, or no figure.
    """
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    table = list(csv.reader(line for line in lines[start:] if line.startswith('"')))
    if len(table) < 3:
        return
    header, units, *rows = table
    try:
        places = [header.index(metric) for metric in METRICS]
        for row in rows:
            read, written = (float(row[place].replace(",", "")) * _UNITS[units[place]] for place in places)
            yield read, written
    except (ValueError, KeyError, IndexError) as error:
        raise NcuRefuses(f"ncu gives no bytes of {' and '.join(METRICS)} here: {error}") from error


def complaint(text: str) -> str:
    """The first error that ncu reports of itself; empty if there is none.

    Raises:
        NcuRefuses: the error is one that every call would meet.
    """
    said = (line.removeprefix("==ERROR==").strip() for line in text.splitlines() if line.startswith("==ERROR=="))
    first = next((line for line in said if "application returned an error" not in line), "")
    if any(sign in first for sign in _FOR_ALL):
        raise NcuRefuses(first)
    return first
