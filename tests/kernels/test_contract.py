"""What the public functions promise beyond exactness: errors before any launch, and torch's own contracts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import ModuleType
from typing import Any, NoReturn

import pytest
import torch

from tests.kernels.emission import Emitter, content_of, rows_of

# The argument of each feature.
FEATURES = {"alibi": "alibi_slopes", "bias": "bias", "sink": "sinks", "dropout": "dropout_p"}
ZERO = {"q": (1, 8, 4, 16), "k": (1, 8, 2, 16), "v": (1, 8, 2, 16)}


@pytest.fixture(scope="module")
def module(emitter: Emitter) -> ModuleType:
    """Serves head_dim 16 in fp16, bf16 and fp32, every mask."""
    return emitter.load(content_of(rows_of(("bf16", "fp16"), 16) + rows_of(("fp32",), 16)))


@pytest.fixture(scope="module")
def plain_module(emitter: Emitter) -> ModuleType:
    """Holds no window kernel and no softcap kernel."""
    return emitter.load(content_of(rows_of(("fp32",), 16, variants=("full", "causal"))))


@pytest.fixture(scope="module")
def featured_module(emitter: Emitter) -> ModuleType:
    """Holds causal attention, plain, with each feature alone, and with a bias and sinks."""
    variants = ("causal", *(f"causal_{feature}" for feature in FEATURES), "causal_bias_sink")
    return emitter.load(content_of(rows_of(("fp32",), 16, variants=variants)))


@pytest.fixture
def no_launch(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, plain_module: ModuleType, featured_module: ModuleType
) -> None:
    """Any launch fails the test."""

    def launched(*args: object) -> NoReturn:
        pytest.fail("a kernel was launched")

    for each in (module, plain_module, featured_module):
        monkeypatch.setattr(each, "_launch", launched)


def tensors(seed: int = 0, **shapes: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """q [1, 8, 4, 16], k and v [1, 8, 2, 16], or of the shapes given."""
    generator = torch.Generator().manual_seed(seed)
    return {x: torch.randn(shape, generator=generator) for x, shape in (ZERO | shapes).items()}


def tall(rows: int) -> torch.Tensor:
    """[1, rows, 1, 16] over 16 elements of memory."""
    return torch.zeros(16).expand(1, rows, 1, 16)


# id: what is wrong, and words that the message must have: the argument, what it was, what is allowed.
WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "list": ({"q": [[1.0]]}, ["q", "list", "torch.Tensor"]),
    "none": ({"v": None}, ["v", "NoneType", "torch.Tensor"]),
    "three-dims": ({"k": torch.zeros(8, 2, 16)}, ["k", "(8, 2, 16)", "4 dims"]),
    "strided": ({"v": torch.zeros(1, 8, 16, 2).transpose(2, 3)}, ["v", "(256, 32, 1, 2)", "stride 1"]),
    "dtypes": ({"k": torch.zeros(1, 8, 2, 16).half()}, ["k", "float16", "float32", "one dtype"]),
    "devices": ({"v": torch.zeros(1, 8, 2, 16, device="meta")}, ["v", "meta", "cpu", "one device"]),
    "meta": ({x: torch.zeros(ZERO[x], device="meta") for x in "qkv"}, ["q", "meta", "GPU"]),
    "layout": ({"layout": "sbhd"}, ["layout", "'sbhd'", "bshd", "bhsd"]),
    "batch": ({"k": torch.zeros(2, 8, 2, 16)}, ["q, k, v", "1, 2, 1", "one batch"]),
    "v-rows": ({"v": torch.zeros(1, 9, 2, 16)}, ["k", "(1, 8, 2, 16)", "(1, 9, 2, 16)", "equal but for the last"]),
    "v-heads": ({"v": torch.zeros(1, 8, 1, 16)}, ["k", "(1, 8, 1, 16)", "equal but for the last"]),
    "heads": ({"q": torch.zeros(1, 8, 3, 16)}, ["q", "3", "2", "a multiple"]),
    "no-k-heads": ({x: torch.zeros(1, 8, 0, 16) for x in "kv"}, ["q", "4", "0", "a multiple"]),
    "no-q-heads": ({"q": torch.zeros(1, 8, 0, 16)}, ["q", "0", "2", "a multiple"]),
    "head-dims": ({"q": torch.zeros(1, 8, 4, 32)}, ["q", "32", "16", "equal"]),
    "float64": ({x: torch.zeros(ZERO[x]).double() for x in "qkv"}, ["q", "float64", "torch.float32"]),
    "unserved": ({x: torch.zeros(1, 8, 2, 32) for x in "qkv"}, ["q", "32", "(16, 16)", "flashgen emit --head-dim 32"]),
    "unserved-v": ({"v": torch.zeros(1, 8, 2, 32)}, ["v", "32", "(16, 16)", "flashgen emit"]),
    "many-rows": ({"q": tall(2**30), "k": tall(8), "v": tall(8)}, ["q", str(2**30), "2**30"]),
    "many-keys": ({"q": tall(8), "k": tall(2**30), "v": tall(2**30)}, ["k", str(2**30), "2**30"]),
    "scale-negative": ({"softmax_scale": -1.0}, ["softmax_scale", "-1.0", "at least 0"]),
    "scale-inf": ({"softmax_scale": math.inf}, ["softmax_scale", "inf", "finite"]),
    "scale-nan": ({"softmax_scale": math.nan}, ["softmax_scale", "nan", "finite"]),
    "scale-text": ({"softmax_scale": "0.5"}, ["softmax_scale", "'0.5'", "finite number"]),
    "softcap-negative": ({"softcap": -2.0}, ["softcap", "-2.0", "above 0"]),
    "softcap-inf": ({"softcap": math.inf}, ["softcap", "inf", "finite"]),
    "softcap-nan": ({"softcap": math.nan}, ["softcap", "nan", "finite"]),
    "softcap-none": ({"softcap": None}, ["softcap", "None", "finite number"]),
    "window-short": ({"window": (3,)}, ["window", "(3,)", "(left, right)"]),
    "window-number": ({"window": 128}, ["window", "128", "(left, right)"]),
    "window-negative": ({"window": (-2, 0)}, ["window", "(-2, 0)", "at least -1"]),
    "window-float": ({"window": (3.0, 0)}, ["window", "(3.0, 0)", "integers"]),
    "window-bool": ({"window": (True, 0)}, ["window", "(True, 0)", "integers"]),
    "window-none": ({"window": (None, 0)}, ["window", "(None, 0)", "integers"]),
    "causal-text": ({"causal": "false"}, ["causal", "'false'", "bool"]),
}


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_input_is_named_before_any_launch(wrong: str, module: ModuleType) -> None:
    changes, words = WRONG[wrong]
    with pytest.raises((TypeError, ValueError)) as caught:
        module.flash_attention(**tensors() | changes)
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"the message {str(caught.value)!r} does not say {missing}"


@pytest.mark.usefixtures("no_launch")
def test_a_kernel_that_the_module_does_not_hold_is_named(plain_module: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"window is \(3, 0\).*emit --window"):
        plain_module.flash_attention(**tensors(), window=(3, 0))
    with pytest.raises(ValueError, match=r"softcap is 15\.0.*emit --softcap"):
        plain_module.flash_attention(**tensors(), softcap=15.0)


WRONG_FEATURES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "slopes-list": ({"alibi_slopes": [0.5] * 4}, ["alibi_slopes", "list", "torch.Tensor"]),
    "slopes-dtype": ({"alibi_slopes": torch.ones(4).half()}, ["alibi_slopes", "float16", "float32", "(4,)", "(1, 4)"]),
    "slopes-shape": ({"alibi_slopes": torch.ones(2)}, ["alibi_slopes", "(2,)", "(4,)", "(1, 4)"]),
    "slopes-batch": ({"alibi_slopes": torch.ones(2, 4)}, ["alibi_slopes", "(2, 4)", "(1, 4)"]),
    "slopes-device": ({"alibi_slopes": torch.ones(4, device="meta")}, ["alibi_slopes", "meta", "cpu", "one device"]),
    "slopes-gradient": ({"alibi_slopes": torch.ones(4).requires_grad_()}, ["alibi_slopes", "gradient", ".detach()"]),
    "bias-dtype": ({"bias": torch.ones(8, 8).bool()}, ["bias", "bool", "floats"]),
    "bias-dims": ({"bias": torch.ones(8)}, ["bias", "(8,)", "2 to 4 dims"]),
    "bias-rows": ({"bias": torch.ones(7, 8)}, ["bias", "(7, 8)", "(1, 4, 8, 8)"]),
    "bias-heads": ({"bias": torch.ones(1, 2, 8, 8)}, ["bias", "(1, 2, 8, 8)", "(1, 4, 8, 8)"]),
    "bias-device": ({"bias": torch.ones(8, 8, device="meta")}, ["bias", "meta", "cpu", "one device"]),
    "sinks-dtype": ({"sinks": torch.ones(4).long()}, ["sinks", "int64", "floats"]),
    "sinks-shape": ({"sinks": torch.ones(1, 4)}, ["sinks", "(1, 4)", "(4,)"]),
    "sinks-number": ({"sinks": 0.5}, ["sinks", "float", "torch.Tensor"]),
}


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize("wrong", WRONG_FEATURES)
def test_a_wrong_feature_is_named_before_any_launch(wrong: str, featured_module: ModuleType) -> None:
    changes, words = WRONG_FEATURES[wrong]
    with pytest.raises((TypeError, ValueError)) as caught:
        featured_module.flash_attention(**tensors() | changes, causal=True)
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"the message {str(caught.value)!r} does not say {missing}"


def features_of(words: Iterable[str]) -> dict[str, Any]:
    given = {"alibi": torch.ones(4), "bias": torch.ones(8, 8), "sink": torch.ones(4), "dropout": 0.1}
    return {FEATURES[word]: given[word] for word in words}


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize("asked", [("alibi", "bias"), ("sink", "dropout"), ("alibi", "bias", "sink", "dropout")])
def test_features_that_the_module_does_not_hold_together_are_named(
    asked: tuple[str, ...], featured_module: ModuleType
) -> None:
    with pytest.raises(ValueError, match="this module holds causal, ") as caught:
        featured_module.flash_attention(**tensors(), causal=True, **features_of(asked))
    assert all(FEATURES[word] in str(caught.value) for word in asked)
    assert str(caught.value).endswith("flashgen emit " + " ".join(f"--feature {word}" for word in asked))


@pytest.mark.usefixtures("no_launch")
def test_a_feature_of_a_mask_that_the_module_does_not_hold_is_named(featured_module: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"window is \(3, 0\), sinks is given; .*emit --feature sink"):
        featured_module.flash_attention(**tensors(), window=(3, 0), **features_of(["sink"]))


@pytest.mark.parametrize("feature", FEATURES)
def test_a_module_without_a_feature_has_no_argument_for_it(
    feature: str, plain_module: ModuleType, featured_module: ModuleType
) -> None:
    assert FEATURES[feature] not in inspect.signature(plain_module.flash_attention).parameters
    assert FEATURES[feature] in inspect.signature(featured_module.flash_attention).parameters


def test_slopes_that_need_gradients_serve_where_none_are_computed(featured_module: ModuleType) -> None:
    slopes = torch.ones(4).requires_grad_()
    with torch.no_grad():
        out = featured_module.flash_attention(**tensors(), causal=True, alibi_slopes=slopes)
    assert torch.equal(out, featured_module.flash_attention(**tensors(), causal=True, alibi_slopes=torch.ones(1, 4)))


def test_features_of_empty_tensors(featured_module: ModuleType) -> None:
    """Without keys, what is left of the denominator is the sink."""
    x = tensors(k=(1, 0, 2, 16), v=(1, 0, 2, 16))
    sinks = torch.arange(4.0)
    out, lse = featured_module.flash_attention(
        **x, causal=True, bias=torch.ones(8, 0), sinks=sinks.half(), return_lse=True
    )
    assert not out.any()
    assert torch.equal(lse, sinks[None, :, None].expand(1, 4, 8))


# What a module may hold by head_dim: causal without full, and masks for one head_dim that another lacks.
LACKING: dict[str, tuple[dict[str, Any], str]] = {
    "full": ({"causal": False}, "causal"),
    "full-by-a-wide-window": ({"window": (100, 100)}, "window"),
    "window-of-this-head-dim": ({"window": (3, 0)}, "window"),
    "softcap-of-this-head-dim": ({"softcap": 15.0}, "softcap"),
}


@pytest.mark.parametrize("lacking", LACKING)
def test_a_kernel_that_one_head_dim_lacks_is_named(lacking: str, emitter: Emitter) -> None:
    module = emitter.load(content_of(rows_of(("fp32",), 16, variants=("causal",)) + rows_of(("fp32",), 32)))
    options, name = LACKING[lacking]
    with pytest.raises(ValueError, match=f"{name} is .*this module"):
        module.flash_attention(**tensors(), **options)


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dropout_p": 0.1}, ["dropout_p", "0.1", "0.0"]),
        ({"alibi_slopes": torch.zeros(4)}, ["alibi_slopes", "None"]),
        ({"q": [[1.0]]}, ["q", "list", "torch.Tensor"]),
        ({"window_size": 128}, ["window", "128", "(left, right)"]),
    ],
)
def test_the_drop_in_names_what_it_lacks(options: dict[str, Any], words: list[str], module: ModuleType) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        module.flash_attn_func(**tensors() | options)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_drop_in_is_the_same_function(module: ModuleType) -> None:
    x = tensors()
    out, lse = module.flash_attention(**x, causal=True, window=(3, 0), softcap=5.0, return_lse=True)
    got, got_lse, probabilities = module.flash_attn_func(
        x["q"], x["k"], x["v"], 0.0, None, True, (3, 0), 5.0, None, True, True
    )
    assert torch.equal(got, out)
    assert torch.equal(got_lse, lse)
    assert probabilities is None
    assert torch.equal(module.flash_attn_func(**x), module.flash_attention(**x))


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "batch"), [(5, 0, 1), (0, 5, 1), (0, 0, 2), (5, 5, 0)])
def test_empty_tensors(seqlen_q: int, seqlen_k: int, batch: int, layout: str, module: ModuleType) -> None:
    sizes: dict[str, Any] = {
        "q": (batch, seqlen_q, 4, 16),
        "k": (batch, seqlen_k, 2, 16),
        "v": (batch, seqlen_k, 2, 16),
    }
    x = tensors(**sizes)
    x = {name: value.transpose(1, 2) for name, value in x.items()} if layout == "bhsd" else x
    out, lse = module.flash_attention(**x, return_lse=True, layout=layout)
    assert out.shape == x["q"].shape
    assert lse.shape == (batch, 4, seqlen_q)
    assert not out.any()
    assert (lse == -math.inf).all()


def test_no_heads_at_all(module: ModuleType) -> None:
    assert module.flash_attention(*(torch.zeros(1, 8, 0, 16) for _ in "qkv")).shape == (1, 8, 0, 16)


def test_lse_only_when_asked_for(module: ModuleType) -> None:
    x = tensors()
    out, lse = module.flash_attention(**x, return_lse=True)
    assert torch.equal(module.flash_attention(**x), out)
    assert lse.dtype == torch.float32
    assert lse.shape == (1, 4, 8)
    assert out.is_contiguous()


@pytest.mark.parametrize("causal", [False, True])
def test_lse_merges_two_shards_of_keys(causal: bool, module: ModuleType) -> None:
    """The partition sums of shards add up: what split keys and ring attention are built on."""
    x = tensors(k=(1, 40, 2, 16), v=(1, 40, 2, 16))
    whole, whole_lse = module.flash_attention(**x, causal=causal, return_lse=True)
    shards = [(slice(0, 32), False), (slice(32, 40), causal)]  # the first 32 keys are seen by all 8 queries
    parts = [
        module.flash_attention(x["q"], x["k"][:, rows], x["v"][:, rows], causal=mask, return_lse=True)
        for rows, mask in shards
    ]
    lse = torch.logaddexp(parts[0][1], parts[1][1])
    merged = sum(out * (part - lse).exp().transpose(1, 2)[..., None] for out, part in parts)
    torch.testing.assert_close(lse, whole_lse, rtol=0, atol=1e-5)
    torch.testing.assert_close(merged, whole, rtol=0, atol=1e-5)


def operator_arguments(layout: str, **options: Any) -> tuple[Any, ...]:
    x = tensors(q=(1, 8, 4, 16)) if layout == "bshd" else tensors(q=(1, 4, 8, 16), k=(1, 2, 8, 16), v=(1, 2, 8, 16))
    return (*x.values(), 0.25, options.get("left", -1), options.get("right", -1), options.get("softcap", 0.0), layout)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_opcheck(layout: str, module: ModuleType) -> None:
    for options in ({}, {"right": 0}, {"left": 3, "right": 1, "softcap": 5.0}):
        torch.library.opcheck(module._forward, operator_arguments(layout, **options))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles_whole_and_changes_nothing(backend: str, dynamic: bool, module: ModuleType) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = module.flash_attention(q, k, v, causal=True, softmax_scale=0.3, return_lse=True)
        return out * 2, lse

    torch._dynamo.reset()
    compiled: Callable[..., Any] = torch.compile(attend, fullgraph=True, backend=backend, dynamic=dynamic)
    for seqlen in (8, 9, 33):
        x = tensors(q=(1, seqlen, 4, 16), k=(1, seqlen, 2, 16), v=(1, seqlen, 2, 16))
        for got, expected in zip(compiled(**x), attend(**x), strict=True):
            assert torch.equal(got, expected)


def test_wrong_input_is_named_under_compile_too(module: ModuleType) -> None:
    torch._dynamo.reset()
    compiled: Callable[..., Any] = torch.compile(module.flash_attention, backend="eager")
    with pytest.raises(ValueError, match="q has 3 heads and k 2"):
        compiled(**tensors(q=(1, 8, 3, 16)))


def test_autocast_casts_mixed_dtypes(module: ModuleType) -> None:
    x = tensors()
    with torch.autocast("cpu", dtype=torch.float16):
        out, lse = module.flash_attention(x["q"], x["k"].half(), x["v"], return_lse=True)
    assert out.dtype == torch.float16
    assert lse.dtype == torch.float32
    assert torch.equal(out, module.flash_attention(*(value.half() for value in x.values())))


@pytest.mark.parametrize("needs", [["q"], ["k", "v"], ["q", "k", "v"]])
def test_forward_under_autograd_and_no_backward(needs: list[str], module: ModuleType) -> None:
    x = tensors()
    expected = module.flash_attention(**x)
    for name in needs:
        x[name].requires_grad_()
    out = module.flash_attention(**x)
    assert torch.equal(out, expected)
    assert out.requires_grad
    with pytest.raises(NotImplementedError, match=r"forward pass only.*no_grad"):
        out.sum().backward()
    with torch.no_grad():
        assert not module.flash_attention(**x).requires_grad


def call_cold_module_from_eight_threads(emitter: Emitter, device: str) -> None:
    """A module that nothing has called yet, in threads that start together."""
    cold = emitter.load(content_of(rows_of(("fp32",), 16, block_m=16, block_n=32)))
    inputs = [{name: x.to(device) for name, x in tensors(seed).items()} for seed in range(8)]
    barrier = Barrier(8)

    def call(x: dict[str, torch.Tensor]) -> torch.Tensor:
        barrier.wait()
        out: torch.Tensor = cold.flash_attention(**x, causal=True)
        return out

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(call, inputs))
    for x, result in zip(inputs, results, strict=True):
        assert torch.equal(result, cold.flash_attention(**x, causal=True))


@pytest.mark.case("tuner-13")
def test_eight_threads_call_a_cold_module(emitter: Emitter) -> None:
    call_cold_module_from_eight_threads(emitter, "cpu")


@pytest.mark.gpu
@pytest.mark.case("tuner-13")
def test_eight_threads_compile_at_once(emitter: Emitter) -> None:
    call_cold_module_from_eight_threads(emitter, "cuda")
