"""Probe: one small problem that a wrong kernel gets wrong. Suite: a fixed list of them, with a hash."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal

from flashgen.spec import AttentionSpec, Op
from flashgen.verify import criterion
from flashgen.verify.reference import Scoring

FillKind = Literal["normal", "grid", "constant", "rising", "falling", "last", "first"]
Layout = Literal[
    "bhsd", "bshd", "mixed", "packed", "expanded", "one_row", "every_second", "cache_tail", "odd_singletons",
    "misaligned", "far_rows", "far_heads", "far_batches",
]  # fmt: skip
BiasKind = Literal["normal", "holes", "blind", "least", "distance"]
Shape = tuple[int, int, int, int, int]
Feature = Literal["window", "softcap", "alibi", "bias", "sink", "dropout", "is_fp8"]
ADDED: tuple[Feature, ...] = ("alibi", "bias")  # in fp32 what is added to a score of 1e4 or more is lost
GRADIENTS = ("dq", "dk", "dv", "dbias", "dsinks")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fill:
    """The values of one input, [Z, H, S, D].

    normal    gain * normal, every bit of the dtype in use
    constant  gain
    grid      gain * normal in steps of about gain / 16
    rising    normal, plus a ramp over the rows from 0 to gain: with q above zero every block of keys raises the maximum
    falling   the ramp reversed: the maximum stands in the first block
    last      normal, and a last row of gain: one huge key at the end
    first     normal, and a first row of gain

    The last five have eight bits or so, in every dtype: large scores are then exact in fp32, where the order of their
    sums would otherwise decide the output. `offset` is added; values too large for the dtype are halved until they fit.
    """

    kind: FillKind = "normal"
    gain: float = 1.0
    offset: float = 0.0


NORMAL = Fill()
# Queries with a component along every key: scores follow the keys' magnitude.
FORWARD = Fill(kind="grid", offset=1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bias:
    """The values of an additive bias, and the dims of [Z, Hq, Sq, Sk] that it has: over the others it broadcasts.

    normal    normal
    holes     normal, and -inf for a third of the pairs and for one key
    blind     normal, and -inf for all of every third query: it sees nothing
    least     normal, and the dtype's least number for all of every third query: it sees every key alike
    distance  i - j, which is larger than any score where a tile reaches past the end
    """

    kind: BiasKind = "normal"
    dims: str = "zhqk"
    fp32: bool = False  # else in the kernel's dtype


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A problem of shape (Z, Hq, Hk, Sq, Sk); head dims, dtype, mask and features are the spec's.

    `window` holds the bounds for specs with a window, `softcap` the cap for specs with one, and so on for each feature;
    `only` limits the probe to specs that have this one, `without` to specs that have none of these. `scale` None is
    head_dim ** -0.5.

    A backward probe's out and lse are the reference's, rounded. Its probabilities come of an lse in fp32, which loses
    |lse| * 2^-24 of each: scores stay within some hundreds, where a forward probe's may be anything.
    """

    name: str
    shape: Shape
    op: Op = "forward"
    q: Fill = NORMAL
    k: Fill = NORMAL
    v: Fill = NORMAL
    layout: Layout = "bshd"
    scale: float | None = None
    window: tuple[int, int] = (40, 3)
    softcap: float = 15.0
    alibi: float = 0.1  # slopes are drawn between 0 and this, another for each batch and head
    bias: Bias = Bias()
    sink: float | None = None  # every head's; None: drawn
    dropout: float = 0.25
    dout_layout: Layout | None = None  # None: laid out as out
    dlse: bool = False  # whether the lse has a gradient, too
    wanted: tuple[str, ...] = GRADIENTS
    only: Feature | None = None
    without: tuple[Feature, ...] = ()

    def suits(self, spec: AttentionSpec) -> bool:
        if self.op != spec.op or any(getattr(spec, feature) for feature in self.without):
            return False
        return self.only is None or bool(getattr(spec, self.only))

    def scoring(self, spec: AttentionSpec) -> Scoring:
        left, right = self.window if spec.window else (-1, 0) if spec.causal else (-1, -1)
        scale = spec.head_dim**-0.5 if self.scale is None else self.scale
        return Scoring(scale=scale, left=left, right=right, softcap=self.softcap if spec.softcap else 0.0)

    def first_seen_key(self, spec: AttentionSpec) -> int:
        """The keys before this one are seen by no query."""
        left, (*_, seqlen_q, seqlen_k) = self.scoring(spec).left, self.shape
        return max(0, seqlen_k - seqlen_q - left) if left >= 0 else 0


def windows(shape: Shape, *bounds: tuple[int, int]) -> tuple[Probe, ...]:
    """A probe for each (left, right), of specs with a window."""
    return tuple(
        Probe(name=f"window {window} over {shape[3]}x{shape[4]}", shape=shape, window=window, only="window")
        for window in bounds
    )


def biases(shape: Shape, *dims: str) -> tuple[Probe, ...]:
    """A probe for each choice of dims that a bias has, of specs with a bias."""
    over = f"over {shape[3]}x{shape[4]}"
    return tuple(
        Probe(name=f"bias of dims {own or 'none'} {over}", shape=shape, bias=Bias(dims=own), only="bias")
        for own in dims
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """Probes in the order they are run: those that are cheap and fell many kernels come first."""

    name: str
    probes: tuple[Probe, ...]

    def __post_init__(self) -> None:
        names = [(probe.op, probe.name) for probe in self.probes]
        assert len(set(names)) == len(names), f"suite {self.name} names a probe twice"

    def suited(self, spec: AttentionSpec) -> tuple[Probe, ...]:
        return tuple(probe for probe in self.probes if probe.suits(spec))

    @property
    def hash(self) -> str:
        """Twelve hex digits over all that a proof by this suite means: the probes, and when a result is exact."""
        factors = (criterion.STANDARD_FACTOR, criterion.GRADIENT_FACTOR, criterion.ROW_FACTOR)
        bounds = (*factors, criterion.ROUNDING_EPS, criterion.FLUSHED, criterion.MIN_ROW)
        meaning = json.dumps([[asdict(probe) for probe in self.probes], bounds], sort_keys=True)
        return hashlib.sha256(meaning.encode()).hexdigest()[:12]
