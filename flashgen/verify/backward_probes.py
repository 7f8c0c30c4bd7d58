"""The probes of the backward pass: those of the forward pass that bear on gradients, smaller, and its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from flashgen.verify.probes import FORWARD, Bias, Fill, Probe, biases, windows

_SHARP = Fill(kind="grid", gain=16.0)


def _backward(probes: Iterable[Probe]) -> tuple[Probe, ...]:
    return tuple(replace(probe, op="backward") for probe in probes)


# Lengths round and between the tiles' edges, and diagonals next to them; more queries than keys, whose first rows a
# causal mask hides.
_LENGTHS = (
    Probe(name="ragged", shape=(2, 2, 1, 37, 69), dlse=True),
    Probe(name="one by one", shape=(1, 1, 1, 1, 1)),
    Probe(name="two by five", shape=(1, 1, 1, 2, 5), dlse=True),
    Probe(name="more queries than keys", shape=(1, 1, 1, 78, 64)),
    Probe(name="one query", shape=(1, 2, 1, 1, 70)),
    Probe(name="one key", shape=(1, 2, 1, 99, 1)),
    Probe(name="whole tiles", shape=(1, 1, 1, 64, 128)),
    Probe(name="one key more than queries", shape=(1, 1, 1, 64, 65)),
    Probe(name="two queries more than keys", shape=(1, 1, 1, 66, 64)),
    Probe(name="one beyond the tiles", shape=(1, 2, 1, 129, 129)),
    Probe(name="one short of the tiles", shape=(1, 1, 1, 63, 127), dlse=True),
    Probe(name="leading tiles hidden", shape=(1, 1, 1, 100, 20), dlse=True),
    Probe(name="primes", shape=(1, 2, 1, 113, 203)),
    Probe(name="many blocks of queries", shape=(1, 1, 1, 300, 70)),
    Probe(name="no keys", shape=(1, 1, 1, 5, 0)),
    Probe(name="no queries", shape=(1, 1, 1, 0, 5)),
)

_GROUPS = (
    Probe(name="3 queries a kv head", shape=(1, 6, 2, 20, 33)),
    Probe(name="7 queries a kv head", shape=(1, 7, 1, 20, 33), dlse=True),
    Probe(name="8 queries a kv head", shape=(1, 8, 1, 16, 48)),
)

# Values under which P recomputed of the lse, or the difference of dP and delta, goes wrong.
_VALUES = (
    Probe(name="sharp", shape=(1, 2, 2, 48, 96), q=_SHARP, k=Fill(kind="grid")),
    Probe(name="rising", shape=(1, 2, 1, 40, 100), q=FORWARD, k=Fill(kind="rising", gain=4.0)),
    Probe(name="falling", shape=(1, 2, 1, 40, 100), q=FORWARD, k=Fill(kind="falling", gain=4.0)),
    # With keys past the end, whose scores of 0 would have probabilities beyond all numbers.
    Probe(name="negative scores", shape=(1, 1, 1, 40, 37), q=FORWARD, k=Fill(kind="grid", offset=-20.0)),
    Probe(name="huge last key", shape=(1, 1, 1, 40, 100), q=FORWARD, k=Fill(kind="last", gain=8.0)),
    Probe(name="equal scores", shape=(1, 1, 1, 40, 100), k=Fill(kind="constant", gain=0.5)),
    Probe(name="scale 0", shape=(1, 1, 1, 20, 37), scale=0.0),
    Probe(name="own scale", shape=(1, 2, 2, 33, 40), q=Fill(kind="grid", gain=4.0), k=Fill(kind="grid"), scale=0.3),
    Probe(name="far from zero", shape=(1, 1, 1, 40, 90), v=Fill(offset=1000.0)),
)

_LAYOUTS = (
    Probe(name="heads before rows", shape=(2, 2, 2, 18, 34), layout="bhsd"),
    Probe(name="each laid out otherwise", shape=(2, 2, 2, 16, 24), layout="mixed", dlse=True),
    Probe(name="packed qkv", shape=(2, 4, 1, 33, 33), layout="packed"),
    Probe(name="one kv head expanded", shape=(2, 2, 2, 8, 33), layout="expanded"),
    Probe(name="odd strides of single dims", shape=(1, 2, 1, 16, 16), layout="odd_singletons"),
    Probe(name="misaligned", shape=(2, 2, 1, 20, 35), layout="misaligned"),
    Probe(name="dout of a sum", shape=(2, 2, 2, 20, 20), dout_layout="one_row"),
    Probe(name="dout of a concatenation", shape=(2, 2, 2, 10, 10), dout_layout="cache_tail"),
    Probe(name="3 far rows of dout", shape=(1, 1, 1, 3, 3), dout_layout="far_rows"),
    Probe(name="3 far rows", shape=(1, 1, 1, 3, 3), layout="far_rows"),
    Probe(name="3 far heads", shape=(1, 3, 3, 3, 3), layout="far_heads"),
    Probe(name="3 far batches", shape=(3, 1, 1, 3, 3), layout="far_batches"),
)

# What autograd does not need is not computed.
_SUBSETS = (
    Probe(name="dq alone", shape=(1, 2, 1, 20, 37), wanted=("dq",)),
    Probe(name="dk and dv", shape=(1, 2, 1, 20, 37), wanted=("dk", "dv"), dlse=True),
    Probe(name="dk alone", shape=(1, 2, 1, 20, 37), wanted=("dk",)),
    Probe(name="dv alone", shape=(1, 2, 1, 20, 37), wanted=("dv",)),
    Probe(name="dq, dk and dv without dbias", shape=(1, 2, 1, 20, 37), wanted=("dq", "dk", "dv"), only="bias"),
    Probe(name="dbias alone", shape=(1, 2, 1, 20, 37), wanted=("dbias",), only="bias"),
    Probe(name="dsinks alone", shape=(1, 2, 1, 20, 37), wanted=("dsinks",), only="sink"),
)

_FEATURES = (
    Probe(name="softcap 30", shape=(1, 2, 1, 24, 40), softcap=30.0, scale=0.3, only="softcap"),
    Probe(name="saturated", shape=(1, 2, 1, 33, 70), q=_SHARP, k=Fill(kind="grid"), softcap=5.0, only="softcap"),
    Probe(name="steep slopes", shape=(2, 3, 1, 40, 70), alibi=1.0, only="alibi"),
    Probe(name="bias with holes", shape=(2, 2, 1, 37, 69), bias=Bias(kind="holes"), only="bias"),
    Probe(
        name="bias that hides all of some queries' keys", shape=(1, 2, 1, 20, 40), bias=Bias(kind="blind"), only="bias"
    ),
    Probe(name="bias i - j", shape=(1, 1, 1, 33, 33), bias=Bias(kind="distance"), only="bias"),
    Probe(name="bias in fp32", shape=(1, 2, 1, 19, 35), bias=Bias(fp32=True), only="bias"),
    *biases((2, 4, 2, 18, 35), "hqk", "zqk", "qk", "zhk", "zhq"),
    Probe(name="sinks of -10000", shape=(1, 2, 1, 20, 40), sink=-1e4, only="sink"),
    Probe(name="sinks of 8", shape=(2, 3, 1, 20, 40), sink=8.0, dlse=True, only="sink"),
    Probe(name="dropout 0.1", shape=(2, 4, 2, 37, 69), dropout=0.1, only="dropout"),
    Probe(name="dropout 0.5", shape=(1, 2, 1, 40, 70), dropout=0.5, dlse=True, only="dropout"),
    Probe(name="dropout 0.9", shape=(1, 2, 1, 40, 100), dropout=0.9, only="dropout"),
)

_WINDOWS = (
    *windows((1, 2, 1, 40, 48), (0, 0), (1, 0), (16, 1), (-1, 5), (9, -1)),
    *windows((1, 1, 1, 69, 32), (32, 64), (7, 0)),  # rows whose window lies before the first key
    *windows((1, 1, 1, 24, 8), (-1, 2**31 - 1)),
    *windows((1, 1, 1, 100, 130), (31, 33), (64, 0)),
    *windows((1, 1, 1, 20, 200), (33, 0)),
)

QUICK = _backward(_LENGTHS + _LAYOUTS + _GROUPS + _VALUES + _SUBSETS + _FEATURES + _WINDOWS)

LARGE = _backward(
    (
        Probe(name="large ragged", shape=(2, 4, 2, 1023, 1024), dlse=True),
        Probe(name="large whole tiles", shape=(1, 2, 2, 1024, 2048)),
        Probe(name="large primes", shape=(1, 3, 1, 997, 2039)),
        Probe(name="large, more queries than keys", shape=(1, 2, 2, 2047, 1000), dlse=True),
        Probe(name="many tiles", shape=(4, 16, 4, 1000, 520), layout="bhsd"),  # more than programs that run at once
        Probe(name="many batches", shape=(65537, 1, 1, 1, 4)),  # more than a grid's second and third axes hold
        # Many tiles, of one step or two and of several: persistent programs count these on from tile to tile.
        Probe(name="many batch elements", shape=(704, 6, 2, 32, 33), dlse=True),
        Probe(name="many heads", shape=(1, 600, 300, 225, 200), dlse=True),
        Probe(name="long keys", shape=(1, 1, 1, 33, 20011)),
        Probe(name="long queries", shape=(1, 2, 1, 20011, 33)),
        Probe(name="32 queries a kv head", shape=(1, 32, 1, 200, 300)),
        Probe(name="large packed qkv", shape=(2, 8, 8, 777, 777), layout="packed"),
        Probe(name="large cache tail", shape=(2, 8, 2, 130, 1500), layout="cache_tail"),
        Probe(name="every second token", shape=(2, 2, 1, 130, 260), layout="every_second"),
        Probe(name="large dout of a sum", shape=(2, 4, 4, 500, 500), dout_layout="one_row"),
        Probe(name="129 far rows", shape=(1, 1, 1, 129, 129), layout="far_rows"),
        Probe(name="129 far rows of dout", shape=(1, 1, 1, 129, 129), dout_layout="far_rows"),
        Probe(name="large sharp", shape=(1, 4, 4, 512, 1000), q=_SHARP, k=Fill(kind="grid")),
        Probe(name="large rising", shape=(1, 2, 1, 500, 2000), q=FORWARD, k=Fill(kind="rising", gain=4.0)),
        Probe(name="large falling", shape=(1, 2, 1, 500, 2000), q=FORWARD, k=Fill(kind="falling", gain=4.0)),
        Probe(name="large huge last key", shape=(1, 2, 1, 500, 2000), q=FORWARD, k=Fill(kind="last", gain=8.0)),
        Probe(name="large equal scores", shape=(1, 2, 1, 200, 3001), k=Fill(kind="constant", gain=0.5)),
        Probe(name="large far from zero", shape=(1, 2, 1, 200, 3001), v=Fill(offset=1000.0)),
        Probe(name="large dq alone", shape=(1, 4, 2, 700, 900), wanted=("dq",)),
        Probe(name="large dk and dv", shape=(1, 4, 2, 700, 900), wanted=("dk", "dv")),
        Probe(name="large bias with holes", shape=(2, 4, 2, 513, 700), bias=Bias(kind="holes"), only="bias"),
        *biases((2, 4, 2, 300, 517), "qk", "zqk", "hqk", "zhk"),
        Probe(name="large dropout", shape=(2, 4, 2, 1000, 1111), dropout=0.5, only="dropout"),
        *windows((1, 2, 1, 1000, 1500), (0, 0), (127, 0), (128, 1), (255, 256), (256, 255), (1000, 100), (-1, 9)),
        *windows((1, 2, 1, 1500, 1000), (255, 0), (256, 257), (700, -1)),
    )
)
