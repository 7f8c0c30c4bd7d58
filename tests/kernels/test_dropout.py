"""Dropout: kernels keep the very pairs that dropout_mask says, and out and gradients are what is left of these."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import pytest
import torch

from flashgen.verify.reference import Features, Scoring, reference, reference_gradients
from tests.kernels.emission import Emitter, backward_rows_of, content_of, rows_of, training_rows_of

HEAD_DIM = 16
VARIANTS = ("full", "full_dropout", "causal", "causal_dropout", "window_dropout", "window_softcap_dropout")


@pytest.fixture(scope="module")
def module(emitter: Emitter) -> ModuleType:
    return emitter.load(content_of(training_rows_of(("fp32",), HEAD_DIM, variants=VARIANTS)))


def tensors(
    seqlen_q: int = 20, seqlen_k: int = 33, batch: int = 2, heads: tuple[int, int] = (4, 2), device: str = "cpu"
) -> dict[str, torch.Tensor]:
    """q, k and v, in layout "bshd"."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"q": (seqlen_q, heads[0]), "k": (seqlen_k, heads[1]), "v": (seqlen_k, heads[1])}
    drawn = {x: torch.randn(batch, *shape, HEAD_DIM, generator=generator) for x, shape in shapes.items()}
    return {name: x.to(device) for name, x in drawn.items()}


def seed_of(seed: int, offset: int = 0) -> torch.Tensor:
    return torch.tensor([seed, offset])


def kept_by_the_kernel(
    module: ModuleType, seed: torch.Tensor, shape: tuple[int, int, int, int], dropout_p: float, **options: Any
) -> torch.Tensor:
    """Which pairs a call keeps, bool [Z, Hq, Sq, Sk]: of equal scores, with one key a column of v."""
    batch, heads, seqlen_q, seqlen_k = shape
    q, k = torch.zeros(batch, heads, seqlen_q, HEAD_DIM), torch.zeros(batch, heads, seqlen_k, HEAD_DIM)
    parts = []
    for start in range(0, seqlen_k, HEAD_DIM):
        v = torch.zeros(batch, heads, seqlen_k, HEAD_DIM)
        for column in range(min(HEAD_DIM, seqlen_k - start)):
            v[:, :, start + column, column] = 1.0
        parts.append(
            module.flash_attention(q, k, v, dropout_p=dropout_p, dropout_seed=seed, layout="bhsd", **options) != 0
        )
    return torch.cat(parts, -1)[..., :seqlen_k]


# ---- The generator ----

# Counter, key, and the first word of Philox4x32-10: the known answers of Random123, philox.h's authors.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), 0x6627E8D5),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, 0x408F276D),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), 0xD16CFE09),
]


@pytest.mark.parametrize(("counter", "key", "word"), KNOWN, ids=["zeros", "ones", "pi"])
def test_the_rows_bits_are_philox(
    counter: tuple[int, ...], key: tuple[int, ...], word: int, module: ModuleType
) -> None:
    words = module._philox(*(tuple(map(torch.tensor, each)) for each in (counter, key)))
    assert words.item() == word


SEEDS = [(0, 0), (1, 0), (0, 1), (-1, -1), (2**62 - 1, 2**61 + 5), (-(2**63), 2**63 - 1), (2**32, 2**32)]


@pytest.mark.parametrize("seed", SEEDS, ids=str)
def test_kernels_keep_what_the_mask_says(seed: tuple[int, int], module: ModuleType) -> None:
    shape = (2, 3, 37, 41)
    mask = module.dropout_mask(seed_of(*seed), *shape, 0.4)
    assert mask.dtype == torch.bool
    assert torch.equal(kept_by_the_kernel(module, seed_of(*seed), shape, 0.4), mask)


@pytest.mark.parametrize("dropout_p", [1e-10, 0.001, 0.1, 1 / 3, 0.5, 0.9, 0.999, 1.0 - 2.0**-24])
def test_kernels_and_mask_round_dropout_p_alike(dropout_p: float, module: ModuleType) -> None:
    shape = (1, 1, 64, 64)
    mask = module.dropout_mask(seed_of(7), *shape, dropout_p, "cpu")
    assert torch.equal(kept_by_the_kernel(module, seed_of(7), shape, dropout_p), mask)


# ---- What a mask does not depend on ----


