"""The real compiler for a GPU that need not be there: exact shared bytes, registers and spills.

The candidate's own launcher runs on CPU tensors under a driver that names the target and starts nothing. Triton's JIT
then derives signature and specialisation itself, so the binary is the one that the GPU's own JIT would build.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from multiprocessing.forkserver import ensure_running
from types import ModuleType
from typing import Any

from flashgen.codegen.candidate import candidate_source
from flashgen.compiler.binary import resources_of
from flashgen.compiler.cache import digest, recall, remember
from flashgen.compiler.classify import compile_failure
from flashgen.compiler.invoke import all_rules, call_of
from flashgen.compiler.known_bad import bad_key, known_bad, note_bad
from flashgen.compiler.load import load_source
from flashgen.compiler.toolchain import toolchain
from flashgen.config import KernelConfig
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Reason, Rejected, Resources
from flashgen.spec import AttentionSpec, Workload

# Sizes that specialise as real ones do: multiples of 16, nothing equal to 1.
_SIZES = Workload(batch=2, heads_q=16, heads_kv=2, seqlen_q=1024, seqlen_k=1024)
_BOUNDS = (256, 256)
_LONGEST_S = 180  # a kernel takes the compiler a second or two; twenty where it is large and every core is taken

_Pending = Future[Resources | Rejected]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """What is compiled at once: the kernels of rule number `rule` (tuned ones first) of an emitted module, for `spec`.

    `name` is the rule's, for messages.
    """

    source: str
    spec: AttentionSpec
    name: str
    rule: int = 0


def unit_of(spec: AttentionSpec, config: KernelConfig) -> Unit:
    """A candidate, as the only rule of a module of its own."""
    return Unit(source=candidate_source(spec, config), spec=spec, name=config.key)


def compile_unit(unit: Unit, target: GpuTarget) -> Resources | Rejected:
    """Compiles one rule for `target` in this process, which must not run under Triton's interpreter."""
    key = _key(unit, target)
    if (known := recall(key)) is not None:
        return known
    answer = _compile(unit, target)
    remember(key, answer)
    return answer


def compile_many(
    pairs: Sequence[tuple[AttentionSpec, KernelConfig]], target: GpuTarget, jobs: int
) -> Iterator[tuple[int, Resources | Rejected]]:
    """`compile_units` of candidates."""
    return compile_units([unit_of(spec, config) for spec, config in pairs], target, jobs)


def compile_units(units: Sequence[Unit], target: GpuTarget, jobs: int) -> Iterator[tuple[int, Resources | Rejected]]:
    """(index, answer) of every unit, as each is done, from `jobs` processes; known answers come first. The compilers
    begin at once, before the first answer is asked for.

    A compiler that crashes, or takes minutes, takes its process along: the units it held are tried once more, each
    alone. One that does it again is not tried anymore (see known_bad).
    """
    known: dict[int, Resources | Rejected] = {}
    futures: dict[_Pending, int] = {}
    for index, unit in enumerate(units):
        if (answer := recall(_key(unit, target)) or known_bad(_bad_key(unit, target))) is not None:
            known[index] = answer
        else:
            futures[_submit(unit, target, jobs)] = index
    return chain(known.items(), _answers(units, futures, target, jobs))


def _answers(
    units: Sequence[Unit], futures: Mapping[_Pending, int], target: GpuTarget, jobs: int
) -> Iterator[tuple[int, Resources | Rejected]]:
    lost: list[int] = []
    for future in as_completed(futures):
        try:
            yield futures[future], future.result()
        except BrokenProcessPool:
            lost.append(futures[future])
    for index in lost:
        yield index, _alone(units[index], target, jobs)


def _alone(unit: Unit, target: GpuTarget, jobs: int) -> Resources | Rejected:
    try:
        return _submit(unit, target, jobs).result()
    except BrokenProcessPool:
        detail = f"the compiler crashed on {unit.name}, or took more than {_LONGEST_S} s"
        rejected = Rejected(reason=Reason.CRASHED, detail=detail)
        note_bad(_bad_key(unit, target), rejected)
        return rejected


def _submit(unit: Unit, target: GpuTarget, jobs: int) -> _Pending:
    try:
        return _pool(jobs).submit(_compile_in_time, unit, target, _LONGEST_S)
    except BrokenProcessPool:  # by a unit that was submitted before
        _pool.cache_clear()
        return _pool(jobs).submit(_compile_in_time, unit, target, _LONGEST_S)


