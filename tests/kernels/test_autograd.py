"""Gradients through the public function: of whatever needs one, from whatever arrives, and what torch asks of both."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from flashgen.verify.reference import Features, Scoring, reference_gradients
from tests.kernels.emission import Emitter, content_of, training_rows_of

SHAPES = {"q": (2, 20, 4, 16), "k": (2, 33, 2, 16), "v": (2, 33, 2, 16)}
FEATURES = ("alibi", "bias", "sink", "dropout")
# Calls by name: options, and the reference's bounds.
CALLS: dict[str, tuple[dict[str, Any], Scoring]] = {
    "full": ({}, Scoring(scale=0.25)),
    "causal": ({"causal": True}, Scoring(scale=0.25, right=0)),
    "window": ({"window": (9, 4)}, Scoring(scale=0.25, left=9, right=4)),
    "everything": (
        {"causal": True, "window": (9, -1), "softcap": 8.0, "softmax_scale": 0.21},
        Scoring(scale=0.21, left=9, right=0, softcap=8.0),
    ),
}


@pytest.fixture(scope="module")
def module(emitter: Emitter) -> ModuleType:
    """Both passes of every mask, in fp16 and fp32."""
    return emitter.load(content_of(training_rows_of(("fp16",), 16) + training_rows_of(("fp32",), 16)))


@pytest.fixture(scope="module")
def featured(emitter: Emitter) -> ModuleType:
    """Both passes of causal attention, plain, with each feature, and with all."""
    variants = ("causal", *(f"causal_{feature}" for feature in FEATURES), "causal_" + "_".join(FEATURES))
    return emitter.load(content_of(training_rows_of(("fp32",), 16, variants=variants)))


def leaves(dtype: torch.dtype = torch.float32, seed: int = 0, **shapes: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """q, k and v that need gradients, in layout "bshd"."""
    generator = torch.Generator().manual_seed(seed)
    shapes = SHAPES | shapes
    return {name: torch.randn(shape, generator=generator).to(dtype).requires_grad_() for name, shape in shapes.items()}


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def expected(
    x: dict[str, torch.Tensor],
    dout: torch.Tensor,
    scoring: Scoring,
    dlse: torch.Tensor | None = None,
    **features: Any,
) -> dict[str, torch.Tensor]:
    """float64 gradients by name, laid out as x is."""
    q, k, v, dout = (each.detach().transpose(1, 2) for each in (x["q"], x["k"], x["v"], dout))
    found = reference_gradients(q, k, v, dout, scoring, Features(**features), dlse)
    return {name: each.transpose(1, 2) if name in ("dq", "dk", "dv") else each for name, each in found.items()}


def assert_near(gradient: torch.Tensor | None, wanted: torch.Tensor) -> None:
    assert gradient is not None
    torch.testing.assert_close(gradient.double(), wanted, rtol=1e-4, atol=2e-5)


# ---- What gets a gradient ----


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.case("grad-01")
def test_gradients_of_every_mask(call: str, layout: str, module: ModuleType) -> None:
    (options, scoring), x, dout = CALLS[call], leaves(), normal(2, 20, 4, 16)
    given = [each if layout == "bshd" else each.transpose(1, 2) for each in x.values()]
    out = module.flash_attention(*given, **options, layout=layout)
    out.backward(dout if layout == "bshd" else dout.transpose(1, 2))
    for name, wanted in zip("qkv", expected(x, dout, scoring).values(), strict=True):
        assert_near(x[name].grad, wanted)


@pytest.mark.parametrize("needs", ["q", "k", "v", "qk", "qv", "kv"])
@pytest.mark.case("grad-02")
def test_what_needs_no_gradient_is_not_computed(needs: str, module: ModuleType, monkeypatch: Any) -> None:
    x, dout, launched = leaves(), normal(2, 20, 4, 16), []
    launch = module._launch_backward

    def record(*arguments: Any) -> None:
        launched.append([gradient is not None for gradient in arguments[7:10]])
        launch(*arguments)

    monkeypatch.setattr(module, "_launch_backward", record)
    whole = torch.autograd.grad(module.flash_attention(**x, causal=True), list(x.values()), dout)
    for name in set(x) - set(needs):
        x[name].requires_grad_(False)
    some = torch.autograd.grad(module.flash_attention(**x, causal=True), [x[name] for name in needs], dout)
    wanted = {name: gradient for name, gradient in zip("qkv", whole, strict=True) if name in needs}
    assert all(map(torch.equal, some, wanted.values()))
    keys = "k" in needs or "v" in needs  # one kernel computes both
    assert launched == [[True, True, True], ["q" in needs, keys, keys]]


@pytest.mark.parametrize("through", ["lse", "out and lse"])
def test_gradients_through_the_lse(through: str, module: ModuleType) -> None:
    x, dlse = leaves(), normal(2, 20, 4, seed=2).transpose(1, 2)  # not contiguous
    dout = normal(2, 20, 4, 16) * (through != "lse")
    out, lse = module.flash_attention(**x, causal=True, return_lse=True)
    outputs, incoming = ([lse], [dlse]) if through == "lse" else ([out, lse], [dout, dlse])
    torch.autograd.backward(outputs, incoming)
    for name, wanted in zip("qkv", expected(x, dout, CALLS["causal"][1], dlse).values(), strict=True):
        assert_near(x[name].grad, wanted)


def test_a_query_that_sees_nothing_gets_and_gives_nothing(module: ModuleType) -> None:
    x = leaves(q=(1, 40, 4, 16), k=(1, 7, 2, 16), v=(1, 7, 2, 16))
    out, lse = module.flash_attention(**x, causal=True, return_lse=True)
    torch.autograd.backward([out, lse], [normal(1, 40, 4, 16), normal(1, 4, 40)])
    assert x["q"].grad is not None
    assert not x["q"].grad[:, :33].any()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in x.values())


@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "batch"), [(5, 0, 1), (0, 5, 1), (5, 5, 0)])
def test_gradients_of_empty_tensors(seqlen_q: int, seqlen_k: int, batch: int, module: ModuleType) -> None:
    x = leaves(q=(batch, seqlen_q, 4, 16), k=(batch, seqlen_k, 2, 16), v=(batch, seqlen_k, 2, 16))
    out, lse = module.flash_attention(**x, return_lse=True)
    (out.sum() + lse.nan_to_num(neginf=0.0).sum()).backward()
    assert all(each.grad is not None and each.grad.shape == each.shape and not each.grad.any() for each in x.values())


def test_keys_that_no_query_sees_may_hold_nan_and_get_0(module: ModuleType) -> None:
    x = leaves()
    clean = module.flash_attention(**x, window=(3, 0))
    dout = normal(2, 20, 4, 16)
    wanted = torch.autograd.grad(clean, list(x.values()), dout)
    with torch.no_grad():
        x["k"][:, :10], x["v"][:, :10] = math.nan, math.nan
    found = torch.autograd.grad(module.flash_attention(**x, window=(3, 0)), list(x.values()), dout)
    assert all(map(torch.equal, found, wanted))
    assert not found[1][:, :10].any()


# ---- What arrives ----


def summed(out: torch.Tensor) -> torch.Tensor:
    return out.sum()


def concatenated(out: torch.Tensor) -> torch.Tensor:
    return (torch.cat([out, out.detach()], 1) * normal(2, 40, 4, 16)).sum()


def averaged_over_rows(out: torch.Tensor) -> torch.Tensor:
    return (out.mean(1) * normal(2, 4, 16)).sum()


def transposed(out: torch.Tensor) -> torch.Tensor:
    return (out.transpose(1, 3) * normal(2, 16, 4, 20)).sum()


def every_second_element(out: torch.Tensor) -> torch.Tensor:
    return torch.stack([out, out.detach()], -1).mul(normal(2, 20, 4, 16, 2)).sum()


@pytest.mark.parametrize(
    "loss", [summed, concatenated, averaged_over_rows, transposed, every_second_element], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.case("layout-07")
@pytest.mark.case("layout-08")
def test_dout_of_any_strides(layout: str, loss: Callable[..., torch.Tensor], module: ModuleType) -> None:
    x = leaves()
    given = [each if layout == "bshd" else each.transpose(1, 2) for each in x.values()]
    out = module.flash_attention(*given, causal=True, layout=layout)
    plain = out.detach().requires_grad_()
    for each in (out, plain):
        loss(each if layout == "bshd" else each.transpose(1, 2)).backward()
    assert plain.grad is not None
    dout = plain.grad if layout == "bshd" else plain.grad.transpose(1, 2)
    for name, wanted in zip("qkv", expected(x, dout, CALLS["causal"][1]).values(), strict=True):
        assert_near(x[name].grad, wanted)


def test_dout_is_copied_for_its_last_dim_alone(module: ModuleType, monkeypatch: Any) -> None:
    x, seen = leaves(), []
    prepare = module._prepare
    monkeypatch.setattr(module, "_prepare", lambda dout, *rest: seen.append(dout.data_ptr()) or prepare(dout, *rest))
    rows, wide, expanded = normal(1, 1, 1, 16).expand(2, 20, 4, 16), normal(2, 50, 9, 16)[:, 7:27, 2:6], normal(1)
    for dout in (rows, wide, expanded.expand(2, 20, 4, 16)):
        torch.autograd.grad(module.flash_attention(**x), list(x.values()), dout)
    assert seen[:2] == [rows.data_ptr(), wide.data_ptr()]
    assert seen[2] != expanded.data_ptr()


@pytest.mark.case("grad-07")
def test_dout_of_another_dtype(module: ModuleType) -> None:
    x, dout = leaves(torch.float16), normal(2, 20, 4, 16).half()
    whole = torch.autograd.grad(module.flash_attention(**x, causal=True), list(x.values()), dout)
    wide = torch.autograd.grad(module.flash_attention(**x, causal=True), list(x.values()), dout.float())
    assert all(map(torch.equal, whole, wide))
    assert all(gradient.dtype == torch.float16 for gradient in wide)


def test_gradients_are_contiguous_in_the_layout_of_the_call(module: ModuleType) -> None:
    packed = normal(2, 20, 4, 3, 16)
    for layout in ("bshd", "bhsd"):
        x = [each if layout == "bshd" else each.transpose(1, 2) for each in packed.unbind(3)]
        x = [each.detach().requires_grad_() for each in x]
        gradients = torch.autograd.grad(module.flash_attention(*x, layout=layout).square().sum(), x)
        assert all(gradient.is_contiguous() for gradient in gradients)


def test_gradients_repeat_to_the_bit(module: ModuleType) -> None:
    x = leaves()
    out = module.flash_attention(**x, causal=True, deterministic=True)
    first, second = (torch.autograd.grad(out, list(x.values()), normal(2, 20, 4, 16), retain_graph=True) for _ in "12")
    assert all(map(torch.equal, first, second))


# ---- What is refused ----


@pytest.mark.case("grad-04")
def test_a_second_derivative_is_refused_when_it_is_asked_for(module: ModuleType) -> None:
    x = leaves()
    (dq,) = torch.autograd.grad(module.flash_attention(**x).square().sum(), x["q"], create_graph=True)
    with pytest.raises(NotImplementedError, match=r"no second derivative.*SDPBackend\.MATH"):
        dq.square().sum().backward()


def test_vmap_is_refused(module: ModuleType) -> None:
    x = [each.detach().expand(3, *each.shape) for each in leaves().values()]
    with pytest.raises(NotImplementedError, match="no vmap"):
        torch.vmap(module.flash_attention)(*x)
    y = leaves()
    out = module.flash_attention(**y)
    with pytest.raises(NotImplementedError, match="no vmap"):
        torch.vmap(lambda dout: torch.autograd.grad(out, y["q"], dout)[0])(torch.ones(3, *out.shape))


@pytest.mark.case("grad-05")
def test_mixed_dtypes_need_autocast(module: ModuleType) -> None:
    x = leaves()
    half = x["v"].detach().half().requires_grad_()
    with pytest.raises(ValueError, match=r"v is torch.float16 and q is torch.float32; allowed: one dtype"):
        module.flash_attention(x["q"], x["k"], half)
    with torch.autocast("cpu", dtype=torch.float16):
        out = module.flash_attention(x["q"], x["k"], half, causal=True)
    out.sum().backward()
    assert x["q"].grad is not None
    assert (x["q"].grad.dtype, half.grad is not None and half.grad.dtype) == (torch.float32, torch.float16)
    whole = {name: each.detach().half().requires_grad_() for name, each in x.items()}
    module.flash_attention(**whole, causal=True).sum().backward()
    assert whole["q"].grad is not None
    assert torch.equal(x["q"].grad, whole["q"].grad.float())


# ---- What torch asks ----


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients_nothing_is_kept(context: Any, module: ModuleType) -> None:
    x, kept = leaves(), []
    wanted = module.flash_attention(**x, causal=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        with context():
            out = module.flash_attention(**x, causal=True)
        assert not kept
        module.flash_attention(**x, causal=True)
        assert len(kept) == 5
    assert not out.requires_grad
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing(use_reentrant: bool, featured: ModuleType) -> None:
    """The recomputed forward drops what the first one dropped."""
    x = leaves()

    def attend(*given: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = featured.flash_attention(*given, causal=True, dropout_p=0.4)
        return out

    gradients = []
    for run in (attend, lambda *given: checkpoint(attend, *given, use_reentrant=use_reentrant)):
        torch.manual_seed(3)
        run(*x.values()).square().sum().backward()
        gradients.append([each.grad for each in x.values()])
        for each in x.values():
            each.grad = None
    assert all(map(torch.equal, *gradients))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_whole_with_its_backward(dynamic: bool, module: ModuleType) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out, lse = module.flash_attention(q * 1.5, k, v, causal=True, window=(9, 0), return_lse=True)
        return (out * 2).sum() + lse.square().sum()

    torch._dynamo.reset()
    compiled: Callable[..., Any] = torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for seqlen in (17, 20, 33):
        x = leaves(q=(2, seqlen, 4, 16), k=(2, seqlen, 2, 16), v=(2, seqlen, 2, 16))
        wanted = torch.autograd.grad(attend(**x), list(x.values()))
        found = torch.autograd.grad(compiled(**x), list(x.values()))
        assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("needs", ["q", "kv"])
def test_compiles_for_those_that_need_gradients(needs: str, module: ModuleType) -> None:
    x = leaves()
    for name in set(x) - set(needs):
        x[name].requires_grad_(False)
    torch._dynamo.reset()
    compiled: Callable[..., Any] = torch.compile(module.flash_attention, fullgraph=True, backend="aot_eager")
    found, wanted = (
        torch.autograd.grad(attend(**x, causal=True).square().sum(), [x[name] for name in needs])
        for attend in (compiled, module.flash_attention)
    )
    assert all(map(torch.equal, found, wanted))


# ---- Features ----


def feature_inputs(seed: int = 5) -> dict[str, torch.Tensor]:
    return {
        "alibi_slopes": normal(4, seed=seed).abs(),
        "bias": normal(2, 1, 20, 33, seed=seed + 1).requires_grad_(),
        "sinks": normal(4, seed=seed + 2).requires_grad_(),
        "dropout_seed": torch.tensor([seed, 2**40 + seed]),
    }


def test_gradients_with_every_feature_at_once(featured: ModuleType) -> None:
    x, given, dout, dlse = leaves(), feature_inputs(), normal(2, 20, 4, 16), normal(2, 4, 20)
    out, lse = featured.flash_attention(**x, **given, causal=True, dropout_p=0.3, return_lse=True)
    torch.autograd.backward([out, lse], [dout, dlse])
    keep = featured.dropout_mask(given["dropout_seed"], 2, 4, 20, 33, 0.3)
    features = {name: given[name].detach() for name in ("alibi_slopes", "bias", "sinks")}
    wanted = expected(x, dout, CALLS["causal"][1], dlse, **features, keep=keep, dropout_p=0.3)
    for name, each in (x | {"bias": given["bias"], "sinks": given["sinks"]}).items():
        assert_near(each.grad, wanted[f"d{name}"])


BIASES = [(20, 33), (1, 33), (4, 20, 33), (4, 1, 1), (2, 4, 20, 33), (1, 4, 20, 33), (2, 1, 20, 33), (2, 1, 1, 33)]


@pytest.mark.parametrize("shape", BIASES, ids=str)
def test_the_gradient_of_a_bias_has_its_shape(shape: tuple[int, ...], featured: ModuleType) -> None:
    x, dout, bias = leaves(), normal(2, 20, 4, 16), normal(*shape).requires_grad_()
    featured.flash_attention(**x, causal=True, bias=bias).backward(dout)
    wanted = expected(x, dout, CALLS["causal"][1], bias=bias.detach()[(None,) * (4 - bias.dim())])
    assert_near(bias.grad, wanted["dbias"].view(shape))
    assert_near(x["k"].grad, wanted["dk"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_gradients_of_features_have_their_dtypes(dtype: torch.dtype, featured: ModuleType) -> None:
    x = {name: each.detach() for name, each in leaves().items()}  # they need none
    bias, sinks = (given.detach().to(dtype).requires_grad_() for given in (normal(20, 33), normal(4)))
    featured.flash_attention(**x, causal=True, bias=bias).sum().backward()
    featured.flash_attention(**x, causal=True, sinks=sinks).sum().backward()
    assert bias.grad is not None
    assert sinks.grad is not None
    assert (bias.grad.dtype, sinks.grad.dtype) == (dtype, dtype)
    assert bias.grad.any()
    assert sinks.grad.any()


def test_a_bias_that_is_a_view_is_read_where_it_is(featured: ModuleType) -> None:
    x, wide = leaves(), normal(33, 50, 4).permute(2, 1, 0)[:, ::2][:, :20]
    found = featured.flash_attention(**x, causal=True, bias=wide)
    assert torch.equal(found, featured.flash_attention(**x, causal=True, bias=wide.contiguous()))


def test_sinks_of_rows_that_see_nothing(featured: ModuleType) -> None:
    """Such a row's lse is its sink, which alone gets the gradient; a sink of -inf gets none."""
    x = leaves(q=(1, 8, 4, 16), k=(1, 3, 2, 16), v=(1, 3, 2, 16))
    sinks = torch.tensor([0.5, -1.0, 2.0, -math.inf], requires_grad=True)
    out, lse = featured.flash_attention(**x, causal=True, sinks=sinks, return_lse=True)
    assert not out[:, :5].any()
    assert torch.equal(lse[0, :, :5], sinks.detach()[:, None].expand(4, 5))
    lse[:, :, :5].masked_fill(lse[:, :, :5] == -math.inf, 0.0).sum().backward()
    torch.testing.assert_close(sinks.grad, torch.tensor([5.0, 5.0, 5.0, 0.0]))


