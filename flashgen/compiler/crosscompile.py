"""The real compiler for a GPU that need not be there: exact shared bytes, registers and spills.

The candidate's own launcher runs on CPU tensors under a driver that names the target and starts nothing. Triton's JIT
then derives signature and specialisation itself, so the binary is the one that the GPU's own JIT would build.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from multiprocessing import get_context
from types import ModuleType
from typing import Any

from flashgen.codegen.candidate import candidate_source
from flashgen.compiler.binary import resources_of
from flashgen.compiler.cache import digest, recall, remember
from flashgen.compiler.classify import compile_failure
from flashgen.compiler.invoke import call_of
from flashgen.compiler.load import load_source
from flashgen.compiler.toolchain import toolchain
from flashgen.config import KernelConfig
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Reason, Rejected, Resources
from flashgen.spec import AttentionSpec, Workload

# Sizes that specialise as real ones do: multiples of 16, nothing equal to 1.
_SIZES = Workload(batch=2, heads_q=4, heads_kv=4, seqlen_q=1024, seqlen_k=1024)
_BOUNDS = (256, 256)


def compile_candidate(spec: AttentionSpec, config: KernelConfig, target: GpuTarget) -> Resources | Rejected:
    """Compiles one candidate for `target` in this process, which must not run under Triton's interpreter."""
    key = _key(source := candidate_source(spec, config), target)
    if (known := recall(key)) is not None:
        return known
    answer = _compile(source, spec, target)
    remember(key, answer)
    return answer


def compile_many(
    pairs: Sequence[tuple[AttentionSpec, KernelConfig]], target: GpuTarget, jobs: int
) -> Iterator[tuple[int, Resources | Rejected]]:
    """(index, answer) of every pair, as each is done, from `jobs` processes; known answers come first.

    A compiler crash takes its process along: the pairs it held are tried once more, each in a process of its own.
    """
    missing = []
    for index, (spec, config) in enumerate(pairs):
        known = recall(_key(candidate_source(spec, config), target))
        if known is None:
            missing.append(index)
        else:
            yield index, known
    lost: list[int] = []
    for index, answer in _pooled(pairs, missing, target, jobs):
        if answer is None:
            lost.append(index)
        else:
            yield index, answer
    for index in lost:
        ((_, answer),) = _pooled(pairs, [index], target, jobs)
        yield index, answer or Rejected(reason=Reason.CRASHED, detail=f"the compiler crashed on {pairs[index][1].key}")


def _pooled(
    pairs: Sequence[tuple[AttentionSpec, KernelConfig]], indices: Iterable[int], target: GpuTarget, jobs: int
) -> Iterator[tuple[int, Resources | Rejected | None]]:
    """(index, answer), with None for pairs whose process died."""
    pool = _pool(jobs)
    futures = {pool.submit(compile_candidate, *pairs[index], target): index for index in indices}
    for future in as_completed(futures):
        try:
            yield futures[future], future.result()
        except BrokenProcessPool:
            _pool.cache_clear()
            yield futures[future], None


@lru_cache(maxsize=1)
def _pool(jobs: int) -> ProcessPoolExecutor:
    """The compiler processes, kept for the next batch: each takes seconds to import torch and triton."""
    return ProcessPoolExecutor(jobs, get_context("spawn"), _prepare)


def _prepare() -> None:
    """In a fresh process, before triton is imported: under its interpreter nothing compiles.

    The compiler writes whole programs to stderr when it refuses one; its exception says what matters.
    """
    os.environ.pop("TRITON_INTERPRET", None)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _key(source: str, target: GpuTarget) -> str:
    return digest(source, target.arch, toolchain().triton)


def _compile(source: str, spec: AttentionSpec, target: GpuTarget) -> Resources | Rejected:
    from triton.runtime import driver

    driver.set_active(_driver(target))
    module = load_source(source)
    try:
        return worst_of([resources_of(compiled) for compiled in _warm_up(module, spec)])
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


def _warm_up(module: ModuleType, spec: AttentionSpec) -> list[Any]:
    """The CompiledKernels that the module's only rule would launch."""
    from triton.runtime.jit import JITFunction

    compiled: list[Any] = []
    for kernel in vars(module).values():
        if isinstance(kernel, JITFunction):
            kernel.run = _compile_only(kernel, compiled)
            kernel.device_caches.clear()  # else a process that compiled this source before answers for that target
    call_of(module, module.PORTABLE[0], spec, _SIZES, "cpu", _BOUNDS, with_dbias=True)()
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
