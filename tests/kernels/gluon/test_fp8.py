"""The forward in e4m3 on the model of Hopper's machine: within its criterion, and faults of its own are found."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import pytest
import torch

from flashgen.outcome import Proof, Rejected
from flashgen.spec import AttentionSpec
from flashgen.verify.probes import Suite
from flashgen.verify.suites import SUITES
from tests.kernels.emission import Emitter, content_of, gluon_rows_of, rows_of, training_rows_of
from tests.kernels.gluon.candidates import proven, source_of
from tests.kernels.gluon.language import interpreted_gluon
from tests.kernels.gluon.test_faults import rejection

FP8 = torch.float8_e4m3fn
HALF = ("bf16", "fp16")
STRUCTURES: list[tuple[str, tuple[int, int], dict[str, Any]]] = [
    ("causal_softcap", (128, 64), {"BLOCK_N": 128, "programs_per_sm": 1, "q_stages": 2, "ping_pong": True}),
    ("window", (48, 96), {"BLOCK_M": 192, "programs_per_sm": 1}),
]
# (what is wrong, the text, what it becomes, what the rejection says)
FAULTS = [
    ("K's factor is left out", " * gl.load(KDescale + off_zhk)", "", ""),
    ("Q's factor is another batch's", "QDescale + off_zh)", "QDescale + off_h)", ""),
    ("V's factor is left out", "gl.convert_layout(v_descale /", "gl.convert_layout(1.0 /", "out: "),
    ("V's factor is another head's", "VDescale + off_zhk)", "VDescale + off_z)", "out: "),
    ("V is another head's", "_gl_fetch(V, off_z, off_hk,", "_gl_fetch(V, off_z, 0 * off_hk,", "out: "),
    ("V is transposed from another head", "off_hk = (off_zhk % nheads_k)", "off_hk = (0 * off_zhk)", "out: "),
    ("V is the next block's", "start_n // BLOCK_N * BLOCK_DV", "(start_n // BLOCK_N + 1) * BLOCK_DV", "out: "),
    ("V's keys are in another order than P's", ".permute((0, 1, 3, 2, 4)).reshape", ".reshape", "out: "),
    ("what lies past the last key stays as it was", "slots[None, :], v)", "slots[None, :], v, mask=inside)", "NaN"),
    ("P's factor stays in lse", "gl.log2(l_i) - 8.0", "gl.log2(l_i)", "lse: "),
    ("P is larger than e4m3 holds", "8.0", "9.0", "out: "),
    ("P is so small that e4m3 loses it", "8.0", "0.0", "out: "),
]


@pytest.mark.parametrize(("variant", "head_dims", "knobs"), STRUCTURES, ids=[each[0] for each in STRUCTURES])
def test_it_keeps_to_its_criterion(variant: str, head_dims: tuple[int, int], knobs: dict[str, Any]) -> None:
    spec = AttentionSpec.of_variant(variant, dtype="fp8", head_dim=head_dims[0], head_dim_v=head_dims[1])
    outcome = proven(source_of(spec, **knobs), spec)
    assert isinstance(outcome, Proof), outcome
    assert outcome.probes > 40
    assert outcome.worst_ratio < 0.6


@pytest.mark.parametrize(("old", "new", "says"), [each[1:] for each in FAULTS], ids=[each[0] for each in FAULTS])
def test_a_planted_fault_is_found(old: str, new: str, says: str) -> None:
    spec = AttentionSpec.of_variant("full", dtype="fp8", head_dim=64)
    source = source_of(spec)
    assert old in source
    assert says in rejection(source.replace(old, new), spec)


def test_a_sum_over_all_keys_that_stays_in_the_tensor_cores_is_found() -> None:
    spec = AttentionSpec.of_variant("full", dtype="fp8", head_dim=64)
    source = source_of(spec)
    rescaled = "acc * gl.convert_layout({}, gl.SliceLayout(1, OUTPUT))[:, None]"
    for old, new, count in (
        ("no_output, use_acc=False", rescaled.format("alpha"), 2),
        (rescaled.format("rescale") + " + pv", "pv", 1),
        (rescaled.format("alpha") + " + pv", "pv", 1),
    ):
        assert source.count(old) == count
        source = source.replace(old, new)
    probe = next(probe for probe in SUITES["quick"].probes if probe.name == "many keys far from zero")
    outcome = proven(source, spec, suite=Suite(name="one", probes=(probe,)))
    assert isinstance(outcome, Rejected)
    assert outcome.detail.startswith("1 of 1 probes failed, worst 'many keys far from zero': out: ")


@pytest.fixture(params=["alone", "beside_others", "training"])
def module(request: pytest.FixtureRequest, emitter: Emitter) -> ModuleType:
    """On an H200, as far as it can tell, whose kernels in Gluon run on the model."""
    fp8, half = gluon_rows_of(("fp8",))["every_knob"], gluon_rows_of(HALF)["every_knob"]
    content = {
        "alone": content_of(fp8),
        "beside_others": content_of(rows_of(HALF, 64), (*half, *fp8)),
        "training": content_of(training_rows_of(HALF, 64), fp8),
    }[request.param]
    with interpreted_gluon():
        module = emitter.load(content)
    module._no_gluon = lambda device: None
    module._rules_of.cache_clear()
    module._candidates.cache_clear()
    return module


def inputs(rows_q: int = 40, rows_k: int = 70) -> list[torch.Tensor]:
    """q, k and v [Z, S, H, D], of two query heads a kv head."""
    generator = torch.Generator().manual_seed(5)
    shapes = ((2, rows_q, 4, 64), (2, rows_k, 2, 64), (2, rows_k, 2, 64))
    return [torch.randn(shape, generator=generator).to(FP8) for shape in shapes]


def factors() -> dict[str, torch.Tensor]:
    heads = {"q_descale": 4, "k_descale": 2, "v_descale": 2}
    return {name: torch.linspace(0.5, 1.5, 2 * count).view(2, count) for name, count in heads.items()}


@pytest.mark.parametrize("descales", [{}, factors()], ids=["plain", "descaled"])
def test_the_function_takes_factors_a_head(module: ModuleType, descales: dict[str, torch.Tensor]) -> None:
    q, k, v = inputs()
    out, lse = module.flash_attention(q, k, v, causal=True, return_lse=True, **descales)
    assert (out.dtype, out.shape, lse.dtype) == (torch.bfloat16, q.shape, torch.float32)
    scales = descales.values() or [torch.ones(2, x.shape[2]) for x in (q, k, v)]
    heads = [(x.double() * scale[:, None, :, None]).transpose(1, 2) for x, scale in zip((q, k, v), scales)]
    seen = torch.ones(40, 70, dtype=torch.bool).tril(30)
    expected = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=seen, enable_gqa=True)
    error = (out.transpose(1, 2).double() - expected).norm() / expected.norm()
    assert 1e-3 < error < 2.0**-4
    scores = heads[0] @ heads[1].repeat_interleave(2, 1).transpose(-1, -2) / 8
    torch.testing.assert_close(lse.double(), scores.masked_fill(~seen, -math.inf).logsumexp(-1), rtol=1e-5, atol=1e-5)


def test_the_module_shows_its_kernels_itself(module: ModuleType) -> None:
    rule = next(rule for rule in module._rules_of(torch.device("cpu")) if FP8 in rule.dtypes)
    assert 0.05 < module._prove(rule, FP8, torch.device("cpu")) < 1.0


def test_what_it_cannot_do_is_refused_in_words(module: ModuleType) -> None:
    q, k, v = inputs()
    with pytest.raises(ValueError, match=r"k_descale is torch.float64 .*allowed: float32 of shape \(2, 2\)"):
        module.flash_attention(q, k, v, k_descale=torch.ones(2, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"q_descale is torch.float32 of shape \(4,\); allowed: .*\(2, 4\)"):
        module.flash_attention(q, k, v, q_descale=torch.ones(4))
    with pytest.raises(ValueError, match=r"v requires a gradient, .*forward only"):
        module.flash_attention(q, k, v.clone().requires_grad_())
    odd = torch.zeros(2, 40, 4, 72).to(FP8)[..., 3:67]
    with pytest.raises(ValueError, match="no kernel here takes these tensors: allowed: addresses and strides that"):
        module.flash_attention(odd, k, v)
    module._no_gluon = lambda device: "they are for sm_90, not for NVIDIA A100"
    module._rules_of.cache_clear()
    module._candidates.cache_clear()
    with pytest.raises(ValueError, match=r"q is torch\.float8_e4m3fn, .*they are for sm_90, not for NVIDIA A100"):
        module.flash_attention(q, k, v)


def test_factors_are_for_fp8_alone(emitter: Emitter) -> None:
    content = content_of(rows_of(HALF, 64), gluon_rows_of(("fp8",))["every_knob"])
    with interpreted_gluon():
        module = emitter.load(content)
    q, k, v = (x.half() for x in inputs())
    with pytest.raises(
        ValueError, match=r"v_descale is given and q is torch.float16; allowed: with torch.float8_e4m3fn"
    ):
        module.flash_attention(q, k, v, v_descale=torch.ones(2, 2))
    assert module.flash_attention(q, k, v).dtype == torch.float16


def test_the_operator_is_one_that_torch_can_compile(module: ModuleType) -> None:
    q, k, v = inputs()
    others = {name: torch.ones(2, x.shape[2]) for name, x in zip(factors(), (q, k, v))}
    fake = torch._subclasses.fake_tensor.FakeTensorMode()
    tensors = [fake.from_tensor(x) for x in (q, k, v, *others.values())]
    with fake:
        out, lse = module._forward(*tensors, 0.125, -1, -1, 0.0, *_asks(module), "bshd")
    assert (out.dtype, out.shape, lse.shape) == (torch.bfloat16, q.shape, (2, 4, 40))


def _asks(module: ModuleType) -> list[bool]:
    """The argument that modules with unordered kernels take."""
    return [False] * ("deterministic" in str(module._forward._opoverload._schema))
