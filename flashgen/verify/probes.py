"""Probe: one small problem that a wrong kernel gets wrong. Suite: a fixed list of them, with a hash."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal

from flashgen.spec import AttentionSpec
from flashgen.verify import criterion
from flashgen.verify.reference import Scoring

FillKind = Literal["normal", "grid", "constant", "rising", "falling", "last", "first"]
Layout = Literal[
    "bhsd", "bshd", "mixed", "packed", "expanded", "every_second", "cache_tail", "odd_singletons", "misaligned",
    "far_rows", "far_heads", "far_batches",
]  # fmt: skip


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
class Probe:
    """A problem of shape (Z, Hq, Hk, Sq, Sk); head dims, dtype and mask are the spec's.

    `window` holds the bounds for specs with a window, `softcap` the cap for specs with one; `only` limits the probe to
    such specs. `scale` None is head_dim ** -0.5.
    """

    name: str
    shape: tuple[int, int, int, int, int]
    q: Fill = NORMAL
    k: Fill = NORMAL
    v: Fill = NORMAL
    layout: Layout = "bshd"
    scale: float | None = None
    window: tuple[int, int] = (40, 3)
    softcap: float = 15.0
    only: Literal["window", "softcap"] | None = None

    def suits(self, spec: AttentionSpec) -> bool:
        return self.only is None or (spec.window if self.only == "window" else spec.softcap)

    def scoring(self, spec: AttentionSpec) -> Scoring:
        left, right = self.window if spec.window else (-1, 0) if spec.causal else (-1, -1)
        scale = spec.head_dim**-0.5 if self.scale is None else self.scale
        return Scoring(scale=scale, left=left, right=right, softcap=self.softcap if spec.softcap else 0.0)

    def first_seen_key(self, spec: AttentionSpec) -> int:
        """The keys before this one are seen by no query."""
        left, (*_, seqlen_q, seqlen_k) = self.scoring(spec).left, self.shape
        return max(0, seqlen_k - seqlen_q - left) if left >= 0 else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """Probes in the order they are run: those that are cheap and fell many kernels come first."""

    name: str
    probes: tuple[Probe, ...]

    def __post_init__(self) -> None:
        names = [probe.name for probe in self.probes]
        assert len(set(names)) == len(names), f"suite {self.name} names a probe twice"

    def suited(self, spec: AttentionSpec) -> tuple[Probe, ...]:
        return tuple(probe for probe in self.probes if probe.suits(spec))

    @property
    def hash(self) -> str:
        """Twelve hex digits over all that a proof by this suite means: the probes, and when a result is exact."""
        bounds = (criterion.STANDARD_FACTOR, criterion.ROW_FACTOR, criterion.ROUNDING_EPS, criterion.MIN_ROW)
        meaning = json.dumps([[asdict(probe) for probe in self.probes], bounds], sort_keys=True)
        return hashlib.sha256(meaning.encode()).hexdigest()[:12]
