"""The GPU's own process: `python -m flashgen.tune.gpu_serve` proves and times kernels, see gpu_worker.GpuWorker.

Requests: first {"ask": "open", "index", "l2_bytes"}; then those of verify.serve, {"ask": "glance", "units",
"workloads", "best_us"} and {"ask": "time", "units", "workloads"}, with the fields of Units and Workloads. The latter
two are answered by {"times": [...]}, one a unit: a list with the fields of a Measurement for each workload, or
{"rejected": ...}. With those of "time" come {"notes": [...]}: what disturbed it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flashgen.compiler.classify import run_failure
from flashgen.compiler.crosscompile import Unit
from flashgen.compiler.invoke import all_rules, call_of
from flashgen.compiler.load import load_source
from flashgen.outcome import Measurement, Rejected
from flashgen.spec import AttentionSpec, Workload
from flashgen.tune.cuda_clock import CudaClock
from flashgen.tune.gpu_state import disturbances
from flashgen.tune.suite import CANDIDATE
from flashgen.tune.timing import Call, Clock, all_measured, finals, glance, warm_up
from flashgen.verify.probes import Suite
from flashgen.verify.serve import Prover
from flashgen.verify.serving import Reply, Say, serve
from flashgen.verify.suites import SUITES

_Times = tuple[Measurement, ...] | Rejected


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """Where kernels run: torch's name of it, its clock, the suites it proves by, and what disturbs its times now."""

    name: str
    clock: Clock
    suites: Mapping[str, Suite]
    disturbances: Callable[[], tuple[str, ...]]


OpenDevice = Callable[[int, int], Device]


def open_gpu(index: int, l2_bytes: int) -> Device:
    """GPU `index` of this process, whose context this makes."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return Device(
        name=f"cuda:{index}",
        clock=CudaClock(index, l2_bytes),
        suites=SUITES | {CANDIDATE.name: CANDIDATE},
        disturbances=lambda: disturbances(index, None if uuid is None else str(uuid)),
    )


class GpuServer:
    """Answers one request after another, on the device that the first one opens."""

    def __init__(self, say: Say, open_device: OpenDevice = open_gpu) -> None:
        self._say, self._open_device = say, open_device
        self._device: Device | None = None
        self._is_warm = False

    def answer(self, request: dict[str, Any]) -> Reply:
        if request["ask"] == "open":
            import triton  # noqa: F401 - it takes seconds, which are not to be the first candidate's

            self._device = self._open_device(request["index"], request["l2_bytes"])
            return {}
        assert self._device is not None, "the first request opens the device"
        if request["ask"] not in ("glance", "time"):
            prover = Prover(say=self._say, suites=self._device.suites, device=self._device.name)
            return prover.answer(request)
        units = [Unit(**unit | {"spec": AttentionSpec(**unit["spec"])}) for unit in request["units"]]
        workloads = [Workload(**workload) for workload in request["workloads"]]
        try:
            if request["ask"] == "glance":
                (unit,) = units
                return {"times": [_held(self._glance(unit, workloads, request["best_us"], self._device))]}
            times = [_held(one) for one in self._finals(units, workloads, self._device)]
            return {"times": times, "notes": self._device.disturbances()}
        except Exception as error:  # whatever a launch raises is the candidate's failure
            return {"rejected": asdict(run_failure(error))}

    def _glance(self, unit: Unit, workloads: Sequence[Workload], best_us: float, device: Device) -> _Times:
        clock = _Announced(device.clock, self._say, "the short timing")
        calls = [_call(unit, workload, device) for workload in workloads]
        if not self._is_warm:
            self._is_warm = warm_up(clock, calls[0])
        return glance(clock, calls, best_us)

    def _finals(self, units: Sequence[Unit], workloads: Sequence[Workload], device: Device) -> list[_Times]:
        rows: list[list[Measurement | Rejected]] = []
        for workload in workloads:
            clock = _Announced(device.clock, self._say, f"the final timing of {workload.key}")
            calls = [_call(unit, workload, device) for unit in units]
            warm_up(clock, calls[0])
            rows.append(finals(clock, calls))
        return [all_measured(column) for column in zip(*rows)]


class _Announced:
    """A clock that says what it is used for before each use."""

    def __init__(self, clock: Clock, say: Say, doing: str) -> None:
        self._clock, self._say, self._doing = clock, say, doing

    def sample(self, calls: Sequence[Call], rounds: int) -> list[list[float]]:
        self._say(self._doing)
        return self._clock.sample(calls, rounds)


def _call(unit: Unit, workload: Workload, device: Device) -> Call:
    """One launch of the unit's kernels into tensors that are there already."""
    module = load_source(unit.source)
    # A window's bounds are arguments: unbounded, the kernel does the work that its TFLOP/s are counted for.
    return call_of(module, all_rules(module)[unit.rule], unit.spec, workload, device.name, (-1, -1))


def _held(times: _Times) -> list[Any] | dict[str, Any]:
    return {"rejected": asdict(times)} if isinstance(times, Rejected) else [asdict(time) for time in times]


if __name__ == "__main__":
    serve(lambda say: GpuServer(say).answer)
