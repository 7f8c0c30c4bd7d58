"""The GPU's process on the CPU: kernels are interpreted, and a candidate's own text says how long it takes and what it
does wrong. Run as a program it serves a GpuWorker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from flashgen.compiler import crosscompile
from flashgen.compiler.crosscompile import Unit
from flashgen.config import KernelConfig
from flashgen.spec import AttentionSpec, Workload
from flashgen.tune import gpu_serve
from flashgen.tune.gpu_serve import Device, GpuServer
from flashgen.tune.suite import CANDIDATE
from flashgen.tune.timing import Call
from flashgen.verify.probes import Probe, Suite
from flashgen.verify.serving import Say, serve

TIMED = Workload(batch=1, heads_q=2, heads_kv=2, seqlen_q=48, seqlen_k=48)  # no probe has as many queries
_PROBES = (
    Probe(name="small", shape=(1, 2, 2, 16, 32)),
    Probe(name="rows apart", shape=(2, 2, 1, 17, 37), layout="every_second"),
)

# Statements before and after the launch. `timed` says whether it is one for a time, `calls` counts those.
FAULTS: dict[str, tuple[str, str]] = {
    "segfault": ("os.kill(os.getpid(), 11)", ""),
    "hang": ("time.sleep(1000)", ""),
    "exit": ("if timed: os.write(2, b'ptxas fatal: so it ends'); os._exit(1)", ""),
    "out of memory": ("raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 20.00 GiB.')", ""),
    "illegal access": ("if timed: raise RuntimeError('CUDA error: an illegal memory access was encountered')", ""),
    "unwritten half": ("old = out[:, :, ::2].clone()", "out[:, :, ::2] = old"),
    "unwritten": ("return", ""),
    "race": ("", "out[0, 0, 0, 0] += next(launches) % 2"),
    "accumulates": ("old = out.clone()", "out += old"),
    "dies in the finals": ("if timed and calls == 3: os.kill(os.getpid(), 11)", ""),
}

_PLANTED = """

import itertools, os, time

US = {us}
launches, timed_launches = itertools.count(), itertools.count(1)
_sound = _execute


def _execute(rule, q, k, v, out, *rest, **features):
    timed = q.shape[2] == {length}
    calls = next(timed_launches) if timed else 0
    {before}
    _sound(rule, q, k, v, out, *rest, **features)
    {after}
"""


def planted(us: dict[KernelConfig, float], faults: dict[KernelConfig, str]) -> Callable[..., Unit]:
    """What stands in for `unit_of`: candidates whose text holds their time in microseconds, and their fault."""

    def unit_of(spec: AttentionSpec, config: KernelConfig) -> Unit:
        before, after = FAULTS.get(faults.get(config, ""), ("", ""))
        text = _PLANTED.format(us=us[config], length=TIMED.seqlen_q, before=before or "pass", after=after or "pass")
        unit = crosscompile.unit_of(spec, config)
        return replace(unit, source=unit.source + text)

    return unit_of


@dataclass(frozen=True)
class _Said:
    """A call that says how long it takes."""

    call: Call
    us: float

    def __call__(self) -> object:
        return self.call()


class _Believes:
    """A clock that runs every call once and believes what it says, give or take 0.05%."""

    def sample(self, calls: Sequence[Call], rounds: int) -> list[list[float]]:
        for call in calls:
            call()
        return [[call.us * (1 + (n % 3 - 1) * 5e-4) for n in range(rounds)] for call in calls]  # type: ignore[attr-defined]


def open_cpu(index: int, l2_bytes: int) -> Device:
    suites = {name: Suite(name=name, probes=_PROBES) for name in (CANDIDATE.name, "full")}
    return Device(name="cpu", clock=_Believes(), suites=suites, disturbances=lambda: (f"device {index} is a CPU",))


def server(say: Say) -> GpuServer:
    plain: Any = gpu_serve.call_of

    def call_of(module: ModuleType, *rest: Any) -> _Said:
        return _Said(plain(module, *rest), module.US)

    if plain.__module__ != __name__:  # else it stands in already
        gpu_serve.call_of = call_of  # type: ignore[assignment]
    return GpuServer(say, open_cpu)


if __name__ == "__main__":
    serve(lambda say: server(say).answer)
