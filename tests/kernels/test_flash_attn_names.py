"""flash-attn's functions, used and tested as flash-attn's own tests do: only the import differs.

Their criterion: the error is at most twice (gradients: three times) that of torch in the same precision.
"""

from __future__ import annotations

import inspect
import math
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.kernels.emission import Emitter, content_of, training_rows_of

VARIANTS = ("full", "causal", "window", "window_softcap")
ALIBI = tuple(f"{mask}_alibi" for mask in ("full", "causal", "window"))
DROPOUT = tuple(f"{mask}_dropout" for mask in ("full", "causal", "window"))


@pytest.fixture(scope="module")
def flash_attn(emitter: Emitter) -> ModuleType:
    """Stands where flash_attn is imported: head dims 16 and 40 in fp16."""
    variants = (*VARIANTS, *ALIBI, *DROPOUT)
    rows = (row for d in (16, 40) for row in training_rows_of(("fp16",), d, variants=variants))
    return emitter.load(content_of(tuple(rows)))


@pytest.fixture(scope="module")
def plain(emitter: Emitter) -> ModuleType:
    """Holds neither ALiBi nor dropout."""
    return emitter.load(content_of(training_rows_of(("fp16",), 16)))


def construct_local_mask(seqlen_q: int, seqlen_k: int, window_size: tuple[int, int]) -> torch.Tensor:
    """True where a query does not see a key."""
    row_idx = torch.arange(seqlen_q)[:, None]
    col_idx = torch.arange(seqlen_k)
    offset = row_idx + seqlen_k - seqlen_q
    left, right = (math.inf if bound < 0 else bound for bound in window_size)
    return (col_idx > offset + right) | (col_idx < offset - left)


def attn_bias_from_alibi_slopes(slopes: torch.Tensor, seqlen_q: int, seqlen_k: int) -> torch.Tensor:
    distance = (torch.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q - torch.arange(seqlen_k)).abs()
    return -slopes[:, :, None, None] * distance


def attention_ref(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_bias: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    dropout_mask: torch.Tensor | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    upcast: bool = True,
    reorder_ops: bool = False,
) -> torch.Tensor:
    """[Z, S, H, D] in and out. Without `upcast` in the dtype of q, as torch would compute it."""
    window_size = (window_size[0], 0) if causal else window_size
    dtype_og = q.dtype
    if upcast:
        q, k, v = q.float(), k.float(), v.float()
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scale = q.shape[-1] ** -0.5
    scores = (
        torch.einsum("bthd,bshd->bhts", q, k * scale) if reorder_ops else torch.einsum("bthd,bshd->bhts", q * scale, k)
    )
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    if attn_bias is not None:
        scores = scores + attn_bias.to(scores.dtype)
    local_mask = construct_local_mask(q.shape[1], k.shape[1], window_size)
    scores = scores.masked_fill(local_mask, -math.inf)
    blind = local_mask.all(-1, keepdim=True)
    attention = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
    if dropout_mask is not None:
        attention = attention.masked_fill(~dropout_mask, 0.0)
    return torch.einsum("bhts,bshd->bthd", attention, v / (1 - dropout_p)).to(dtype_og)


def assert_close_enough(found: torch.Tensor, ref: torch.Tensor, pt: torch.Tensor, factor: float) -> None:
    assert (found - ref).abs().max().item() <= factor * (pt - ref).abs().max().item() + 1e-5


