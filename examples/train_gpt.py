"""Trains a small GPT with flashgen's attention and with torch's, and says whether the losses differ by more than noise.

    python examples/train_gpt.py --out build/train
    TRITON_INTERPRET=1 python examples/train_gpt.py --toy --out build/train     # without a GPU

The text is the language reference that ships with Python (pydoc_data.topics), its bytes are the tokens. The same GPT is
trained four times:

    flashgen      flash_attention of an emitted module
    SDPA math     torch's attention that materialises the scores: what the others are compared with
    SDPA fused    the kernel that torch picks
    nudged        SDPA math from weights that are changed by no more than the dtype would round them by

All see the same batches. Rounding alone parts the last two from SDPA math, which is the noise: flashgen may be ALLOWED
times as far from SDPA math as the farther of the two. Writes losses.json, and losses.png where matplotlib is installed.
Exits 1 if flashgen is outside the noise, 2 if it cannot run.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import math
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from statistics import fmean
from types import ModuleType
from typing import Any

import torch
import triton
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # causal attention of q, k, v [Z, S, H, D], in their layout

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
LAST = 50  # steps that are compared: by then, differences have had time to grow
ALLOWED = 2.0  # times the noise, which is itself a draw


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The model and its training; `dtype` is that of the matmuls, weights are fp32."""

    layers: int = 6
    heads: int = 8
    head_dim: int = 64
    seqlen: int = 512
    batch: int = 32
    steps: int = 300
    learning_rate: float = 5e-4
    dropout: float = 0.0  # of attention's probabilities
    dtype: str = "bf16"

    @property
    def width(self) -> int:
        return self.heads * self.head_dim


TOY = Setup(layers=1, heads=2, seqlen=32, batch=2, steps=16, dtype="fp16")


# ---- Attention ----


def flashgen(module: ModuleType, dropout: float) -> Attend:
    """The module's attention. Raises ValueError where it would have to drop probabilities and cannot."""
    if dropout and "dropout_p" not in inspect.signature(module.flash_attention).parameters:
        raise ValueError(f"--dropout is {dropout}; {module.__name__} holds no dropout: allowed: 0")
    options = {"dropout_p": dropout} if dropout else {}
    return partial(module.flash_attention, causal=True, layout="bshd", **options)


def sdpa_fused(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True).transpose(1, 2)


def sdpa_math(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return sdpa_fused(q, k, v, dropout)


# ---- Model ----


class Block(nn.Module):
    def __init__(self, setup: Setup, attend: Attend) -> None:
        super().__init__()
        width = setup.width
        self.heads, self.attend = setup.heads, attend
        self.qkv = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 3 * width))
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        x = x + self.out(self.attend(q, k, v).flatten(2))
        return x + self.mlp(x)


