"""What is computed: AttentionSpec (all that is fixed at compile time) and Workload (the sizes)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flashgen.errors import SpecError

Op = Literal["forward", "backward"]
Dtype = Literal["fp16", "bf16", "fp32", "fp8"]

OPS: tuple[Op, ...] = ("forward", "backward")
MASKS = ("full", "causal", "window")
FEATURES = ("softcap", "alibi", "bias", "sink", "dropout")  # what may change scores or probabilities, in variant order
DTYPES: tuple[Dtype, ...] = ("bf16", "fp16", "fp32", "fp8")  # of q, k and v
TORCH_NAMES: dict[Dtype, str] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "float8_e4m3fn"}
BYTES_PER_ELEMENT = {"fp16": 2, "bf16": 2, "fp32": 4, "fp8": 1}
MAX_HEAD_DIM = 256
MIN_BLOCK_D = 16  # tl.dot contracts at least 16 elements of a 16-bit dtype


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n` (n >= 1)."""
    return 1 << (n - 1).bit_length()


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class AttentionSpec:
    """One attention function; equal specs render to equal kernels.

    `causal` is aligned bottom-right: query i sees key j iff j <= i + seqlen_k - seqlen_q. `window` makes the two
    bounds of a sliding window arguments of the kernel (they subsume causal), `softcap` likewise its cap. Scores are
    softcap * tanh(softmax_scale * qk / softcap) - slope * |i + seqlen_k - seqlen_q - j| (`alibi`) + bias[i, j]
    (`bias`); `sink` adds exp(sink) of the head to the softmax's denominator, `dropout` drops probabilities by a
    generator keyed by seed and offset.

    dtype `fp8` is e4m3, of which q, k and v each have one descale factor a head: what they stand for is their elements
    times that. Its out is bf16.

    Raises:
        SpecError: a field holds what no family can render.
    """

    op: Op = "forward"
    dtype: Dtype
    head_dim: int
    head_dim_v: int
    causal: bool = False
    window: bool = False
    softcap: bool = False
    alibi: bool = False
    bias: bool = False
    sink: bool = False
    dropout: bool = False

    def __post_init__(self) -> None:
        if self.op not in OPS:
            raise SpecError(f"op {self.op!r} is not one of {', '.join(OPS)}")
        if self.dtype not in DTYPES:
            raise SpecError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        for name in ("head_dim", "head_dim_v"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_HEAD_DIM:
                raise SpecError(f"{name} {value!r} is not an integer from 1 to {MAX_HEAD_DIM}")
        for name in ("causal", "window", *FEATURES):
            if not isinstance(getattr(self, name), bool):
                raise SpecError(f"{name} {getattr(self, name)!r} is neither True nor False")
        if self.causal and self.window:
            raise SpecError("causal and window are one mask: a causal window has window=True and right bound 0")

    @classmethod
    def of_variant(
        cls, variant: str, *, dtype: Dtype, head_dim: int, head_dim_v: int | None = None, op: Op = "forward"
    ) -> AttentionSpec:
        """The spec whose `variant` this is.

        Raises:
            SpecError: a word that is no mask or feature, or words in another order.
        """
        mask, *features = variant.split("_")
        if mask not in MASKS or features != [feature for feature in FEATURES if feature in features]:
            allowed = f"one of {', '.join(MASKS)} and then any of {', '.join(FEATURES)}"
            raise SpecError(f"variant {variant!r} is not {allowed}, joined by _ in this order")
        return cls(
            op=op,
            dtype=dtype,
            head_dim=head_dim,
            head_dim_v=head_dim if head_dim_v is None else head_dim_v,
            causal=mask == "causal",
            window=mask == "window",
            **dict.fromkeys(features, True),
        )

    @property
    def mask(self) -> Literal["full", "causal", "window"]:
        return "causal" if self.causal else "window" if self.window else "full"

    @property
    def variant(self) -> str:
        """The mask and the features in one identifier, such as `causal` or `window_softcap_dropout`."""
        return "_".join((self.mask, *self.features))

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(feature for feature in FEATURES if getattr(self, feature))

    @property
    def scores_are_scaled(self) -> bool:
        """Whether a kernel holds natural-log scores, which something is added to, rather than Q K^T as it is."""
        return self.softcap or self.alibi or self.bias

    @property
    def descaled(self) -> str:
        """Which factor of the scores takes in those of q and k (fp8)."""
        return "softmax_scale" if self.scores_are_scaled else "qk_scale"

    @property
    def element_bytes(self) -> int:
        return BYTES_PER_ELEMENT[self.dtype]

    @property
    def out_dtype(self) -> Dtype:
        return "bf16" if self.is_fp8 else self.dtype

    @property
    def out_bytes(self) -> int:
        """Bytes of an element of out."""
        return BYTES_PER_ELEMENT[self.out_dtype]

    @property
    def is_fp32(self) -> bool:
        return self.dtype == "fp32"

    @property
    def is_fp8(self) -> bool:
        return self.dtype == "fp8"

    @property
    def block_d(self) -> int:
        """Columns of a Q or K tile: head_dim rounded up to a power of two that tl.dot accepts."""
        return max(MIN_BLOCK_D, next_power_of_two(self.head_dim))

    @property
    def block_dv(self) -> int:
        return max(MIN_BLOCK_D, next_power_of_two(self.head_dim_v))

    @property
    def pads_head_dim(self) -> bool:
        """Whether a tile has columns beyond the head, which loads and stores must mask."""
        return self.block_d != self.head_dim or self.block_dv != self.head_dim_v

    @property
    def key_loop(self) -> str:
        """First key and end of a query tile's loop over blocks of keys."""
        return {"full": "0, seqlen_k", "causal": "0, n_end", "window": "n_begin, n_end"}[self.mask]

    @property
    def key_loop_mask(self) -> str:
        """When a block of that loop may hold pairs that are masked or past the end."""
        return "start_n < n_full or start_n >= n_full_end" if self.window else "start_n >= n_full"

    @property
    def query_loop(self) -> str:
        """First query and end of a key tile's loop over blocks of queries."""
        return {"full": "0, seqlen_q", "causal": "m_begin, seqlen_q", "window": "m_begin, m_end"}[self.mask]

    @property
    def query_loop_mask(self) -> str:
        """When a block of that loop may hold masked pairs; queries past the end have an infinite lse, no mask."""
        outside = "start_m < m_full or start_m + BLOCK_M > m_full_end"
        return {"full": "", "causal": "start_m < m_full", "window": outside}[self.mask]

    @property
    def may_mask_whole_row(self) -> bool:
        """Whether a row of a visited block may see no key at all, now or so far; a bias may be -inf."""
        return self.mask != "full" or self.bias

    @property
    def doc(self) -> str:
        """What the forward kernel computes, for its docstring."""
        return f"Out = softmax(scores) V and its Lse, of BLOCK_M queries; {self._described}."

    def doc_backward(self, what: str) -> str:
        """What a kernel of the backward computes, for its docstring."""
        return f"{what}; {self._described}."

    @property
    def _described(self) -> str:
        """The mask and the features in words: `causal`, or `sliding window, softcap, sink`."""
        mask = {"full": "no mask", "causal": "causal", "window": "sliding window"}[self.mask]
        return ", ".join((mask, *self.features))

    @property
    def dot_precision(self) -> str:
        """The argument that keeps tl.dot exact: fp32 must not round its operands to TF32."""
        return ', input_precision="ieee"' if self.is_fp32 else ""

    @property
    def key(self) -> str:
        """A stable name for files and studies, such as `forward-bf16-d128-causal` or `forward-fp16-d192v128-full`."""
        head = f"d{self.head_dim}" if self.head_dim == self.head_dim_v else f"d{self.head_dim}v{self.head_dim_v}"
        return f"{self.op}-{self.dtype}-{head}-{self.variant.replace('_', '-')}"


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Workload:
    """The sizes of one call: q [batch, heads_q, seqlen_q, D], k and v [batch, heads_kv, seqlen_k, D].

    Raises:
        SpecError: a size below 1, or heads_q that is no multiple of heads_kv.
    """

    batch: int
    heads_q: int
    heads_kv: int
    seqlen_q: int
    seqlen_k: int

    def __post_init__(self) -> None:
        for name in ("batch", "heads_q", "heads_kv", "seqlen_q", "seqlen_k"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SpecError(f"workload {name} {value!r} is not a positive integer")
        if self.heads_q % self.heads_kv:
            raise SpecError(f"heads_q {self.heads_q} is not a multiple of heads_kv {self.heads_kv}")

    @property
    def key(self) -> str:
        """Such as `b4-h32x8-q4096-k4096`."""
        heads = f"h{self.heads_q}" if self.heads_q == self.heads_kv else f"h{self.heads_q}x{self.heads_kv}"
        return f"b{self.batch}-{heads}-q{self.seqlen_q}-k{self.seqlen_k}"

    def visible_pairs(self, spec: AttentionSpec) -> float:
        """Query-key pairs of one head that the mask keeps; the field halves the full count for causal."""
        pairs = float(self.seqlen_q) * self.seqlen_k
        return pairs / 2 if spec.causal else pairs

    def flops(self, spec: AttentionSpec) -> float:
        """Matmul FLOPs as the field counts them: 2*D for QK and 2*Dv for PV a visible pair, 2.5 times that backward."""
        heads = self.batch * self.heads_q
        passes = 2.5 if spec.op == "backward" else 1.0
        return passes * 2.0 * (spec.head_dim + spec.head_dim_v) * heads * self.visible_pairs(spec)

    def min_bytes(self, spec: AttentionSpec) -> float:
        """HBM bytes if q, k, v and out move once each, and the fp32 lse; backward also each gradient, once."""
        q_rows = self.batch * self.heads_q * self.seqlen_q
        k_rows = self.batch * self.heads_kv * self.seqlen_k
        passes = 2 if spec.op == "backward" else 1
        elements = passes * (q_rows + k_rows) * (spec.head_dim + spec.head_dim_v)
        wider = passes * q_rows * spec.head_dim_v * (spec.out_bytes - spec.element_bytes)
        return float(elements * spec.element_bytes + wider + 4 * q_rows)
