"""Faults of the backward kernels, features included."""

from __future__ import annotations

from tests.verify.mutant import Mutant, Setting
from tests.verify.mutant import mutant as _m

_KEEP = "concern/keep.jinja"
_QUERIES = "concern/query_range.jinja"
_KEYS = "concern/key_range.jinja"
_P = "concern/probabilities.jinja"
_DS = "concern/score_gradient.jinja"
_Q = "concern/backward_load_q.jinja"
_DKDV_POINTERS, _DQ_POINTERS = "concern/backward_dkdv_pointers.jinja", "concern/backward_dq_pointers.jinja"
_DKDV_EPILOGUE = "concern/backward_dkdv_epilogue.jinja"
_PREPARE = "kernel/backward_prepare.py.jinja"
_DKDV, _DQ = "kernel/backward_tl_dkdv.py.jinja", "kernel/backward_tl_dq.py.jinja"
_MERGED, _DBIAS = "kernel/backward_tl_merged.py.jinja", "kernel/backward_tl_dbias.py.jinja"
_OPERATOR = "module/operator.jinja"
_HEAD = "concern/head_features.jinja"
_NARROW = "(start_m + tl.arange(0, BLOCK_M))[:, None] * "


def _of(variant: str, **setting: object) -> Setting:
    return Setting(op="backward", variant=variant, **setting)  # type: ignore[arg-type]


FULL, CAUSAL, WINDOW = _of("full"), _of("causal"), _of("window")
FP32, PADDED = _of("full", dtype="fp32"), _of("full", head_dim=40)
TMA, MERGED = _of("full", knobs={"tma": True}), _of("causal", knobs={"tma": True, "merged": True})
SOFTCAP, ALIBI = _of("full_softcap"), _of("full_alibi")
BIAS, SOFTCAP_BIAS, WINDOW_BIAS = _of("full_bias"), _of("full_softcap_bias"), _of("window_bias")
SINK, DROPOUT, DROPOUT_BIAS = _of("full_sink"), _of("full_dropout"), _of("full_bias_dropout")

_ROWS = (
    _m(FULL, "delta without the lse's gradient", _OPERATOR, "delta -= dlse", "delta -= 0.0 * dlse"),
    _m(FULL, "the lse's gradient with the wrong sign", _OPERATOR, "delta -= dlse", "delta += dlse"),
    _m(
        FULL,
        "delta without its last column",
        _PREPARE,
        "offs_dv[None, :] < HEAD_DIM_V",
        "offs_dv[None, :] < HEAD_DIM_V - 1",
    ),
    _m(FULL, "delta of out alone", _PREPARE, "tl.sum(out * do, 1)", "tl.sum(out, 1)"),
    _m(FULL, "lse in base e", _PREPARE, 'float("inf"), lse * LOG2E)', 'float("inf"), lse)'),
    _m(
        BIAS,
        "no guard of rows that see nothing",
        _PREPARE,
        'tl.where(lse2 == float("-inf"), float("inf"), lse2)',
        "lse2",
    ),
    _m(FULL, "dout by out's strides", _PREPARE, "rows_m * stride_dom", "rows_m * stride_om"),
    _m(FULL, "dout by out's strides of heads", _PREPARE, "off_h * stride_doh", "off_h * stride_oh"),
)

_MASKS = (
    _m(
        CAUSAL,
        "causal sees one key too many",
        _KEEP,
        "minimum(offs_m + diagonal,",
        "minimum(offs_m + diagonal + 1,",
    ),
    _m(
        CAUSAL,
        "causal sees one key too few",
        _KEEP,
        "minimum(offs_m + diagonal,",
        "minimum(offs_m + diagonal - 1,",
    ),
    _m(CAUSAL, "causal aligned top-left", _KEEP, "minimum(offs_m + diagonal,", "minimum(offs_m,"),
    _m(FULL, "keys past the end not masked", _KEEP, "keep = keys < seqlen_k", "keep = keys >= 0"),
    _m(FULL, "tail one key too short", _KEEP, "keep = keys < seqlen_k", "keep = keys < seqlen_k - 1"),
    _m(WINDOW, "window one key short on the left", _KEEP, "keys >= (", "keys > ("),
    _m(WINDOW, "window one key long on the right", _KEEP, "+ window_right,", "+ window_right + 1,"),
    _m(CAUSAL, "mask left out", _P, "p = tl.where(keep, p, 0.0)", "p = tl.where(keep, p, p)"),
    _m(CAUSAL, "dS where P is masked", _P, "p = tl.where(keep, p, 0.0)", "p = tl.where(keep, p, 1.0e-3)"),
)

