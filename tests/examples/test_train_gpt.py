"""The training example, as a toy: on an emitted module, on wrong attention, and its command."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import triton
from torch import Tensor

from flashgen.codegen.module import ModuleContent, Row
from flashgen.compiler.load import load_file
from flashgen.families import TlBackwardConfig
from flashgen.spec import AttentionSpec
from tests.kernels.emission import Emitter, content_of, rows_of

SCRIPT = Path(__file__).parents[2] / "examples" / "train_gpt.py"
HEAD_DIM = 16
CPU = torch.device("cpu")
# With a signature of the contract, so that the command can be tried without a kernel.
STAND_IN = """
from torch.nn.functional import scaled_dot_product_attention

def flash_attention(q, k, v, *, causal, layout):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal={causal}).transpose(1, 2)
"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other over matrices this small take longer than the training."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load_file(SCRIPT, "train_gpt_example")


@pytest.fixture
def toy(example: ModuleType) -> Any:
    return replace(example.TOY, dtype="fp32", head_dim=HEAD_DIM)


def content() -> ModuleContent:
    """Causal attention, forward and backward."""
    tiles = {"BLOCK_M": 32, "BLOCK_N": 16, "num_warps": 4, "num_stages": 1}
    dq_tiles = {"BLOCK_M_DQ": 32, "BLOCK_N_DQ": 16, "num_warps_dq": 4, "num_stages_dq": 1}
    backward = Row(
        spec=AttentionSpec.of_variant("causal", dtype="fp32", head_dim=HEAD_DIM, op="backward"),
        dtypes=("fp32",),
        config=TlBackwardConfig(**tiles, **dq_tiles),
    )
    return content_of((*rows_of(("fp32",), HEAD_DIM, variants=("causal",)), backward))


def doubled_gradient(x: Tensor) -> Tensor:
    return 2 * x - x.detach()


def test_an_emitted_module_learns_what_sdpa_does(example: ModuleType, toy: Any, emitter: Emitter) -> None:
    curves = example.train_all(toy, example.flashgen(emitter.load(content()), 0.0), CPU)
    document = example.report(toy, curves, {})
    losses = curves["flashgen"].losses
    assert len(losses) == toy.steps
    assert losses[-1] < losses[0] - 0.1
    assert losses == pytest.approx(curves["SDPA math"].losses, abs=1e-5)
    assert document["within_noise"]
    assert document["allowed_difference"] < 1e-5
    assert document["difference_from_sdpa_math"]["nudged"] > 0


def not_causal(example: ModuleType, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    # Flipped twice, the mask lets each query see the keys after it.
    return example.sdpa_fused(q.flip(1), k.flip(1), v.flip(1), 0.0).flip(1)


def wrong_scale(example: ModuleType, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return example.sdpa_fused(1.01 * q, k, v, 0.0)


def wrong_dq(example: ModuleType, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return example.sdpa_fused(doubled_gradient(q), k, v, 0.0)


def no_dk(example: ModuleType, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return example.sdpa_fused(q, k.detach(), v, 0.0)


def nan(example: ModuleType, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return example.sdpa_fused(q, k, math.nan * v, 0.0)


@pytest.mark.parametrize("wrong", [not_causal, wrong_scale, wrong_dq, no_dk, nan], ids=lambda f: f.__name__)
def test_wrong_attention_is_outside_the_noise(example: ModuleType, toy: Any, wrong: Any) -> None:
    curves = example.train_all(toy, lambda *qkv: wrong(example, *qkv), CPU)
    assert not example.report(toy, curves, {})["within_noise"]


def test_with_dropout_the_masks_are_noise(example: ModuleType, toy: Any) -> None:
    setup = replace(toy, dropout=0.2)
    attend = lambda *qkv: example.sdpa_math(*qkv, dropout=0.2)  # noqa: E731
    curves = example.train_all(setup, attend, CPU)
    document = example.report(setup, curves, {})
    assert document["difference_from_sdpa_math"]["flashgen"] > 1e-4
    assert document["within_noise"]


@pytest.mark.parametrize(("causal", "code"), [(True, 0), (False, 1)])
def test_the_command(example: ModuleType, tmp_path: Path, causal: bool, code: int) -> None:
    module, out = tmp_path / "module.py", tmp_path / "new" / "out"
    module.write_text(STAND_IN.format(causal=causal))
    assert example.main(["--toy", "--module", str(module), "--dtype", "fp32", "--out", str(out)]) == code
    document = json.loads((out / "losses.json").read_text())
    assert document["within_noise"] is (code == 0)
    assert {"GPU", "torch", "triton", "command"} <= set(document["facts"])
    assert document["setup"]["dtype"] == "fp32"
    for name in ("flashgen", "SDPA math", "SDPA fused", "nudged"):
        assert len(document["losses"][name]) == document["setup"]["steps"]
        assert document["seconds_per_step"][name] > 0
    assert (out / "losses.png").exists() == bool(find_spec("matplotlib"))


def test_a_figure_is_drawn_from_losses_alone(example: ModuleType, toy: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    curve = example.Curve(losses=(3.0, 2.0), seconds_per_step=0.1)
    curves = dict.fromkeys(("flashgen", "SDPA math", "SDPA fused", "nudged"), curve)
    path = tmp_path / "losses.json"
    path.write_text(json.dumps(example.report(toy, curves, {"GPU": "none", "triton": "3.9.0"})))
    assert example.main(["--draw", str(path)]) == 0
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--module", "{stand_in}", "--dropout", "0.1"], "--dropout is 0.1"),
        (["--module", "{stand_in}", "--dtype", "bf16"], "--dtype is bf16"),
        (["--module", "absent.py"], "absent.py"),
    ],
)
def test_what_it_cannot_do_is_said(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    module = tmp_path / "module.py"
    module.write_text(STAND_IN.format(causal=True))
    assert example.main(["--toy", *(x.format(stand_in=module) for x in arguments)]) == 2
    assert text in capsys.readouterr().err


def test_without_a_gpu_it_names_the_interpreter(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert example.main([]) == 2
    assert "TRITON_INTERPRET=1" in capsys.readouterr().err
