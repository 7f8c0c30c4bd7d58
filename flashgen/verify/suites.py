"""The suites. QUICK also suits Triton's interpreter; FULL is QUICK and what needs a GPU's speed.

Here stand the forward probes; backward_probes.py has those of the backward pass.
"""

from __future__ import annotations

from flashgen.verify import backward_probes
from flashgen.verify.probes import ADDED, FORWARD, Bias, Fill, Probe, Suite, biases, windows

_HUGE = Fill(kind="constant", gain=133120.0)  # 65 * 2^11: its scores pass 1e12, and no sum of them rounds in fp32

# Lengths round and between the tiles' edges, and diagonals next to them; more queries than keys, whose first rows a
# causal mask hides.
_LENGTHS = (
    Probe(name="ragged", shape=(2, 2, 1, 37, 69)),
    Probe(name="one by one", shape=(1, 1, 1, 1, 1)),
    Probe(name="two by five", shape=(1, 1, 1, 2, 5)),
    Probe(name="more queries than keys", shape=(1, 1, 1, 78, 64)),
    Probe(name="one query", shape=(1, 2, 1, 1, 70)),
    Probe(name="one key", shape=(1, 2, 1, 239, 1)),
    Probe(name="whole tiles", shape=(1, 1, 1, 128, 256)),
    Probe(name="one key more than queries", shape=(1, 1, 1, 64, 65)),
    Probe(name="two queries more than keys", shape=(1, 1, 1, 66, 64)),
    Probe(name="one beyond the tiles", shape=(1, 2, 1, 129, 257)),
    Probe(name="one short of the tiles", shape=(1, 1, 1, 127, 255)),
    Probe(name="primes", shape=(1, 2, 2, 113, 203)),
    Probe(name="leading tiles hidden", shape=(1, 1, 1, 300, 40)),
    Probe(name="many blocks of keys", shape=(1, 1, 1, 17, 700)),
    Probe(name="no keys", shape=(1, 1, 1, 5, 0)),
    Probe(name="no queries", shape=(1, 1, 1, 0, 5)),
)

_GROUPS = (
    Probe(name="6 queries a kv head", shape=(1, 12, 2, 20, 33)),
    Probe(name="7 queries a kv head", shape=(1, 7, 1, 20, 33)),
    Probe(name="8 queries a kv head", shape=(1, 8, 1, 16, 48)),
    Probe(name="heads that no group size divides", shape=(1, 11, 11, 18, 19)),
)

# Values under which a shortcut in the online softmax shows.
_VALUES = (
    Probe(name="sharp", shape=(1, 2, 2, 64, 192), q=Fill(kind="grid", gain=30.0), k=Fill(kind="grid")),
    Probe(name="rising", shape=(1, 2, 1, 70, 300), q=FORWARD, k=Fill(kind="rising", gain=4.0)),
    Probe(name="falling", shape=(1, 2, 1, 70, 300), q=FORWARD, k=Fill(kind="falling", gain=4.0)),
    Probe(name="huge last key", shape=(1, 1, 1, 40, 300), q=FORWARD, k=Fill(kind="last", gain=30.0)),
    Probe(name="huge first key", shape=(1, 1, 1, 40, 300), q=FORWARD, k=Fill(kind="first", gain=30.0)),
    Probe(name="equal scores", shape=(1, 1, 1, 40, 300), k=Fill(kind="constant", gain=0.5)),
    Probe(name="scale 0", shape=(1, 1, 1, 20, 37), scale=0.0),
    Probe(name="own scale", shape=(1, 2, 2, 33, 40), q=Fill(kind="grid", gain=4.0), k=Fill(kind="grid"), scale=0.3),
    Probe(
        name="scores of 1e4",
        shape=(1, 1, 1, 65, 130),
        q=Fill(kind="grid", gain=100.0),
        k=Fill(kind="grid", gain=100.0),
        softcap=50.0,
        without=ADDED,
    ),
    Probe(
        name="three scores of 1e4",  # in some rows all are negative, and a finite stand-in for -inf is the maximum
        shape=(1, 1, 1, 50, 3),
        q=Fill(kind="grid", gain=100.0),
        k=Fill(kind="grid", gain=100.0),
        softcap=50.0,
        without=ADDED,
    ),
    Probe(name="133120", shape=(1, 1, 1, 1, 1), q=_HUGE, k=_HUGE, v=_HUGE, without=ADDED),
    Probe(name="scores of 1e12", shape=(1, 1, 1, 33, 65), q=_HUGE, k=_HUGE, without=ADDED),
    Probe(name="far from zero", shape=(1, 1, 1, 40, 150), v=Fill(offset=1000.0)),
    Probe(  # all keys but the last have probabilities that are small, and much of the sum together
        name="many small ones beside a large",
        shape=(2, 4, 2, 10, 1500),
        q=FORWARD,
        k=Fill(kind="last", gain=1.0),
        v=Fill(offset=1000.0),
        only="is_fp8",
    ),
    Probe(  # in a sum of 14 bits over all keys, the later ones would be lost
        name="many keys far from zero",
        shape=(1, 1, 1, 10, 8192),
        q=Fill(gain=0.1),
        v=Fill(gain=0.25, offset=1.5),
        only="is_fp8",
    ),
    Probe(name="tiny values", shape=(1, 1, 1, 40, 150), v=Fill(gain=2.0**-20)),
)