_RANGES = (
    _m(CAUSAL, "dK and dV start a block late", _QUERIES, "start_n - diagonal, 0)", "start_n - diagonal + BLOCK_M, 0)"),
    _m(
        CAUSAL,
        "dK and dV start late where a block has one query",
        _QUERIES,
        "start_n - diagonal, 0)",
        "start_n - diagonal + 1, 0)",
    ),
    _m(CAUSAL, "a masked block of queries taken as full", _QUERIES, "BLOCK_N - 1 - diagonal", "- diagonal"),
    _m(
        CAUSAL,
        "a block of queries with one masked pair taken as full",
        _QUERIES,
        "BLOCK_N - 1 - diagonal",
        "BLOCK_N - 2 - diagonal",
    ),
    _m(WINDOW, "dK and dV start late", _QUERIES, "maximum(first - window_right, 0)", "maximum(first, 0)"),
    _m(
        WINDOW,
        "dK and dV start late where a block has one query",
        _QUERIES,
        "first - window_right, 0)",
        "first - window_right + 1, 0)",
    ),
    _m(WINDOW, "dK and dV end early", _QUERIES, "last + window_left + 1)", "last + 1)"),
    _m(
        WINDOW,
        "dK and dV end early where a block has one query",
        _QUERIES,
        "last + window_left + 1)",
        "last + window_left)",
    ),
    _m(
        WINDOW,
        "left edge of queries taken as full",
        _QUERIES,
        "m_full = last - window_right",
        "m_full = first - window_right",
    ),
    _m(
        WINDOW,
        "right edge of queries taken as full",
        _QUERIES,
        "m_full_end = first + window_left + 1",
        "m_full_end = last + window_left + 1",
    ),
    _m(
        CAUSAL,
        "dQ without its last block of keys",
        _KEYS,
        "start_m + BLOCK_M + diagonal)",
        "start_m + BLOCK_M + diagonal - BLOCK_N)",
    ),
    _m(WINDOW, "dQ without the window's right end", _KEYS, "last + window_right + 1)", "last + 1)"),
    _m(
        WINDOW,
        "gradients of unseen keys not written",
        _OPERATOR,
        "dk[:, :, :first], dv[:, :, :first] = 0.0, 0.0",
        "dk[:, :, :first] = 0.0",
    ),
)

_STEPS = (
    _m(FULL, "delta left out", _DS, "(dp - delta{{ m }})", "dp"),
    _m(FULL, "dP left out", _DS, "(dp - delta{{ m }})", "(0.0 - delta{{ m }})"),
    _m(FULL, "dK without the scale", _DKDV_EPILOGUE, "dk *= softmax_scale", "dk *= 1.0"),
    _m(FULL, "dQ without the scale", _DQ, "dq *= softmax_scale", "dq *= 1.0"),
    _m(FULL, "dQ scaled in base 2", _DQ, "dq *= softmax_scale", "dq *= qk_scale"),
    _m(
        FULL,
        "dK of the first head of a group",
        _DKDV,
        "(off_hk + 1) * qhead_per_kvhead,",
        "off_hk * qhead_per_kvhead + 1,",
    ),
    _m(
        FULL,
        "dK of all but the last head of a group",
        _DKDV,
        "(off_hk + 1) * qhead_per_kvhead,",
        "(off_hk + 1) * qhead_per_kvhead - (qhead_per_kvhead > 1),",
    ),
    _m(
        FULL,
        "heads of a group interleaved",
        _DKDV,
        "off_zh = off_z * nheads_q + off_h",
        "off_zh = off_z * nheads_q + off_h % nheads_k",
    ),
    _m(FULL, "dQ of the wrong kv head", _DQ, "off_h // qhead_per_kvhead", "off_h % (nheads_q // qhead_per_kvhead)"),
    _m(FULL, "dK not summed over queries", _DKDV, "q, dk{{ spec.dot_precision }})", "q{{ spec.dot_precision }})"),
    _m(
        FP32,
        "P in half the bits for dV",
        _DKDV,
        "dv = tl.dot(p.to(do.dtype)",
        "dv = tl.dot(p.to(tl.float16).to(do.dtype)",
    ),
    _m(FP32, "dS in half the bits for dK", _DKDV, "ds.to(q.dtype)", "ds.to(tl.float16).to(q.dtype)"),
    _m(FP32, "dS in half the bits for dQ", _DQ, "ds.to(k.dtype)", "ds.to(tl.float16).to(k.dtype)"),
)