class Gpt(nn.Module):
    def __init__(self, setup: Setup, attend: Attend) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, setup.width), nn.Embedding(setup.seqlen, setup.width)
        self.blocks = nn.Sequential(*(Block(setup, attend) for _ in range(setup.layers)))
        self.head = nn.Sequential(nn.LayerNorm(setup.width), nn.Linear(setup.width, 256))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [Z, S, 256] of the byte after each of `tokens` [Z, S]."""
        return self.head(self.blocks(self.tokens(tokens) + self.positions.weight))


# ---- Training ----


@dataclass(frozen=True)
class Curve:
    losses: tuple[float, ...]  # cross-entropy a step, nats a byte
    seconds_per_step: float  # without the first step, which compiles

    @property
    def final(self) -> float:
        return fmean(self.losses[-LAST:])

    def distance(self, other: Curve) -> float:
        """The mean difference of the losses over the last steps."""
        return fmean(abs(a - b) for a, b in zip(self.losses[-LAST:], other.losses[-LAST:]))


def batches(setup: Setup, device: torch.device) -> Tensor:
    """Windows of the text, [steps, Z, S + 1]: the last S bytes of each are the targets of the first S."""
    text = torch.tensor(list("\n".join(topics.values()).encode()), device=device)
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(len(text) - setup.seqlen, (setup.steps, setup.batch, 1), generator=generator).to(device)
    return text[starts + torch.arange(setup.seqlen + 1, device=device)]


@torch.no_grad()
def nudge(model: nn.Module, eps: float) -> None:
    """Multiplies each weight by a random number from 1 - eps / 2 to 1 + eps / 2."""
    for weight in model.parameters():
        weight *= 1 + eps * (torch.rand_like(weight) - 0.5)


def train(setup: Setup, attend: Attend, device: torch.device, *, seed: int, nudged: bool = False) -> Curve:
    """Weights and batches are the same for every `seed`, which is that of the nudge and of dropout."""
    torch.manual_seed(0)
    model = Gpt(setup, attend).to(device)
    torch.manual_seed(seed)
    if nudged:
        nudge(model, torch.finfo(DTYPES[setup.dtype]).eps)
    optimiser = torch.optim.AdamW(model.parameters(), lr=setup.learning_rate)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimiser, 0.1, total_iters=1 + setup.steps // 10)
    scaler = torch.amp.GradScaler(device.type, enabled=setup.dtype == "fp16")
    losses = []
    for step, windows in enumerate(batches(setup, device)):
        with torch.autocast(device.type, DTYPES[setup.dtype], enabled=setup.dtype != "fp32"):
            logits = model(windows[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())
        optimiser.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimiser)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimiser)
        scaler.update()
        warm_up.step()
        losses.append(loss.detach())
        if step == 0:
            loss.item()  # waits for the device
            begin = time.perf_counter()
    values = tuple(torch.stack(losses).tolist())
    return Curve(values, (time.perf_counter() - begin) / max(setup.steps - 1, 1))


def train_all(setup: Setup, attend: Attend, device: torch.device) -> dict[str, Curve]:
    """The four curves by name, flashgen's by `attend`. With dropout each drops other probabilities: noise, too."""
    materialised: Attend = partial(sdpa_math, dropout=setup.dropout)
    fused: Attend = partial(sdpa_fused, dropout=setup.dropout)
    return {
        "flashgen": train(setup, attend, device, seed=1),
        "SDPA math": train(setup, materialised, device, seed=2),
        "SDPA fused": train(setup, fused, device, seed=3),
        "nudged": train(setup, materialised, device, seed=4, nudged=True),
    }


# ---- Report ----


def report(setup: Setup, curves: dict[str, Curve], facts: dict[str, str]) -> dict[str, Any]:
    """What losses.json holds."""
    reference = curves["SDPA math"]
    differences = {name: curve.distance(reference) for name, curve in curves.items()}
    rounding = torch.finfo(torch.float32).eps * reference.final  # of the losses themselves
    allowed = ALLOWED * max(differences["nudged"], differences["SDPA fused"], rounding)
    return {
        "facts": facts,
        "setup": asdict(setup),
        "compared_steps": min(LAST, setup.steps),
        "final_loss": {name: curve.final for name, curve in curves.items()},
        "seconds_per_step": {name: curve.seconds_per_step for name, curve in curves.items()},
        "difference_from_sdpa_math": differences,
        "allowed_difference": allowed,
        "within_noise": differences["flashgen"] <= allowed,  # False for NaN
        "losses": {name: curve.losses for name, curve in curves.items()},
    }


def as_text(document: dict[str, Any]) -> str:
    steps = document["compared_steps"]
    lines = [f"{'':12}{'ms a step':>10}{'loss':>10}{'from SDPA math':>16}   (means of the last {steps} steps)"]
    for name, loss in document["final_loss"].items():
        milliseconds = 1e3 * document["seconds_per_step"][name]
        lines.append(f"{name:12}{milliseconds:10.1f}{loss:10.4f}{document['difference_from_sdpa_math'][name]:16.1e}")
    verdict = "within noise" if document["within_noise"] else "NOT within noise"
    return "\n".join([*lines, f"flashgen is {verdict}: {document['allowed_difference']:.1e} from SDPA math is allowed"])


