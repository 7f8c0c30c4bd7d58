"""Faults of the forward kernel without features."""

from __future__ import annotations

from tests.verify.mutant import Mutant, Setting
from tests.verify.mutant import mutant as _m

_KEEP = "concern/keep.jinja"
_RANGE = "concern/key_range.jinja"
_SCORES = "concern/scores.jinja"
_SOFTMAX = "concern/softmax_step.jinja"
_POINTERS = "concern/forward_pointers.jinja"
_EPILOGUE = "concern/forward_epilogue.jinja"
_K, _V = "concern/load_k.jinja", "concern/load_v.jinja"
_TILE = "kernel/forward_tl_tile.jinja"
_KERNEL = "kernel/forward_tl.py.jinja"
_HELPERS = "module/helpers.jinja"
_OPERATOR = "module/operator.jinja"
_SCALE = "        factor = max(self.softmax_scale, 2.0**-126)"

FULL = Setting()
CAUSAL = Setting(variant="causal")
WINDOW = Setting(variant="window")
SOFTCAP = Setting(variant="window_softcap")
FP32 = Setting(dtype="fp32")
SOFTCAP_FP32 = Setting(variant="window_softcap", dtype="fp32")
PADDED = Setting(head_dim=40)
TMA = Setting(knobs={"tma": True})
GROUPED = Setting(knobs={"heads_per_group": 3})
PERSISTENT = Setting(knobs={"programs_per_sm": 1})
LONGEST = Setting(variant="causal", knobs={"longest_first": True})


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
    _m(FULL, "no mask of the tail", _KEEP, "keep = keys < seqlen_k", "keep = keys >= 0"),
    _m(FULL, "tail one key too long", _KEEP, "keep = keys < seqlen_k", "keep = keys <= seqlen_k"),
    _m(FULL, "tail one key too short", _KEEP, "keep = keys < seqlen_k", "keep = keys < seqlen_k - 1"),
    _m(
        WINDOW,
        "window without a tail",
        _KEEP,
        "diagonal + window_right, seqlen_k - 1)",
        "diagonal + window_right, 2**30)",
    ),
    _m(WINDOW, "window one key short on the left", _KEEP, "keys >= (", "keys > ("),
    _m(WINDOW, "window one key long on the left", _KEEP, "diagonal - window_left)", "diagonal - window_left - 1)"),
    _m(WINDOW, "window one key short on the right", _KEEP, "+ window_right,", "+ window_right - 1,"),
    _m(WINDOW, "window one key long on the right", _KEEP, "+ window_right,", "+ window_right + 1,"),
    _m(CAUSAL, "finite sentinel", _TILE, 'qk, float("-inf")', "qk, -1.0e30"),
    _m(FULL, "sentinel that scores reach", _TILE, 'qk, float("-inf")', "qk, -1.0e4"),
    _m(SOFTCAP, "softcap after the mask", _TILE, 'qk, float("-inf")', "qk, -softcap"),
)

_RANGES = (
    _m(CAUSAL, "a masked block taken as full", _RANGE, "start_m + diagonal + 1)", "start_m + diagonal + 1 + BLOCK_N)"),
    _m(
        CAUSAL, "last block missing", _RANGE, "start_m + BLOCK_M + diagonal)", "start_m + BLOCK_M + diagonal - BLOCK_N)"
    ),
    _m(CAUSAL, "a masked block that begins at the diagonal taken as full", _RANGE, "diagonal + 1)", "diagonal + 2)"),
    _m(CAUSAL, "last block missing where it holds one key", _RANGE, "BLOCK_M + diagonal)", "BLOCK_M + diagonal - 1)"),
    _m(FULL, "the tail taken as full", _RANGE, "n_full = seqlen_k // BLOCK_N", "n_full = tl.cdiv(seqlen_k, BLOCK_N)"),
    _m(
        WINDOW,
        "window starts late",
        _RANGE,
        "maximum(first - window_left, 0) // BLOCK_N",
        "maximum(first - window_left + BLOCK_N - 1, 0) // BLOCK_N",
    ),
    _m(WINDOW, "window ends early", _RANGE, "last + window_right + 1)", "last + 1)"),
    _m(
        WINDOW,
        "left edge taken as full",
        _RANGE,
        "maximum(last - window_left, 0)",
        "maximum(first - window_left, 0)",
    ),
    _m(WINDOW, "right edge taken as full", _RANGE, "(n_end, first + window_right", "(n_end, last + window_right"),
)