_SOFTCAPS = (
    Probe(name="softcap 30", shape=(1, 2, 1, 24, 40), softcap=30.0, scale=0.3, only="softcap"),
    Probe(name="softcap barely bends", shape=(1, 1, 1, 33, 40), softcap=400.0, only="softcap"),
    Probe(
        name="saturated",
        shape=(1, 2, 1, 33, 130),
        q=Fill(kind="grid", gain=30.0),
        k=Fill(kind="grid"),
        softcap=50.0,
        only="softcap",
    ),
)

_ALIBIS = (
    Probe(name="steep slopes", shape=(2, 3, 1, 40, 70), alibi=2.0, only="alibi"),
    Probe(name="slopes 0", shape=(1, 2, 1, 20, 40), alibi=0.0, only="alibi"),
)

_BIASES = (
    Probe(name="bias with holes", shape=(2, 2, 1, 37, 69), bias=Bias(kind="holes"), only="bias"),
    Probe(
        name="bias that hides all of some queries' keys", shape=(1, 2, 1, 20, 40), bias=Bias(kind="blind"), only="bias"
    ),
    Probe(name="bias of the least number", shape=(1, 2, 1, 20, 40), bias=Bias(kind="least", fp32=True), only="bias"),
    Probe(name="bias i - j", shape=(1, 1, 1, 33, 33), bias=Bias(kind="distance"), only="bias"),
    Probe(name="bias in fp32", shape=(1, 2, 1, 19, 35), bias=Bias(fp32=True), only="bias"),
    *biases((2, 4, 2, 18, 35), "hqk", "zqk", "qk", "zhk", "zhq", ""),
)

_SINKS = (
    Probe(name="sinks of -10000", shape=(1, 2, 1, 20, 40), sink=-1e4, only="sink"),
    Probe(name="sinks of 0", shape=(1, 2, 1, 20, 40), sink=0.0, only="sink"),
    Probe(name="sinks of 40", shape=(1, 2, 1, 20, 40), sink=40.0, only="sink"),
)

_DROPOUTS = (
    Probe(name="dropout 0.1", shape=(2, 4, 2, 37, 69), dropout=0.1, only="dropout"),
    Probe(name="dropout 0.5", shape=(1, 2, 1, 70, 130), dropout=0.5, only="dropout"),
    Probe(name="dropout 0.5 by another seed", shape=(1, 2, 1, 70, 130), dropout=0.5, only="dropout"),
    Probe(name="dropout 0.9", shape=(1, 2, 1, 40, 200), dropout=0.9, only="dropout"),
)

