"""Run as a program, without the interpreter: compiles kernels of an emitted module for a GPU that need not be there.

    python compile_only.py MODULE.py GPU SIZES    GPU such as nvidia-h200, SIZES a JSON list of [Z, Hq, Hk, Sq, Sk]

The module's own launcher is called, so that Triton's JIT specialises as it would on that GPU. Prints a JSON list of
{"kernel", "sizes", "constexprs", "error"}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from triton.runtime import driver

from flashgen.compiler.crosscompile import _driver
from flashgen.compiler.load import load_file
from flashgen.hardware.lookup import find_gpu


def compile_rule(module: ModuleType, rule: Any, sizes: list[int]) -> dict[str, Any]:
    batch, heads_q, heads_kv, seqlen_q, seqlen_k = sizes
    kernel, run = rule.config.kernel, type(rule.config.kernel).run
    kernel.run = lambda *args, **kwargs: run(kernel, *args, **kwargs | {"warmup": True})
    shapes = [(heads_q, seqlen_q, rule.head_dim), (heads_kv, seqlen_k, rule.head_dim)]
    shapes += [(heads_kv, seqlen_k, rule.head_dim_v), (heads_q, seqlen_q, rule.head_dim_v)]
    q, k, v, out = (torch.empty(batch, *shape, dtype=rule.dtypes[0]) for shape in shapes)
    lse = torch.empty(batch, heads_q, seqlen_q)
    report = {"kernel": kernel.__name__, "sizes": sizes, "error": None}
    report["constexprs"] = [parameter.name for parameter in kernel.params if parameter.is_constexpr]
    try:
        module._execute(rule, q, k, v, out, lse, 0.25, 3, 2, 15.0)
    except Exception as error:  # what the compiler raises is the finding
        report["error"] = f"{type(error).__name__}: {error}"
    finally:
        del kernel.run
    return report


def main(path: str, gpu: str, sizes: str) -> None:
    driver.set_active(_driver(find_gpu(gpu)))
    module = load_file(Path(path), Path(path).stem)
    rules = sum((rules for _, rules in module.TUNED), ()) + module.PORTABLE
    print(json.dumps([compile_rule(module, rule, size) for rule in rules for size in json.loads(sizes)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