def test_sinks_without_keys(featured: ModuleType) -> None:
    x, sinks = leaves(k=(2, 0, 2, 16), v=(2, 0, 2, 16)), normal(4).requires_grad_()
    out, lse = featured.flash_attention(**x, sinks=sinks, causal=True, return_lse=True)
    assert not out.any()
    lse.backward(torch.ones_like(lse))
    torch.testing.assert_close(lse, sinks.detach()[None, :, None].expand(2, 4, 20))
    torch.testing.assert_close(sinks.grad, torch.full((4,), 40.0))


@pytest.mark.parametrize("dynamic", [False, True])
def test_every_feature_compiles_whole(dynamic: bool, featured: ModuleType) -> None:
    x, given = leaves(), feature_inputs()

    def attend(*tensors: torch.Tensor) -> torch.Tensor:
        q, k, v, alibi_slopes, bias, sinks, dropout_seed = tensors
        features = {"alibi_slopes": alibi_slopes, "bias": bias, "sinks": sinks, "dropout_seed": dropout_seed}
        out: torch.Tensor = featured.flash_attention(q, k, v, causal=True, dropout_p=0.3, **features)
        return out.square().sum()

    torch._dynamo.reset()
    compiled: Callable[..., Any] = torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    tensors, needing = (*x.values(), *given.values()), [*x.values(), given["bias"], given["sinks"]]
    found, wanted = (torch.autograd.grad(each(*tensors), needing) for each in (compiled, attend))
    assert all(map(torch.equal, found, wanted))