_LAYOUTS = (
    Probe(name="heads before rows", shape=(2, 2, 2, 33, 70), layout="bhsd"),
    Probe(name="each laid out otherwise", shape=(2, 2, 2, 16, 24), layout="mixed"),
    Probe(name="packed qkv", shape=(2, 4, 1, 40, 40), layout="packed"),
    Probe(name="one kv head expanded", shape=(2, 2, 2, 8, 33), layout="expanded"),
    Probe(name="every second token", shape=(2, 2, 1, 16, 24), layout="every_second"),
    Probe(name="last rows of a cache", shape=(2, 2, 1, 16, 40), layout="cache_tail"),
    Probe(name="odd strides of single dims", shape=(1, 2, 1, 16, 16), layout="odd_singletons"),
    Probe(name="misaligned", shape=(2, 2, 1, 20, 35), layout="misaligned"),
    Probe(name="3 far rows", shape=(1, 1, 1, 3, 3), layout="far_rows"),
    Probe(name="3 far heads", shape=(1, 3, 3, 3, 3), layout="far_heads"),
    Probe(name="3 far batches", shape=(3, 1, 1, 3, 3), layout="far_batches"),
    Probe(name="129 far rows", shape=(1, 1, 1, 129, 129), layout="far_rows"),
)


_WINDOWS = (
    *windows((1, 1, 1, 40, 48), (0, 0), (1, 0), (0, 1), (15, 0), (16, 1), (17, 2), (-1, 0), (-1, 5), (9, -1)),
    *windows((1, 2, 1, 129, 32), (32, 64), (7, 0)),  # rows whose window lies before the first key
    *windows((1, 1, 1, 24, 8), (-1, 2**31 - 1), (0, 7), (-1, -1)),  # bounds beyond the ends
    *windows((1, 1, 1, 150, 300), (63, 64), (64, 63), (65, 0), (127, 129), (128, 128), (200, 17)),
    *windows((1, 1, 1, 20, 400), (31, 0), (33, 33), (300, 0)),
)

_FEATURES = _SOFTCAPS + _ALIBIS + _BIASES + _SINKS + _DROPOUTS
_FORWARD = _LENGTHS + _LAYOUTS + _GROUPS + _VALUES + _FEATURES + _WINDOWS

QUICK = Suite(name="quick", probes=_FORWARD + backward_probes.QUICK)

_LARGE = (
    Probe(name="large ragged", shape=(2, 4, 2, 1023, 1024)),
    Probe(name="large whole tiles", shape=(1, 2, 2, 2048, 4096)),
    Probe(name="large primes", shape=(1, 3, 1, 997, 2039)),
    Probe(name="large, more queries than keys", shape=(1, 2, 2, 2047, 1000)),
    Probe(name="48 queries a kv head", shape=(1, 48, 1, 200, 300)),
    Probe(name="many tiles", shape=(4, 16, 4, 1000, 520), layout="bhsd"),  # more than programs that run at once
    Probe(name="many batches", shape=(65537, 1, 1, 1, 4)),  # more than a grid's second and third axes hold
    Probe(name="long keys", shape=(1, 1, 1, 33, 65537)),
    Probe(name="large packed qkv", shape=(2, 8, 8, 777, 777), layout="packed"),
    Probe(name="large cache tail", shape=(2, 8, 2, 130, 1500), layout="cache_tail"),
    Probe(name="large sharp", shape=(1, 4, 4, 512, 1000), q=Fill(kind="grid", gain=30.0), k=Fill(kind="grid")),
    Probe(name="keys of gain 64", shape=(1, 4, 4, 512, 512), q=Fill(kind="grid"), k=Fill(kind="grid", gain=64.0)),
    Probe(name="large rising", shape=(1, 2, 1, 500, 3000), q=FORWARD, k=Fill(kind="rising", gain=8.0)),
    Probe(name="large falling", shape=(1, 2, 1, 500, 3000), q=FORWARD, k=Fill(kind="falling", gain=8.0)),
    Probe(name="large huge last key", shape=(1, 2, 1, 500, 3000), q=FORWARD, k=Fill(kind="last", gain=60.0)),
    Probe(name="large equal scores", shape=(1, 2, 1, 200, 3001), k=Fill(kind="constant", gain=0.5)),
    Probe(name="large far from zero", shape=(1, 2, 1, 200, 3001), v=Fill(offset=1000.0)),
    *windows((1, 2, 1, 1000, 1500), (0, 0), (127, 0), (128, 1), (255, 256), (256, 255), (257, 0), (1000, 100), (-1, 9)),
    *windows((1, 2, 1, 1500, 1000), (255, 0), (256, 257), (700, -1)),
)

FULL = Suite(name="full", probes=QUICK.probes + _LARGE + backward_probes.LARGE)

SUITES = {suite.name: suite for suite in (QUICK, FULL)}