# (causal, local): local draws a window, as flash-attn's tests do.
MASKS = [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.parametrize(("mha_type", "kvpacked"), [("mha", False), ("mqa", True), ("gqa", False), ("gqa", True)])
@pytest.mark.parametrize(("causal", "local"), MASKS)
@pytest.mark.parametrize(
    ("seqlen_q", "seqlen_k", "d"), [(1, 47, 16), (33, 66, 40), (64, 32, 16), (31, 31, 40)], ids=str
)
def test_flash_attn_output(
    seqlen_q: int,
    seqlen_k: int,
    d: int,
    causal: bool,
    local: bool,
    mha_type: str,
    kvpacked: bool,
    flash_attn: ModuleType,
) -> None:
    torch.random.manual_seed(0)
    batch_size, nheads = 2, 4
    nheads_k = {"mha": nheads, "mqa": 1, "gqa": 2}[mha_type]
    window_size = (-1, -1) if not local else tuple(torch.randint(0, seqlen_k, (2,)).tolist())
    q = torch.randn(batch_size, seqlen_q, nheads, d, dtype=torch.float16, requires_grad=True)
    kv = torch.randn(batch_size, seqlen_k, 2, nheads_k, d, dtype=torch.float16, requires_grad=True)
    k, v = (x.detach().requires_grad_() for x in kv.unbind(2))
    if kvpacked:
        out, lse, _ = flash_attn.flash_attn_kvpacked_func(
            q, kv, 0.0, causal=causal, window_size=window_size, return_attn_probs=True
        )
    else:
        out, lse, _ = flash_attn.flash_attn_func(
            q, k, v, 0.0, causal=causal, window_size=window_size, return_attn_probs=True
        )
    out_ref = attention_ref(q, k, v, causal=causal, window_size=window_size)
    out_pt = attention_ref(q, k, v, causal=causal, window_size=window_size, upcast=False, reorder_ops=True)
    assert lse.shape == (batch_size, nheads, seqlen_q)
    assert_close_enough(out, out_ref, out_pt, 2)
    g = torch.randn_like(out)
    if kvpacked:
        dq, dkv = torch.autograd.grad(out, (q, kv), g)
        dk, dv = dkv.unbind(2)
    else:
        dq, dk, dv = torch.autograd.grad(out, (q, k, v), g)
    grads_ref, grads_pt = (torch.autograd.grad(each, (q, k, v), g) for each in (out_ref, out_pt))
    for found, ref, pt in zip((dq, dk, dv), grads_ref, grads_pt, strict=True):
        assert_close_enough(found, ref, pt, 3)


@pytest.mark.parametrize(("alibi", "dropout_p"), [(False, 0.0), (True, 0.0), (False, 0.17)])
@pytest.mark.parametrize(("causal", "local"), MASKS)
def test_flash_attn_qkvpacked(causal: bool, local: bool, alibi: bool, dropout_p: float, flash_attn: ModuleType) -> None:
    torch.random.manual_seed(0)
    batch_size, seqlen, nheads, d = 2, 45, 3, 16
    window_size = (-1, -1) if not local else tuple(torch.randint(0, seqlen, (2,)).tolist())
    qkv = torch.randn(batch_size, seqlen, 3, nheads, d, dtype=torch.float16, requires_grad=True)
    alibi_slopes = torch.rand(batch_size, nheads) * 0.3 if alibi else None
    out, _, S_dmask = flash_attn.flash_attn_qkvpacked_func(
        qkv,
        dropout_p,
        causal=causal,
        window_size=window_size,
        alibi_slopes=alibi_slopes,
        return_attn_probs=True,
    )
    dropout_mask = S_dmask >= 0 if dropout_p > 0.0 else None
    if dropout_mask is not None:
        dropout_fraction = 1 - dropout_mask.float().mean().item()
        deviation = (dropout_p * (1 - dropout_p) / dropout_mask.numel()) ** 0.5  # one standard deviation of the share
        assert abs(dropout_fraction - dropout_p) <= 4 * deviation
    attn_bias = None if alibi_slopes is None else attn_bias_from_alibi_slopes(alibi_slopes, seqlen, seqlen)
    out_ref, out_pt = (
        attention_ref(
            *qkv.unbind(2),
            attn_bias,
            dropout_p,
            dropout_mask,
            causal,
            window_size,
            upcast=upcast,
            reorder_ops=not upcast,
        )
        for upcast in (True, False)
    )
    assert_close_enough(out, out_ref, out_pt, 2)
    g = torch.randn_like(out)
    dqkv, dqkv_ref, dqkv_pt = (torch.autograd.grad(each, qkv, g)[0] for each in (out, out_ref, out_pt))
    assert_close_enough(dqkv, dqkv_ref, dqkv_pt, 3)


@pytest.mark.parametrize("causal", [False, True])
def test_flash_attn_softcap(causal: bool, flash_attn: ModuleType) -> None:
    torch.random.manual_seed(0)
    q, k, v = (torch.randn(1, 40, 2, 16, dtype=torch.float16) * 4 for _ in "qkv")
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    out = flash_attn.flash_attn_func(q, k, v, causal=causal, softcap=15.0)
    out_ref = attention_ref(q, k, v, causal=causal, softcap=15.0)
    out_pt = attention_ref(q, k, v, causal=causal, softcap=15.0, upcast=False, reorder_ops=True)
    assert_close_enough(out, out_ref, out_pt, 2)
    g = torch.randn_like(out)
    for grads in zip(*(torch.autograd.grad(each, (q, k, v), g) for each in (out, out_ref, out_pt)), strict=True):
        assert_close_enough(*grads, 3)


@pytest.mark.parametrize("causal", [False, True])
def test_flash_attn_deterministic(causal: bool, flash_attn: ModuleType) -> None:
    torch.random.manual_seed(0)
    q = torch.randn(2, 35, 4, 16, dtype=torch.float16, requires_grad=True)
    k, v = (torch.randn(2, 50, 2, 16, dtype=torch.float16, requires_grad=True) for _ in "kv")
    out = flash_attn.flash_attn_func(q, k, v, 0.0, causal=causal, deterministic=True)
    g = torch.randn_like(out)
    dq0, dk0, dv0 = torch.autograd.grad(out, (q, k, v), g, retain_graph=True)
    for _ in range(3):
        dq, dk, dv = torch.autograd.grad(out, (q, k, v), g, retain_graph=True)
        assert torch.equal(dv, dv0)
        assert torch.equal(dk, dk0)
        assert torch.equal(dq, dq0)


def test_flash_attn_race_condition(flash_attn: ModuleType) -> None:
    """With one state of torch's generator, dropout drops the same."""
    q, k, v = (torch.randn(1, 40, 2, 16, dtype=torch.float16, requires_grad=True) for _ in "qkv")
    torch.random.manual_seed(42)
    out0, lse0, _ = flash_attn.flash_attn_func(q, k, v, 0.17, return_attn_probs=True)
    g = torch.randn_like(out0)
    grads0 = torch.autograd.grad(out0, (q, k, v), g)
    for _ in range(2):
        torch.random.manual_seed(42)
        out, lse, _ = flash_attn.flash_attn_func(q, k, v, 0.17, return_attn_probs=True)
        assert torch.equal(out, out0)
        assert torch.equal(lse, lse0)
        assert all(map(torch.equal, torch.autograd.grad(out, (q, k, v), g), grads0))


def test_flash_attn_bwd_transpose(flash_attn: ModuleType) -> None:
    """dout is a transposed view."""
    torch.random.manual_seed(0)
    q = torch.randn(5, 2, 3, 16, dtype=torch.float16, requires_grad=True)
    k, v = (torch.randn(5, 4, 3, 16, dtype=torch.float16, requires_grad=True) for _ in "kv")
    out = flash_attn.flash_attn_func(q, k, v).transpose(0, 1)
    g = torch.randn(5, 2, 3, 16, dtype=torch.float16).transpose(0, 1)
    wanted = torch.autograd.grad(flash_attn.flash_attn_func(q, k, v), (q, k, v), g.transpose(0, 1).contiguous())
    assert all(map(torch.equal, torch.autograd.grad(out, (q, k, v), g), wanted))


# ---- Names and orders ----

OPTIONS: dict[str, Any] = {
    "dropout_p": 0.0,
    "softmax_scale": None,
    "causal": False,
    "window_size": (-1, -1),
    "softcap": 0.0,
    "alibi_slopes": None,
    "deterministic": False,
    "return_attn_probs": False,
}
TENSORS = {
    "flash_attn_func": ["q", "k", "v"],
    "flash_attn_qkvpacked_func": ["qkv"],
    "flash_attn_kvpacked_func": ["q", "kv"],
}


@pytest.mark.parametrize("name", TENSORS)
def test_signatures_are_flash_attns(name: str, flash_attn: ModuleType, plain: ModuleType) -> None:
    for module in (flash_attn, plain):
        parameters = inspect.signature(getattr(module, name)).parameters
        assert [*parameters] == [*TENSORS[name], *OPTIONS]
        assert {option: parameters[option].default for option in OPTIONS} == OPTIONS
        assert name in module.__all__


def test_packed_tensors_are_read_where_they_are(plain: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    launch = plain._launch
    monkeypatch.setattr(
        plain,
        "_launch",
        lambda config, q, k, v, *rest: seen.extend(x.data_ptr() for x in (q, k, v)) or launch(config, q, k, v, *rest),
    )
    qkv = torch.randn(1, 20, 3, 2, 16, dtype=torch.float16)
    out = plain.flash_attn_qkvpacked_func(qkv)
    assert seen == [qkv[:, :, part].data_ptr() for part in range(3)]
    assert torch.equal(out, plain.flash_attn_func(*(x.contiguous() for x in qkv.unbind(2))))


def test_a_strided_last_dim_is_copied(plain: ModuleType) -> None:
    qkv = torch.randn(1, 20, 3, 16, 2, dtype=torch.float16).transpose(3, 4).requires_grad_()
    out = plain.flash_attn_qkvpacked_func(qkv, causal=True)
    copy = qkv.detach().contiguous().requires_grad_()
    wanted = plain.flash_attn_qkvpacked_func(copy, causal=True)
    assert torch.equal(out, wanted)
    g = torch.randn_like(out)
    assert torch.equal(*(torch.autograd.grad(*each, g)[0] for each in ((out, qkv), (wanted, copy))))


QKV = torch.zeros(1, 8, 3, 2, 16, dtype=torch.float16)
WRONG: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], list[str]]] = {
    "dropout": ("qkvpacked", (QKV,), {"dropout_p": 0.1}, ["dropout_p", "0.1", "0.0", "emit --feature dropout"]),
    "alibi": ("qkvpacked", (QKV,), {"alibi_slopes": torch.zeros(2)}, ["alibi_slopes", "None", "emit --feature alibi"]),
    "window": ("qkvpacked", (QKV,), {"window_size": 128}, ["window", "128", "(left, right)"]),
    "list": ("qkvpacked", ([[1.0]],), {}, ["qkv", "list", "torch.Tensor"]),
    "four-dims": ("qkvpacked", (QKV[:, :, 0],), {}, ["qkv", "(1, 8, 2, 16)", "[Z, S, 3, H, D]"]),
    "kv-as-qkv": ("qkvpacked", (QKV[:, :, :2],), {}, ["qkv", "(1, 8, 2, 2, 16)", "[Z, S, 3, H, D]"]),
    "qkv-as-kv": ("kvpacked", (QKV[:, :, 0], QKV), {}, ["kv", "(1, 8, 3, 2, 16)", "[Z, S, 2, H, D]"]),
    "q-list": ("kvpacked", ([[1.0]], QKV[:, :, :2]), {}, ["q", "list", "torch.Tensor"]),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_lacking_or_wrong_is_named(wrong: str, plain: ModuleType) -> None:
    name, given, options, words = WRONG[wrong]
    with pytest.raises((TypeError, ValueError)) as caught:
        getattr(plain, f"flash_attn_{name}_func")(*given, **options)
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"the message {str(caught.value)!r} does not say {missing}"