_STEPS = (
    _m(FULL, "stale maximum", _TILE, "m_i = m_ij", "m_i = m_i"),
    _m(FULL, "output not rescaled", _SOFTMAX, "acc = acc * alpha[:, None]", "acc = acc * 1.0"),
    _m(FULL, "row sum not rescaled", _SOFTMAX, "l_i = l_i * alpha + tl.sum(p, 1)", "l_i = l_i + tl.sum(p, 1)"),
    _m(
        FULL,
        "new terms rescaled too",
        _SOFTMAX,
        "l_i = l_i * alpha + tl.sum(p, 1)",
        "l_i = (l_i + tl.sum(p, 1)) * alpha",
    ),
    _m(FULL, "output rescaled once more", _TILE, "v, acc{{ spec.dot_precision }})", "v, acc) * alpha[:, None]"),
    _m(CAUSAL, "no guard of rows that see nothing", _SOFTMAX, 'tl.where(m_ij == float("-inf"), 0.0, m_ij)', "m_ij"),
    _m(FP32, "p in half the bits", _TILE, "p.to(v.dtype)", "p.to(tl.float16).to(v.dtype)"),
    _m(FULL, "wrong kv head", _TILE, "off_h // qhead_per_kvhead", "off_h % (nheads_q // qhead_per_kvhead)"),
    _m(FULL, "scale missing", _OPERATOR, _SCALE, "        factor = 1.0"),
    _m(FULL, "scale applied twice", _OPERATOR, _SCALE, _SCALE.replace("scale", "scale**2", 1)),
    _m(FULL, "scale 0 times -inf", _OPERATOR, _SCALE, "        factor = self.softmax_scale"),
    _m(SOFTCAP, "softcap without the scale", _SCORES, "(softmax_scale / softcap)", "(1.0 / softcap)"),
    _m(SOFTCAP, "softcap left out", _SCORES, "softcap * capped", "qk * softmax_scale"),
    _m(SOFTCAP_FP32, "tanh by too short a series", _HELPERS, "0.13333333", "0.0"),
)

_EPILOGUES = (
    _m(
        FULL,
        "lse in base 2",
        _EPILOGUE,
        "(m_i * qk_scale + tl.math.log2(l_i)) * LN2",
        "m_i * qk_scale + tl.math.log2(l_i)",
    ),
    _m(FULL, "lse without the row sum", _EPILOGUE, "(m_i * qk_scale + tl.math.log2(l_i))", "(m_i * qk_scale)"),
    _m(FULL, "lse without the scale", _EPILOGUE, "(m_i * qk_scale + tl", "(m_i + tl"),
    _m(CAUSAL, "0 / 0 in rows that see nothing", _EPILOGUE, "tl.where(l_i == 0.0, 1.0, l_i)", "l_i"),
    _m(
        FULL,
        "rows not written",
        _EPILOGUE,
        "out, mask=offs_m[:, None] < seqlen_q)",
        "out, mask=offs_m[:, None] < seqlen_q - 1)",
    ),
    _m(
        FULL,
        "a row too many written",
        _EPILOGUE,
        "out, mask=offs_m[:, None] < seqlen_q)",
        "out, mask=offs_m[:, None] < seqlen_q + 1)",
    ),
    _m(FULL, "lse written past the end", _EPILOGUE, "lse, mask=offs_m < seqlen_q)", "lse, mask=offs_m < seqlen_q + 1)"),
    _m(FULL, "written to the kv head's place", _EPILOGUE, "off_h * stride_oh", "off_hk * stride_oh"),
    _m(
        PADDED,
        "a column too many written",
        _EPILOGUE,
        "offs_dv[None, :] < HEAD_DIM_V",
        "offs_dv[None, :] <= HEAD_DIM_V",
    ),
)

_MEMORY = (
    _m(FULL, "V past the end not zeroed", _V, ", mask=inside_n, other=0.0)", ")"),
    _m(WINDOW, "keys before the window read", _OPERATOR, "max(0, seqlen_k - seqlen_q - self.left)", "0"),
    _m(WINDOW, "first key of the window cut off", _OPERATOR, "seqlen_q - self.left)", "seqlen_q - self.left + 1)"),
    _m(FULL, "K by V's strides", _POINTERS, "rows_n * stride_kn", "rows_n * stride_vn"),
    _m(FULL, "V by K's strides", _POINTERS, "off_hk * stride_vh", "off_hk * stride_kh"),
    _m(TMA, "TMA reads the query's head of K", _K, "[off_z, off_hk, start_n, 0]", "[off_z, off_h, start_n, 0]"),
    _m(TMA, "TMA reads the query's head of V", _V, "= V.load([off_z, off_hk,", "= V.load([off_z, off_h,"),
    _m(FULL, "rows of queries in 32 bits", _POINTERS, "offs_m.to(tl.int64)[:, None]", "offs_m[:, None]", crashes=True),
    _m(FULL, "rows of keys in 32 bits", _POINTERS, "offs_n.to(tl.int64)[:, None]", "offs_n[:, None]", crashes=True),
    _m(FULL, "blocks of keys in 32 bits", _K, "tl.cast(start_n, tl.int64)", "start_n", crashes=True),
    _m(FULL, "heads in 32 bits", _POINTERS, "off_h.to(tl.int64)", "off_h", crashes=True),
    _m(FULL, "batches in 32 bits", _POINTERS, "off_z.to(tl.int64)", "off_z", crashes=True),
)

_TILES = (
    _m(
        GROUPED,
        "last head of a group dropped",
        _HELPERS,
        "num_heads - first_head, HEADS_PER_GROUP)",
        "num_heads - first_head, HEADS_PER_GROUP - 1)",
    ),
    _m(
        GROUPED,
        "last group taken as whole",
        _HELPERS,
        "tl.minimum(num_heads - first_head, HEADS_PER_GROUP)",
        "HEADS_PER_GROUP",
    ),
    _m(PERSISTENT, "last tile dropped", _KERNEL, "num_heads * num_m_blocks, tl", "num_heads * num_m_blocks - 1, tl"),
    _m(LONGEST, "longest tile never started", _TILE, "num_m_blocks - 1 - m_block", "num_m_blocks - 2 - m_block"),
)

FORWARD: tuple[Mutant, ...] = _MASKS + _RANGES + _STEPS + _EPILOGUES + _MEMORY + _TILES