def _compile_in_time(unit: Unit, target: GpuTarget, longest_s: int) -> Resources | Rejected:
    """In a process of the pool: the alarm ends it, whatever the compiler does."""
    signal.alarm(longest_s)
    try:
        return compile_unit(unit, target)
    finally:
        signal.alarm(0)


def start_compilers() -> None:
    """Begins to import what compilers need, and returns at once. They begin by themselves when there is work, but then
    the first answer is seconds later."""
    _context()
    ensure_running()


@lru_cache(maxsize=1)
def _pool(jobs: int) -> ProcessPoolExecutor:
    """The compiler processes, kept for the next batch."""
    return ProcessPoolExecutor(jobs, _context(), _prepare, (_environment(),))


def _environment() -> dict[str, str]:
    """This process's, but for Triton's interpreter, under which nothing compiles."""
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}


def _context() -> BaseContext:
    """Processes are forked from one that has imported torch and triton and done nothing else: dozens that each import
    them take longer than their kernels do."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["flashgen.compiler.imported"])
    return context


def _prepare(environment: dict[str, str]) -> None:
    """In a fresh process, which gets the `environment` of the one that asks.

    The compiler writes whole programs to stderr when it refuses one; its exception says what matters. Ctrl-C is for the
    process that asked. What launches and times kernels meanwhile comes first.
    """
    os.environ.clear()
    os.environ.update(environment)
    import flashgen.compiler.imported  # noqa: F401 - if the process that this was forked from could not

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(10)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _key(unit: Unit, target: GpuTarget) -> str:
    return digest(unit.source, str(unit.rule), target.arch, toolchain().triton)


def _bad_key(unit: Unit, target: GpuTarget) -> str:
    return bad_key(unit.source, target, "compile", str(unit.rule))


def _compile(unit: Unit, target: GpuTarget) -> Resources | Rejected:
    from triton.runtime import driver

    driver.set_active(_driver(target))
    module = load_source(unit.source)
    try:
        return worst_of([resources_of(compiled) for compiled in _warm_up(module, unit)])
    except Exception as error:  # whatever the compiler raises is the candidate's failure
        return compile_failure(error)


def worst_of(kernels: Sequence[Resources]) -> Resources:
    """What the most demanding of one candidate's kernels needs, resource by resource."""
    return Resources(
        shared_bytes=max(each.shared_bytes for each in kernels),
        registers=max(each.registers for each in kernels),
        spill_bytes=max(each.spill_bytes for each in kernels),
        num_warps=max(each.num_warps for each in kernels),
    )


def _warm_up(module: ModuleType, unit: Unit) -> list[Any]:
    """The CompiledKernels that the unit's rule would launch."""
    from triton.runtime.jit import JITFunction

    compiled: list[Any] = []
    for kernel in vars(module).values():
        if isinstance(kernel, JITFunction):
            kernel.run = _compile_only(kernel, compiled)
            kernel.device_caches.clear()  # else a process that compiled this source before answers for that target
    call_of(module, all_rules(module)[unit.rule], unit.spec, _SIZES, "cpu", _BOUNDS, with_dbias=True)()
    return compiled


def _compile_only(kernel: Any, compiled: list[Any]) -> Any:
    run = type(kernel).run

    def compile_only(*args: Any, **kwargs: Any) -> None:
        compiled.append(run(kernel, *args, **kwargs | {"warmup": True}))

    return compile_only


def _driver(target: GpuTarget) -> Any:
    """A triton driver that names a target and cannot launch."""
    from triton.backends.compiler import GPUTarget as TritonTarget
    from triton.backends.driver import DriverBase

    arch = ("cuda", target.capability, 32) if target.is_nvidia else ("hip", target.arch, target.warp_size)

    class NamesTarget(DriverBase):  # type: ignore[misc]
        def __init__(self) -> None:
            pass

        @classmethod
        def is_active(cls) -> bool:
            return True

        def map_python_to_cpp_type(self, ty: str) -> str:
            return ty

        def get_current_target(self) -> Any:
            return TritonTarget(*arch)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int = 0) -> int:
            return 0

        def get_active_torch_device(self) -> Any:
            import torch

            return torch.device("cpu")

        def get_benchmarker(self) -> Any:
            raise NotImplementedError("nothing runs here")

    return NamesTarget()