@pytest.mark.case("grad-08")
def test_a_mask_does_not_depend_on_tiles(module: ModuleType, emitter: Emitter) -> None:
    """Same seed, same pairs, whatever the tiles of either pass; another seed, other pairs."""
    variants = ("full_dropout",)
    forward = rows_of(("fp32",), HEAD_DIM, variants=variants, block_m=16, block_n=64)
    other = emitter.load(
        content_of((*forward, *backward_rows_of(("fp32",), HEAD_DIM, variants=variants, kept=16, step=32)))
    )
    results = []
    for each, seed in ((module, 5), (module, 5), (other, 5), (module, 6)):
        x = {name: value.requires_grad_() for name, value in tensors().items()}
        out = each.flash_attention(**x, dropout_p=0.5, dropout_seed=seed_of(seed))
        results.append([out.detach(), *torch.autograd.grad(out.square().sum(), list(x.values()))])
    first, again, tiled, reseeded = results
    assert all(map(torch.equal, first, again))
    for one, two in zip(first, tiled, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-4, atol=2e-5)
    assert not torch.allclose(first[0], reseeded[0], atol=0.1)


def test_a_mask_does_not_depend_on_what_a_window_cuts_off(module: ModuleType) -> None:
    shape, seed = (1, 2, 10, 70), seed_of(11)
    kept = kept_by_the_kernel(module, seed, shape, 0.5, window=(12, 3))
    ahead = torch.arange(70)[None, :] - torch.arange(10)[:, None] - 60
    seen = (ahead >= -12) & (ahead <= 3)
    assert torch.equal(kept, module.dropout_mask(seed, *shape, 0.5) & seen)


# ---- Seeds that are drawn ----


def test_torchs_generator_draws_the_seed(module: ModuleType) -> None:
    x = tensors()

    def attend() -> torch.Tensor:
        out: torch.Tensor = module.flash_attention(**x, dropout_p=0.5)
        return out

    torch.manual_seed(1)
    first, second = attend(), attend()
    torch.manual_seed(1)
    assert torch.equal(attend(), first)
    assert torch.equal(attend(), second)
    assert not torch.equal(first, second)