_MEMORY = (
    _m(
        FULL,
        "Q past the end not zeroed",
        _Q,
        "q = tl.load(q_ptrs, mask=offs_m[:, None] < seqlen_q, other=0.0)",
        "q = tl.load(q_ptrs)",
    ),
    _m(
        FULL,
        "dO past the end not zeroed",
        _Q,
        "do = tl.load(do_ptrs, mask=offs_m[:, None] < seqlen_q, other=0.0)",
        "do = tl.load(do_ptrs)",
    ),
    _m(FULL, "K past the end not zeroed for dQ", "concern/load_k.jinja", ", mask=inside_n, other=0.0)", ")"),
    _m(
        FULL,
        "dQ written past the end",
        _DQ,
        "dq.to(DQ.dtype.element_ty), mask=offs_m[:, None] < seqlen_q)",
        "dq.to(DQ.dtype.element_ty), mask=offs_m[:, None] <= seqlen_q)",
    ),
    _m(
        FULL,
        "dQ without its last row",
        _DQ,
        "dq.to(DQ.dtype.element_ty), mask=offs_m[:, None] < seqlen_q)",
        "dq.to(DQ.dtype.element_ty), mask=offs_m[:, None] < seqlen_q - 1)",
    ),
    _m(
        FULL,
        "dK written past the end",
        _DKDV_EPILOGUE,
        "dk.to(DK.dtype.element_ty), mask=rows_n < seqlen_k)",
        "dk.to(DK.dtype.element_ty), mask=rows_n <= seqlen_k)",
    ),
    _m(
        FULL,
        "dV written past the end",
        _DKDV_EPILOGUE,
        "dv.to(DV.dtype.element_ty), mask=rows_n < seqlen_k)",
        "dv.to(DV.dtype.element_ty), mask=rows_n <= seqlen_k)",
    ),
    _m(PADDED, "dK a column too wide", _DKDV_POINTERS, "offs_d[None, :] < HEAD_DIM)", "offs_d[None, :] <= HEAD_DIM)"),
    _m(FULL, "dK by K's strides", _DKDV_EPILOGUE, "rows_n * stride_dkn", "rows_n * stride_kn"),
    _m(FULL, "dV by dK's strides", _DKDV_EPILOGUE, "far_hk * stride_dvh", "far_hk * stride_dkh"),
    _m(FULL, "dQ by Q's strides", _DQ, "rows_m * stride_dqm", "rows_m * stride_qm"),
    _m(FULL, "dO by Q's strides in dQ", _DQ_POINTERS, "rows_m * stride_dom", "rows_m * stride_qm"),
    _m(FULL, "dO by Q's strides in dK", _Q, "(first_m + rows_m) * stride_dom", "(first_m + rows_m) * stride_qm"),
    _m(FULL, "rows of queries in 32 bits", _Q, "(first_m + rows_m) * stride_qm", _NARROW + "stride_qm", crashes=True),
    _m(FULL, "rows of dO in 32 bits", _Q, "(first_m + rows_m) * stride_dom", _NARROW + "stride_dom", crashes=True),
    _m(
        FULL,
        "rows of keys in 32 bits",
        _DKDV_POINTERS,
        "(start_n + offs_n).to(tl.int64)",
        "(start_n + offs_n)",
        crashes=True,
    ),
    _m(FULL, "heads in 32 bits", _Q, "tl.cast(off_h, tl.int64)", "off_h", crashes=True),
    _m(FULL, "rows of dQ in 32 bits", _DQ_POINTERS, "offs_m.to(tl.int64)[:, None]", "offs_m[:, None]", crashes=True),
    _m(
        FULL,
        "rows of delta in 32 bits",
        _PREPARE,
        "rows_m = offs_m.to(tl.int64)[:, None]",
        "rows_m = offs_m[:, None]",
        crashes=True,
    ),
    _m(TMA, "TMA reads the kv head of dO", _DQ_POINTERS, "DO.load([off_z, off_h,", "DO.load([off_z, off_hk,"),
    _m(TMA, "TMA writes to the query's head", _DKDV_EPILOGUE, "DV.store([off_z, off_hk,", "DV.store([off_z, off_zhk,"),
    _m(
        MERGED,
        "tiles of dQ counted from those of dK",
        _MERGED,
        "off_zhk * num_m_blocks + tile - num_n_blocks",
        "off_zhk * num_m_blocks + tile",
    ),
    _m(
        MERGED,
        "tiles of dQ of one head of a group",
        _MERGED,
        "tl.cdiv(seqlen_q, BLOCK_M_DQ) * qhead_per_kvhead",
        "tl.cdiv(seqlen_q, BLOCK_M_DQ)",
    ),
    _m(MERGED, "one tile of dK too many", _MERGED, "if tile < num_n_blocks:", "if tile <= num_n_blocks:"),
)