# ---- Operators ----


def operator_inputs(layout: str) -> list[torch.Tensor]:
    return [each if layout == "bshd" else each.detach().transpose(1, 2).requires_grad_() for each in leaves().values()]


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_opcheck(layout: str, module: ModuleType) -> None:
    x, scores = operator_inputs(layout), (0.25, 9, 0, 5.0)
    torch.library.opcheck(module._forward, (*x, *scores, layout))
    plain = [each.detach() for each in x]
    out, lse = module._forward(*plain, *scores, layout)
    for needs in ([True, True, True], [True, False, False], [False, False, True]):
        torch.library.opcheck(module._backward, (out, lse, out, lse, *plain, *scores, layout, needs))


def test_opcheck_with_every_feature(featured: ModuleType) -> None:
    x, given, scores = operator_inputs("bshd"), feature_inputs(), (0.25, -1, 0, 0.0, 0.3, "bshd")
    slopes = given["alibi_slopes"].expand(2, 4).contiguous()
    tensors = [*x, given["bias"], given["sinks"], slopes, given["dropout_seed"]]
    torch.library.opcheck(featured._forward, (*tensors, *scores))
    plain = [each.detach() for each in tensors]
    out, lse = featured._forward(*plain, *scores)
    for needs in ([True] * 5, [False, False, False, True, False]):
        torch.library.opcheck(featured._backward, (out, None, out, lse, *plain, *scores, needs))


@pytest.mark.gpu
def test_a_cuda_graph_of_both_passes(emitter: Emitter) -> None:
    """Replayed on other values, it gives what a call on them gives."""
    module = emitter.load(content_of(training_rows_of(("fp16",), 64)))
    shapes = {"q": (2, 200, 4, 64), "k": (2, 333, 2, 64), "v": (2, 333, 2, 64)}
    x = {name: each.detach().cuda().requires_grad_() for name, each in leaves(torch.float16, **shapes).items()}

    def step() -> tuple[torch.Tensor, ...]:
        out = module.flash_attention(**x, causal=True)
        return (out, *torch.autograd.grad(out, list(x.values()), out.detach()))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for name, each in leaves(torch.float16, seed=7, **shapes).items():
            x[name].copy_(each)
    graph.replay()
    replayed = [each.clone() for each in captured]
    assert all(map(torch.equal, replayed, step()))
