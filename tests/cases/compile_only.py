"""Run as a program, without the interpreter: compiles kernels of an emitted module for a GPU that need not be there.

    python compile_only.py MODULE.py GPU SIZES    GPU such as nvidia-h200, SIZES a JSON list of [Z, Hq, Hk, Sq, Sk]

The module's own launchers are called, so that Triton's JIT specialises as it would on that GPU. Prints a JSON list of
{"kernel", "sizes", "constexprs", "error"}, one for each kernel that a rule launches.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from triton.runtime import driver
from triton.runtime.jit import JITFunction

from flashgen.compiler.crosscompile import _driver
from flashgen.compiler.invoke import call_of
from flashgen.compiler.load import load_file
from flashgen.hardware.lookup import find_gpu
from flashgen.spec import Dtype, Workload
from flashgen.verify.rules import spec_of

Report = dict[str, Any]
DTYPES: dict[str, Dtype] = {"torch.float16": "fp16", "torch.bfloat16": "bf16", "torch.float32": "fp32"}


def compile_rule(module: ModuleType, rule: Any, sizes: list[int]) -> list[Report]:
    reports: list[Report] = []
    for kernel in vars(module).values():
        if isinstance(kernel, JITFunction):
            kernel.run = compile_only(kernel, sizes, reports)
    workload = Workload(**dict(zip(Workload.__slots__, sizes, strict=True)))
    spec = spec_of(rule, DTYPES[str(rule.dtypes[0])])
    call_of(module, rule, spec, workload, "cpu", (3, 2))()
    return reports


def compile_only(kernel: Any, sizes: list[int], reports: list[Report]) -> Callable[..., None]:
    """What stands in for the kernel's launch: reports what the compiler says."""

    def run(*args: Any, **kwargs: Any) -> None:
        constexprs = [parameter.name for parameter in kernel.params if parameter.is_constexpr]
        report = {"kernel": kernel.__name__, "sizes": sizes, "constexprs": constexprs, "error": None}
        reports.append(report)
        try:
            type(kernel).run(kernel, *args, **kwargs | {"warmup": True})
        except Exception as error:  # what the compiler raises is the finding
            report["error"] = f"{type(error).__name__}: {error}"

    return run


def main(path: str, gpu: str, sizes: str) -> None:
    driver.set_active(_driver(find_gpu(gpu)))
    module = load_file(Path(path), Path(path).stem)
    rules = sum((rules for _, rules in module.TUNED), ()) + module.PORTABLE
    print(
        json.dumps([each for rule in rules for size in json.loads(sizes) for each in compile_rule(module, rule, size)])
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