_FEATURES = (
    _m(SOFTCAP, "no derivative of the cap", _DS, "ds *= 1.0 - capped * capped", "ds *= 1.0"),
    _m(SOFTCAP, "derivative of the cap by its root", _DS, "1.0 - capped * capped", "1.0 - tl.abs(capped)"),
    _m(ALIBI, "slopes of the first batch", _HEAD, "AlibiSlopes + off_zh", "AlibiSlopes + off_h"),
    _m(BIAS, "bias of the first head", _HEAD, " * stride_bh", " * 0"),
    _m(BIAS, "gradient of a bias of one batch", _DBIAS, "tl.range(0, batches * heads,", "tl.range(0, heads,"),
    _m(BIAS, "gradient of a bias without delta", _DBIAS, "p * (dp - delta[:, None])", "p * dp"),
    _m(
        BIAS,
        "gradient of a bias scaled",
        _DBIAS,
        "p * (dp - delta[:, None])",
        "p * (dp - delta[:, None]) * softmax_scale",
    ),
    _m(
        BIAS,
        "gradient of a bias past the end",
        _DBIAS,
        "mask=inside_m & (start_n + offs_n < seqlen_k)[None, :])",
        "mask=inside_m)",
    ),
    _m(
        BIAS,
        "gradient of a bias of the wrong heads",
        _DBIAS,
        "first_h + shared % heads",
        "first_h + shared % heads * 0",
    ),
    _m(
        SOFTCAP_BIAS, "gradient of a bias through the cap", _DBIAS, "dbias += p", "dbias += (1.0 - capped * capped) * p"
    ),
    _m(WINDOW_BIAS, "bias not cut as its keys are", _OPERATOR, "self.bias.shape[-1] - seqlen_k", "0"),
    _m(
        WINDOW_BIAS,
        "gradient of unseen bias on the other side",
        _OPERATOR,
        "pad(seen, (first, 0))",
        "pad(seen, (0, first))",
    ),
    _m(SINK, "gradient of a sink with the wrong sign", _OPERATOR, "return -(p * delta)", "return (p * delta)"),
    _m(SINK, "gradient of a sink of one batch", _OPERATOR, "(p * delta).sum((0, 2))", "(p * delta)[0].sum(1)"),
    _m(DROPOUT, "dP not dropped", _DS, "tl.where(kept, dp * keep_scale, 0.0)", "dp * keep_scale"),
    _m(DROPOUT, "dP not rescaled", _DS, "tl.where(kept, dp * keep_scale, 0.0)", "tl.where(kept, dp, 0.0)"),
    _m(DROPOUT, "P dropped in dS too", _DS, "ds = p * (", "ds = tl.where(kept, p, 0.0) * ("),
    _m(DROPOUT, "P of dV not dropped", _DKDV, "tl.where(kept, p * keep_scale, 0.0)", "(p * keep_scale)"),
    _m(DROPOUT, "P of dV not rescaled", _DKDV, "tl.where(kept, p * keep_scale, 0.0)", "tl.where(kept, p, 0.0)"),
    _m(DROPOUT, "every block of keys dropped alike", _P, "(seqlen_k - start_n - offs_n)", "(seqlen_k - offs_n)"),
    _m(DROPOUT, "every batch dropped alike", _DKDV, "_dropout_rows(Seed, off_zh,", "_dropout_rows(Seed, off_h,"),
    _m(
        DROPOUT_BIAS,
        "gradient of a bias not dropped",
        _DBIAS,
        "tl.where(kept, dp * keep_scale, 0.0)",
        "dp * keep_scale",
    ),
)

BACKWARD: tuple[Mutant, ...] = _ROWS + _MASKS + _RANGES + _STEPS + _MEMORY + _FEATURES