def draw(document: dict[str, Any], path: Path) -> None:
    """The curves, and below them their differences from SDPA math."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    losses = document["losses"]
    reference = losses["SDPA math"]
    styles = {"nudged": ("#bbbbbb", "-"), "SDPA fused": ("#1f77b4", "-"), "flashgen": ("#d62728", "-")}
    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 6.5), dpi=130, sharex=True, height_ratios=(3, 2))
    for name, (colour, style) in {**styles, "SDPA math": ("black", ":")}.items():
        above.plot(losses[name], color=colour, ls=style, lw=1.2, label=name)
    for name, (colour, style) in styles.items():
        distances = [abs(a - b) for a, b in zip(losses[name], reference)]
        means = [fmean(distances[max(0, step - 9) : step + 1]) or math.nan for step in range(len(distances))]
        below.plot(means, color=colour, ls=style, lw=1.2, label=f"{name} - SDPA math")
    steps = (len(reference) - document["compared_steps"], len(reference) - 1)
    below.hlines(document["allowed_difference"], *steps, color="black", ls="--", lw=0.9, label="allowed, on average")
    setup, facts = document["setup"], document["facts"]
    above.set_title(
        f"GPT of {setup['layers']} layers, {setup['heads']} heads of {setup['head_dim']}, {setup['batch']} x "
        f"{setup['seqlen']} bytes a step, {setup['dtype']}, {facts['GPU']}, triton {facts['triton']}",
        fontsize=8,
    )
    above.set_ylabel("loss, nats a byte")
    below.set(xlabel="step", ylabel="|difference of losses|, mean of 10 steps", yscale="log")
    above.legend(fontsize=7)
    below.legend(fontsize=7, loc="lower right", ncols=2)
    figure.tight_layout()
    figure.savefig(path)


# ---- Command ----


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ValueError(f"--module is {path}; allowed: a file that `flashgen emit` wrote")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_device(dtype: str) -> torch.device:
    """The GPU, or the CPU for Triton's interpreter."""
    if triton.knobs.runtime.interpret:
        if dtype == "bf16":
            raise ValueError("--dtype is bf16, whose arithmetic is wrong in Triton's interpreter; allowed: fp16, fp32")
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda")
    raise ValueError("torch finds no GPU; without one: TRITON_INTERPRET=1 python examples/train_gpt.py --toy")


def facts_of(device: torch.device, module: ModuleType, arguments: list[str]) -> dict[str, str]:
    return {
        "GPU": "none, in Triton's interpreter" if device.type == "cpu" else torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": sys.version.split()[0],
        "module": Path(str(module.__file__)).name,
        "command": shlex.join(["python", "examples/train_gpt.py", *arguments]),
    }


def parse(arguments: list[str]) -> tuple[argparse.Namespace, Setup]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    module = Path(__file__).with_name("flash_attention_h200.py")
    parser.add_argument("--module", type=Path, default=module, help="emitted file to train with [%(default)s]")
    parser.add_argument("--toy", action="store_true", help="a model small enough for Triton's interpreter")
    parser.add_argument("--dtype", choices=DTYPES, help="dtype of autocast, or fp32 for none [bf16; toy: fp16]")
    parser.add_argument("--head-dim", type=int, help="of q, k and v [64]")
    parser.add_argument("--steps", type=int, help="optimiser steps [300; toy: 16]")
    parser.add_argument("--dropout", type=float, help="share of attention's probabilities that are dropped [0]")
    parser.add_argument("--out", type=Path, default=Path("build/train"), help="directory to write to [%(default)s]")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="draw an earlier losses.json, and train nothing")
    options = parser.parse_args(arguments)
    given = {name: getattr(options, name) for name in ("dtype", "head_dim", "steps", "dropout")}
    chosen = {name: value for name, value in given.items() if value is not None}
    return options, replace(TOY if options.toy else Setup(), **chosen)


def main(arguments: list[str]) -> int:
    options, setup = parse(arguments)
    if options.draw:
        draw(json.loads(options.draw.read_text()), options.draw.with_suffix(".png"))
        return 0
    try:
        device, module = find_device(setup.dtype), load(options.module)
        attend = flashgen(module, setup.dropout)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if device.type == "cpu":
        torch.set_num_threads(1)  # sharing a toy's small matrices among threads takes longer than multiplying them
    curves = train_all(setup, attend, device)
    document = report(setup, curves, facts_of(device, module, arguments))
    print(as_text(document))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "losses.json").write_text(json.dumps(document, indent=1) + "\n")
    if importlib.util.find_spec("matplotlib"):
        draw(document, options.out / "losses.png")
    else:
        print(f"no losses.png: pip install matplotlib, then --draw {options.out / 'losses.json'}")
    return 0 if document["within_noise"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
