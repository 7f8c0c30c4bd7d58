"""Faults of what features add to the forward kernel."""

from __future__ import annotations

from tests.verify.mutant import Mutant, Setting
from tests.verify.mutant import mutant as _m

_SCORES = "concern/scores.jinja"
_SOFTMAX = "concern/softmax_step.jinja"
_EPILOGUE = "concern/forward_epilogue.jinja"
_HEAD = "concern/head_features.jinja"
_HELPERS = "module/helpers.jinja"
_TILE = "kernel/forward_tl_tile.jinja"
_OPERATOR = "module/operator.jinja"
_DROP = "p = tl.where(kept, p, 0.0)"

ALIBI = Setting(variant="full_alibi")
BIAS = Setting(variant="full_bias")
BIAS_WINDOW = Setting(variant="window_bias")
SINK = Setting(variant="full_sink")
SINK_CAUSAL = Setting(variant="causal_sink")
DROPOUT = Setting(variant="full_dropout")

_ALIBIS = (
    _m(ALIBI, "slopes added", _SCORES, "qk -= slope", "qk += slope"),
    _m(ALIBI, "distance with its sign", _SCORES, "slope * tl.abs(", "slope * ("),
    _m(ALIBI, "distance aligned top-left", _SCORES, "+ (seqlen_k - seqlen_q) -", "-"),
    _m(ALIBI, "slopes of the first batch", _HEAD, "AlibiSlopes + off_zh", "AlibiSlopes + off_h"),
    _m(ALIBI, "slopes of a kv head", _HEAD, "AlibiSlopes + off_zh", "AlibiSlopes + off_zh // 2 * 2"),
)

_BIASES = (
    _m(BIAS, "bias without its rows", _SCORES, " * stride_bm", " * 0"),
    _m(BIAS, "bias without its columns", _SCORES, " * stride_bn", " * 0"),
    _m(BIAS, "bias of the first head", _HEAD, " * stride_bh", " * 0"),
    _m(BIAS, "bias of the first batch", _HEAD, " * stride_bz", " * 0"),
    _m(BIAS, "bias scaled too", _SCORES, "other=0.0).to(tl.float32)", "other=0.0).to(tl.float32) * softmax_scale"),
    _m(BIAS, "rows of a bias in 32 bits", _SCORES, "offs_m.to(tl.int64){{ m }}", "offs_m{{ m }}", crashes=True),
    _m(BIAS, "heads of a bias in 32 bits", _HEAD, "tl.cast(off_h, tl.int64)", "off_h", crashes=True),
    _m(BIAS, "batches of a bias in 32 bits", _HEAD, "tl.cast(off_z, tl.int64)", "off_z", crashes=True),
    _m(
        BIAS,
        "lse by way of base 2",
        _EPILOGUE,
        "lse = m_i + tl.math.log2(l_i) * LN2",
        "lse = (m_i * qk_scale + tl.math.log2(l_i)) * LN2",
    ),
    _m(BIAS_WINDOW, "bias not cut as its keys are", _OPERATOR, "self.bias.shape[-1] - seqlen_k", "0"),
)

_SINKS = (
    _m(SINK, "sink in base e", _EPILOGUE, "tl.load(Sinks + off_h) * LOG2E", "tl.load(Sinks + off_h)"),
    _m(SINK, "sink of another head", _EPILOGUE, "Sinks + off_h", "Sinks + off_hk"),
    _m(SINK, "sink not in the sum", _EPILOGUE, "l_i * alpha + tl.math.exp2(sink - m_end)", "l_i * alpha"),
    _m(SINK, "row sum not rescaled to the sink", _EPILOGUE, "l_i * alpha + tl", "l_i + tl"),
    _m(SINK, "output not rescaled to the sink", _EPILOGUE, "acc = acc * alpha[:, None]", "acc = acc * 1.0"),
    _m(SINK, "lse without the sink's maximum", _EPILOGUE, "(m_end + tl", "(m_i * qk_scale + tl"),
    _m(
        SINK_CAUSAL,
        "sink in rows with a key alone",
        _EPILOGUE,
        "exp2(sink - m_end)",
        "exp2(tl.where(l_i > 0, sink, m_i) - m_end)",
    ),
)

_DROPOUTS = (
    _m(DROPOUT, "nothing dropped", _SOFTMAX, _DROP, "p = tl.where(kept, p, p)"),
    _m(DROPOUT, "the others dropped", _SOFTMAX, _DROP, "p = tl.where(kept, 0.0, p)"),
    _m(
        DROPOUT,
        "dropped from the sum too",
        _SOFTMAX,
        _DROP,
        f"l_i -= tl.sum(tl.where(kept, 0.0, p), 1)\n        {_DROP}",
    ),
    _m(DROPOUT, "kept not rescaled", _EPILOGUE, "acc *= 1.0 / (1.0 - dropout_p)", "acc *= 1.0"),
    _m(DROPOUT, "kept rescaled by p", _EPILOGUE, "acc *= 1.0 / (1.0 - dropout_p)", "acc *= 1.0 / dropout_p"),
    _m(DROPOUT, "every block of keys dropped alike", _SOFTMAX, "(seqlen_k - start_n - offs_n)", "(seqlen_k - offs_n)"),
    _m(DROPOUT, "every batch dropped alike", _TILE, "_dropout_rows(Seed, off_zh,", "_dropout_rows(Seed, off_h,"),
    _m(DROPOUT, "every block of queries dropped alike", _TILE, "off_zh, offs_m)", "off_zh, offs_m - start_m)"),
    _m(DROPOUT, "the seed without its offset", _HELPERS, "tl.load(Seed + 1)", "tl.load(Seed)"),
    _m(DROPOUT, "the offset without its upper word", _HELPERS, "(offset >> 32)", "(offset * 0)"),
)

FEATURES: tuple[Mutant, ...] = _ALIBIS + _BIASES + _SINKS + _DROPOUTS
