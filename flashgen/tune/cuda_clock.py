"""A clock for kernels on a GPU: CUDA events round each launch, the L2 emptied before it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from flashgen.tune.timing import Call

_COVER = 1.5  # GPU time queued before a launch, over the launch's host time: the GPU must never wait for the host
_MAX_FLUSHES = 40


class CudaClock:
    """Times calls that launch on device `index`.

    A write of twice the L2 precedes each sample. It also covers the host: the launch is queued while it runs, so that
    the events enclose the kernel alone, however slow the launcher is. Where one write is too short it is repeated.
    """

    def __init__(self, index: int, l2_bytes: int) -> None:
        import torch

        self._device = torch.device("cuda", index)
        self._scratch = torch.empty(2 * l2_bytes, dtype=torch.int8, device=self._device)
        self._flush_us = self._time_flush()

    def sample(self, calls: Sequence[Call], rounds: int) -> list[list[float]]:
        """Microseconds of every call, `rounds` of each, in turn; every second round in reverse."""
        import torch

        with torch.cuda.device(self._device):
            flushes = [self._flushes(call) for call in calls]
            events: list[list[tuple[Any, Any]]] = [[] for _ in calls]
            for number in range(rounds):
                order = range(len(calls)) if number % 2 == 0 else reversed(range(len(calls)))
                for index in order:
                    events[index].append(self._enqueue(calls[index], flushes[index]))
            torch.cuda.synchronize(self._device)
        return [[begin.elapsed_time(end) * 1e3 for begin, end in pairs] for pairs in events]

    def _enqueue(self, call: Call, flushes: int) -> tuple[Any, Any]:
        begin, end = _event(), _event()
        for _ in range(flushes):
            self._scratch.zero_()
        begin.record()
        call()
        end.record()
        return begin, end

    def _flushes(self, call: Call) -> int:
        """How many writes cover the host time of one launch; the first launch may compile, so it does not count."""
        import torch

        call()
        torch.cuda.synchronize(self._device)
        start = time.perf_counter()
        call()
        host_us = (time.perf_counter() - start) * 1e6
        torch.cuda.synchronize(self._device)
        return min(_MAX_FLUSHES, 1 + int(_COVER * host_us / self._flush_us))

    def _time_flush(self) -> float:
        import torch

        with torch.cuda.device(self._device):
            self._scratch.zero_()
            begin, end = _event(), _event()
            begin.record()
            for _ in range(10):
                self._scratch.zero_()
            end.record()
            torch.cuda.synchronize(self._device)
            return max(1.0, float(begin.elapsed_time(end)) * 100)


def _event() -> Any:
    import torch

    make: Any = torch.cuda.Event
    return make(enable_timing=True)
