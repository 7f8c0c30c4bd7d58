"""The process that owns the GPU, so that this one has no CUDA context which a kernel could take along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any, NamedTuple

from flashgen.compiler.crosscompile import Unit
from flashgen.outcome import Measurement, Rejected
from flashgen.spec import Workload
from flashgen.tune.stages import Times
from flashgen.verify.worker import Worker

# A probe or a block of samples takes a second or two; what takes long are kernels that triton compiles anew for other
# classes of sizes, at up to twenty seconds each beside compilers on every core.
SILENCE_S = 90.0


class Finals(NamedTuple):
    """Times of kernels that were timed together, one of the two for each, and what disturbed them."""

    times: list[Times | Rejected]
    notes: tuple[str, ...]


class GpuWorker(Worker):
    """A Worker on GPU `index` of this process that times kernels as well; `l2_bytes` are emptied before each sample.

    After `silence_s` seconds without a word it is taken to hang.
    """

    def __init__(
        self,
        index: int,
        l2_bytes: int,
        *,
        program: str = "flashgen.tune.gpu_serve",
        interpret: bool = False,
        silence_s: float = SILENCE_S,
    ) -> None:
        first = {"ask": "open", "index": index, "l2_bytes": l2_bytes}
        super().__init__(program=program, interpret=interpret, first=first)
        self.silence_s = silence_s

    def glance(self, unit: Unit, workloads: Sequence[Workload], best_us: float) -> Times | Rejected:
        """A short timing on every workload, cut shorter where it is clearly slower than `best_us`.

        Raises:
            FlashgenError: the process cannot start, as when the GPU is lost.
        """
        reply = self.ask(_request("glance", [unit], workloads) | {"best_us": best_us}, self.silence_s)
        return reply if isinstance(reply, Rejected) else _times(reply["times"][0])

    def time(self, units: Sequence[Unit], workloads: Sequence[Workload]) -> Finals | Rejected:
        """Times of all units, taken in turn; Rejected where one of them ended it for all.

        Raises:
            FlashgenError: the process cannot start, as when the GPU is lost.
        """
        reply = self.ask(_request("time", units, workloads), self.silence_s)
        if isinstance(reply, Rejected):
            return reply
        return Finals(times=[_times(held) for held in reply["times"]], notes=tuple(reply["notes"]))


@lru_cache(maxsize=1)
def gpu_worker(index: int, l2_bytes: int) -> GpuWorker:
    """The GPU's process, kept for whoever asks next: it takes seconds to import torch and triton."""
    return GpuWorker(index, l2_bytes)


def _request(ask: str, units: Sequence[Unit], workloads: Sequence[Workload]) -> dict[str, Any]:
    return {"ask": ask, "units": [asdict(unit) for unit in units], "workloads": [asdict(each) for each in workloads]}


def _times(held: Any) -> Times | Rejected:
    if isinstance(held, list):
        return tuple(Measurement(**time) for time in held)
    return Rejected.of(held["rejected"])