def test_a_call_that_drops_nothing_draws_nothing(module: ModuleType) -> None:
    x = tensors()
    state = torch.get_rng_state()
    out = module.flash_attention(**x, dropout_p=0.0)
    module.flash_attention(**x, dropout_p=0.5, dropout_seed=seed_of(1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(out, module.flash_attention(**x))


# ---- What is left ----

CALLS: dict[str, tuple[dict[str, Any], Scoring]] = {
    "full": ({}, Scoring(scale=0.25)),
    "causal": ({"causal": True}, Scoring(scale=0.25, right=0)),
    "window": ({"window": (6, 2)}, Scoring(scale=0.25, left=6, right=2)),
    "softcap": ({"causal": True, "softcap": 3.0}, Scoring(scale=0.25, right=0, softcap=3.0)),
}


@pytest.mark.parametrize("call", CALLS)
def test_out_and_gradients_are_those_of_the_mask(call: str, module: ModuleType) -> None:
    options, scoring = CALLS[call]
    x = {name: value.requires_grad_() for name, value in tensors().items()}
    keep = module.dropout_mask(seed_of(9), 2, 4, 20, 33, 0.25)
    out, lse = module.flash_attention(**x, **options, dropout_p=0.25, dropout_seed=seed_of(9), return_lse=True)
    features = Features(keep=keep, dropout_p=0.25)
    q, k, v = (each.detach().transpose(1, 2) for each in x.values())
    wanted, wanted_lse = reference(q, k, v, scoring, features)
    torch.testing.assert_close(out.detach().transpose(1, 2).double(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=1e-5, atol=1e-5)
    dout = torch.randn(2, 4, 20, HEAD_DIM, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad(out, list(x.values()), dout.transpose(1, 2))
    for gradient, one in zip(found, reference_gradients(q, k, v, dout, scoring, features).values(), strict=True):
        torch.testing.assert_close(gradient.transpose(1, 2).double(), one, rtol=1e-4, atol=2e-5)


def test_the_lse_drops_nothing(module: ModuleType) -> None:
    x = tensors()
    _, lse = module.flash_attention(**x, causal=True, dropout_p=0.9, return_lse=True)
    assert torch.equal(lse, module.flash_attention(**x, causal=True, return_lse=True)[1])


def test_the_mean_over_seeds_is_attention_without_dropout(module: ModuleType) -> None:
    x = tensors(4, 9, 1, (2, 2))
    outs = torch.stack([module.flash_attention(**x, dropout_p=0.5, dropout_seed=seed_of(seed)) for seed in range(60)])
    allowed = 6 * outs.std(0) / math.sqrt(len(outs))
    assert ((outs.mean(0) - module.flash_attention(**x)).abs() <= allowed).all()


# ---- What is refused ----

WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "one": ({"dropout_p": 1.0}, ["dropout_p", "1.0", "below 1"]),
    "one-in-fp32": ({"dropout_p": 1.0 - 1e-9}, ["dropout_p", "0.999999999", "below 1"]),
    "negative": ({"dropout_p": -0.1}, ["dropout_p", "-0.1", "at least 0"]),
    "nan": ({"dropout_p": math.nan}, ["dropout_p", "nan", "at least 0"]),
    "true": ({"dropout_p": True}, ["dropout_p", "True", "a number"]),
    "text": ({"dropout_p": "0.1"}, ["dropout_p", "'0.1'", "a number"]),
    "none": ({"dropout_p": None}, ["dropout_p", "None", "a number"]),
    "seed-number": ({"dropout_p": 0.1, "dropout_seed": 5}, ["dropout_seed", "int", "torch.Tensor"]),
    "seed-shape": ({"dropout_p": 0.1, "dropout_seed": torch.tensor(5)}, ["dropout_seed", "()", "(2,)"]),
    "seed-dtype": ({"dropout_p": 0.1, "dropout_seed": torch.zeros(2)}, ["dropout_seed", "float32", "int64"]),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_dropout_is_named(wrong: str, module: ModuleType) -> None:
    options, words = WRONG[wrong]
    with pytest.raises((TypeError, ValueError)) as caught:
        module.flash_attention(**tensors(), **options)
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"the message {str(caught.value)!r} does not say {missing}"


@pytest.mark.gpu
@pytest.mark.case("big-08")
def test_more_than_2_to_the_31_pairs(emitter: Emitter) -> None:
    """Both passes drop what the mask says among the last queries and keys, whose pairs are the last."""
    module = emitter.load(content_of(training_rows_of(("fp16",), HEAD_DIM, variants=("full_dropout",))))
    seqlen, queries, keys = 46400, slice(-16, None), slice(-256, None)
    q, k, v = (x.half() for x in tensors(seqlen, seqlen, 1, (1, 1), "cuda").values())
    v[:, :-256] = 0.0
    v, seed = (v * 100).requires_grad_(), seed_of(13).cuda()
    out = module.flash_attention(q, k, v, dropout_p=0.5, dropout_seed=seed)
    dout = torch.zeros_like(out)
    dout[:, queries] = 1000 * torch.randn(1, 16, 1, HEAD_DIM, device="cuda").half()
    (dv,) = torch.autograd.grad(out, v, dout)
    kept = module.dropout_mask(seed, 1, 1, seqlen, 256, 0.5)[0, 0, queries]
    scores = q[0, queries, 0].float() @ k[0, :, 0].float().T * HEAD_DIM**-0.5
    p = scores.softmax(-1)[:, keys] * kept * 2.0
    torch.testing.assert_close(out[0, queries, 0].float(), p @ v[0, keys, 0].float(), rtol=0.02, atol=1e-3)
    torch.testing.assert_close(dv[0, keys, 0].float(), p.T @ dout[0, queries, 0].float(), rtol=0.02, atol=1e-2)


@pytest.mark.gpu
def test_a_cuda_graph_draws_anew_in_every_replay(emitter: Emitter) -> None:
    module = emitter.load(content_of(training_rows_of(("fp16",), HEAD_DIM, variants=("causal_dropout",))))
    x = {name: value.half() for name, value in tensors(device="cuda").items()}
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        module.flash_attention(**x, causal=True, dropout_p=0.5)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = module.flash_attention(**x, causal=True, dropout_p=0.5)
    replays = []
    for _ in range(2):
        graph.replay()
        replays.append(out.clone())
    assert not torch.equal(*replays)
