"""Which device runs what: none without the interpreter, the tensors' own, and inside a graph."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType

import pytest
import torch

from tests.cases.case import case_of
from tests.cases.check import Checker
from tests.cases.conftest import ModuleOf
from tests.kernels.emission import Emitter, content_of, rows_of

ON_THE_CPU = """
import sys
from pathlib import Path
import torch
from flashgen.compiler.load import load_file

module = load_file(Path(sys.argv[1]), "emitted")
x = torch.zeros(1, 4, 1, 16)
for attend in (module.flash_attention, module.flash_attn_func):
    try:
        attend(x, x, x)
    except ValueError as error:
        print(error)
"""


@pytest.mark.case("device-04")
def test_cpu_tensors_without_the_interpreter_are_refused(emitter: Emitter) -> None:
    path = emitter.write(content_of(rows_of(("fp32",), 16)))
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", ON_THE_CPU, str(path)],
        env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == 2 * "q is on cpu; allowed: a GPU, or the CPU under TRITON_INTERPRET=1\n"


@pytest.mark.gpu
@pytest.mark.case("device-01")
def test_tensors_on_another_device_than_the_current_one(module_of: ModuleOf) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs a GPU more: torch finds one")
    case = case_of("device-01").but({"device": None})
    with torch.cuda.device(0):
        checker = Checker(module_of(case, "pointer", on_gpu=True), case, "bshd", device="cuda:1")
        checker.matches()
        assert torch.cuda.current_device() == 0
        with pytest.raises(ValueError, match="k is on cuda:0 and q on cuda:1; allowed: one device"):
            checker.module.flash_attention(checker.inputs.q, checker.inputs.k.to("cuda:0"), checker.inputs.v)


@pytest.mark.gpu
@pytest.mark.case("device-02")
@pytest.mark.parametrize("loads", ["pointer", "tma"])
def test_the_first_call_may_be_inside_a_graph(loads: str, emitter: Emitter) -> None:
    """Nothing is tuned, timed or synchronised on the first call, so that a graph can hold it."""
    if loads == "tma" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("this GPU has no TMA")
    # A tile that no other test uses, so that the module is cold.
    module: ModuleType = emitter.load(content_of(rows_of(("fp16",), 32, block_m=16, block_n=64, tma=loads == "tma")))
    q, k, v = (torch.randn(2, seqlen, 2, 32, device="cuda").half() for seqlen in (1, 64, 64))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = module.flash_attention(q, k, v, return_lse=True)
    for seed in range(2):
        torch.manual_seed(seed)
        for x in (q, k, v):
            x.copy_(torch.randn_like(x))
        graph.replay()
        expected, expected_lse = module.flash_attention(q, k, v, return_lse=True)
        assert torch.equal(out, expected)
        assert torch.equal(lse, expected_lse)
