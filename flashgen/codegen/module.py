"""The emitted module as data, and its text: a pure function of the rows, so that equal rows give equal bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flashgen.codegen.environment import render
from flashgen.codegen.kernel import Kernel, kernel_names, render_kernels
from flashgen.config import KernelConfig
from flashgen.errors import TemplateError
from flashgen.families import FAMILIES, GLUON_TRITONS, GluonSm90BackwardConfig, GluonSm90Config, TlBackwardConfig
from flashgen.families.gluon_sm90_backward import dq_columns_of
from flashgen.spec import DTYPES, FEATURES, MASKS, OPS, TORCH_NAMES, AttentionSpec

_TORCH_DTYPES: dict[str, str] = {dtype: f"torch.{name}" for dtype, name in TORCH_NAMES.items()}
_LINE_LENGTH = 120
# The first kernel of a backward, and of one whose programs add dq up in fp32; the last of the latter.
_PREPARE, _PREPARE_SUM, _FINISH = "_attn_bwd_prepare", "_attn_bwd_prepare_sum", "_attn_bwd_finish"
_TRANSPOSE_V = "_attn_fwd_transpose_v"  # the first kernel of a forward in fp8


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One rule of the emitted table: `config` serves `spec`, in `dtypes`, for up to `max_seqlen_k` keys."""

    spec: AttentionSpec
    dtypes: tuple[str, ...]
    config: KernelConfig
    max_seqlen_k: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.dtypes, tuple) or not set(self.dtypes) <= set(DTYPES):
            raise TemplateError(f"dtypes {self.dtypes!r} is not a tuple of {', '.join(DTYPES)}")
        if self.max_seqlen_k is not None and not isinstance(self.max_seqlen_k, int):
            raise TemplateError(f"max_seqlen_k {self.max_seqlen_k!r} is neither an integer nor None")

    @property
    def order(self) -> tuple[object, ...]:
        """Where the row stands in its table: the order in which a reader looks for it."""
        spec = self.spec
        limit = float("inf") if self.max_seqlen_k is None else self.max_seqlen_k
        dtype, ordered = DTYPES.index(self.dtypes[0]), not FAMILIES[self.config.family].unordered
        return (OPS.index(spec.op), dtype, spec.head_dim, spec.head_dim_v, _variant_order(spec.variant), ordered, limit)


def _variant_order(variant: str) -> tuple[object, ...]:
    """Plain kernels before those with features, masks in their own order."""
    mask, *features = variant.split("_")
    return tuple(feature in features for feature in reversed(FEATURES[1:])), MASKS.index(mask), "softcap" in features


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuTable:
    """The rules of one GPU: `pattern` is a regular expression over the device name that the driver reports."""

    slug: str
    pattern: str
    comment: str
    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        return self.slug.upper().replace("-", "_")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleContent:
    """All that a module says. `portable` rows fit any GPU that offers `portable_shared_bytes` a block."""

    gpus: tuple[GpuTable, ...]
    portable: tuple[Row, ...]
    portable_shared_bytes: int
    facts: tuple[str, ...]
    command: str
    version: str
    filename: str = "flash_attention.py"

    def __post_init__(self) -> None:
        if not isinstance(self.portable_shared_bytes, int):
            raise TemplateError(f"portable_shared_bytes {self.portable_shared_bytes!r} is not an integer")
        if not isinstance(self.facts, tuple):
            raise TemplateError(f"facts {self.facts!r} is not a tuple of lines")
        for name in ("command", "version", "filename"):
            if not isinstance(getattr(self, name), str):
                raise TemplateError(f"{name} {getattr(self, name)!r} is not text")


class ModuleView:
    """What the module's templates read."""

    def __init__(self, content: ModuleContent) -> None:
        self.content = content
        self.version, self.command = content.version, _docstring_text(content.command)
        self.filename, self.facts = content.filename, [_docstring_text(fact) for fact in content.facts]
        self.portable_shared_bytes = content.portable_shared_bytes
        self.rows = [row for table in content.gpus for row in table.rows] + list(content.portable)
        self.has_forward, self.has_backward = (any(row.spec.op == op for row in self.rows) for op in OPS)
        self.kernels = _distinct_kernels(self.rows)
        self.has_window = any(row.spec.window for row in self.rows)
        self.features = tuple(each for each in FEATURES if any(each in row.spec.features for row in self.rows))
        self.public = _literal("[]", _public(self.has_forward, "dropout" in self.features), used=len("__all__ = "))
        self.scaling = [feature for feature in ("softcap", "alibi", "bias") if feature in self.features]
        self.has_fp8 = any(row.spec.is_fp8 for row in self.rows)
        self.feature_tensors = [each for feature, each in _FEATURE_TENSORS.items() if feature in self.features]
        self.tensors = self.feature_tensors + (_DESCALES if self.has_fp8 else [])
        self.differentiable = [argument for argument in self.tensors if argument in ("bias", "sinks")]
        self.arguments = self.tensors + (["dropout_p"] if "dropout" in self.features else [])
        hopper = [row.config for row in self.rows if isinstance(row.config, GluonSm90Config)]
        self.has_gluon_forward, self.has_ping_pong = bool(hopper), any(config.ping_pong for config in hopper)
        hopper_backward = [row.config for row in self.rows if isinstance(row.config, GluonSm90BackwardConfig)]
        self.has_gluon_backward = bool(hopper_backward)
        self.has_persistent_backward = any(config.persistent for config in hopper_backward)
        self.has_grouped_backward = any(config.grouped for config in hopper_backward)
        self.has_gluon_persistent = self.has_persistent_backward or any(config.persistent for config in hopper)
        counts_heads = self.has_forward or self.has_persistent_backward
        self.sizes = _literal("[]", _sizes(counts_heads, self.has_window), used=len("SIZES = "))
        self.has_gluon = self.has_gluon_forward or self.has_gluon_backward
        self.has_unordered = any(FAMILIES[row.config.family].unordered for row in self.rows)
        self.has_tma = self.has_gluon or self._any_knob("tma")
        self.has_persistent = self.has_gluon_forward or any(
            row.spec.op == "forward" and row.config.knobs().get("programs_per_sm") for row in self.rows
        )
        self.has_maxnreg, self.has_merged = self._any_knob("maxnreg"), self._any_knob("merged")
        self.has_dq_as_held, self.has_packs = self._any_knob("dq_as_held"), self._any_knob("pack_gqa")
        self.has_lane_sums, self.has_joint_release = self._any_knob("lane_sums"), self._any_knob("joint_release")
        portable = GpuTable(slug="portable", pattern="", comment=_PORTABLE_COMMENT, rows=content.portable)
        self.tables = [
            _table_view(table, self.has_backward, self.has_dq_as_held) for table in (*content.gpus, portable)
        ]
        self.gpus = [{"pattern": _pattern_literal(table.pattern), "table": table.name} for table in content.gpus]
        tuned = [row for table in content.gpus for row in table.rows if row.spec.is_fp8]  # no portable row is
        self.served = _served((*content.portable, *tuned), "forward" if self.has_forward else "backward")

    @property
    def kind(self) -> str:
        """What the module computes, in words: fp8 is not exact as other dtypes are."""
        return "attention in e4m3" if all(row.spec.is_fp8 for row in self.rows) else "exact attention"

    @property
    def config_types(self) -> list[str]:
        """The classes of the configs in the table."""
        held = {
            "Config": self.has_forward,
            "HopperConfig": self.has_gluon_forward,
            "BackwardConfig": self.has_backward,
            "HopperBackwardConfig": self.has_gluon_backward,
        }
        return [name for name, present in held.items() if present]

    @property
    def given_features(self) -> str:
        """The operators' dict of the features' arguments."""
        pairs = [f'"{name}": {name}' for name in self.arguments]
        line = "{" + ", ".join(pairs) + "}"
        if len(f"    features = {line}") <= _LINE_LENGTH:
            return line
        return "{\n" + "".join(f"        {pair},\n" for pair in pairs) + "    }"

    @property
    def gluon_types(self) -> str:
        """Those of them that are for kernels in Gluon, as isinstance takes them."""
        names = [name for name in self.config_types if name.startswith("Hopper")]
        return names[0] if len(names) == 1 else f"({', '.join(names)})"

    @property
    def gluon_tritons(self) -> str:
        return repr(GLUON_TRITONS)

    @property
    def needs_log2e(self) -> bool:
        return self.has_backward or bool({"softcap", "sink"}.intersection(self.features))

    def __getattr__(self, name: str) -> bool:
        """`has_softcap` and the like: whether a kernel has the feature."""
        if name.startswith("has_") and name.removeprefix("has_") in FEATURES:
            return name.removeprefix("has_") in self.features
        raise AttributeError(name)

    def _any_knob(self, name: str) -> bool:
        return any(row.config.knobs().get(name) for row in self.rows)


# The tensor that the operator takes for a feature; those that get a gradient come first.
_FEATURE_TENSORS = {"bias": "bias", "sink": "sinks", "alibi": "alibi_slopes", "dropout": "seed"}
_DESCALES = ["q_descale", "k_descale", "v_descale"]  # what it takes for fp8
_PORTABLE_COMMENT = "For any GPU, and for tensors that TMA cannot describe: small tiles, loaded through pointers."


def _docstring_text(text: str) -> str:
    """`text` as it must stand between triple quotes to be read back unchanged."""
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')


def _pattern_literal(pattern: str) -> str:
    return repr(pattern) if '"' in pattern else f'r"{pattern}"'


def _distinct_kernels(rows: Iterable[Row]) -> list[Kernel]:
    """The kernels that the rows run, each once, variant by variant."""
    rows = list(rows)
    kernels: dict[str, Kernel] = {}
    for row in sorted(rows, key=lambda row: (OPS.index(row.spec.op), _variant_order(row.spec.variant))):
        if row.spec.op == "backward" and _PREPARE not in kernels:
            kernels |= _kernels_around(rows)
        if row.spec.is_fp8 and _TRANSPOSE_V not in kernels:
            text = render("kernel/forward_transpose_v.py.jinja", name=_TRANSPOSE_V)
            kernels[_TRANSPOSE_V] = Kernel(name=_TRANSPOSE_V, source=text)
        for kernel in render_kernels(row.spec, row.config).values():
            known = kernels.setdefault(kernel.name, kernel)
            assert known == kernel, f"two kernels would be named {kernel.name}"
    return list(kernels.values())


def _kernels_around(rows: list[Row]) -> dict[str, Kernel]:
    """What runs before and after a backward's own kernels."""
    prepare, finish = "kernel/backward_prepare.py.jinja", "kernel/backward_finish.py.jinja"
    has_bias = any(row.spec.bias for row in rows)
    texts = {_PREPARE: render(prepare, name=_PREPARE, has_bias=has_bias, sums_dq=False, pads_dq=False)}
    hopper = [row.config for row in rows if isinstance(row.config, GluonSm90BackwardConfig)]
    if hopper:
        pads_dq = any(config.dq_as_held for config in hopper)
        texts[_PREPARE_SUM] = render(prepare, name=_PREPARE_SUM, has_bias=has_bias, sums_dq=True, pads_dq=pads_dq)
    for config in hopper:
        name = _finish_name(config)
        texts[name] = render(finish, name=name, as_held=config.dq_as_held)
    return {name: Kernel(name=name, source=text) for name, text in texts.items()}


def _finish_name(config: GluonSm90BackwardConfig) -> str:
    return _FINISH + ("_held" if config.dq_as_held else "")


def _config_arguments(row: Row, has_dq_as_held: bool) -> str:
    """The row's `config=` argument, as it stands in the table."""
    names = kernel_names(row.spec, row.config)
    if isinstance(row.config, TlBackwardConfig):
        return _backward_config(row.config, names)
    knobs = row.config.knobs()
    positional = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
    shown = {name: knobs[name] for name in positional}
    if isinstance(row.config, GluonSm90BackwardConfig):
        shown |= {"dq_columns": dq_columns_of(row.spec, row.config)}
        held = [f"{name}={value}" for name, value in shown.items()]
        held += [f"finish={_finish_name(row.config)}"] if has_dq_as_held else []
        held += ["dq_as_held=True"] if row.config.dq_as_held else []
        held += [f"heads_per_group={row.config.heads_per_group}"] if row.config.grouped else []
        held += [f"programs_per_sm={row.config.programs_per_sm}"] if row.config.persistent else []
        return _call("config=HopperBackwardConfig", [names["bwd"], *held], indent=8)
    shown |= {"heads_per_group": knobs["heads_per_group"]} if knobs["heads_per_group"] != 1 else {}
    shown |= {name: knobs[name] for name in ("tma", "programs_per_sm", "maxnreg", "pack_gqa") if knobs.get(name)}
    callee = "config=HopperConfig" if isinstance(row.config, GluonSm90Config) else "config=Config"
    return _call(callee, [names["fwd"], *(f"{name}={value!r}" for name, value in shown.items())], indent=8)


def _backward_config(config: TlBackwardConfig, names: dict[str, str]) -> str:
    passes = {
        "dkdv": (config.BLOCK_M, config.BLOCK_N, config.num_warps, config.num_stages),
        "dq": config.as_dq,
    }
    lines = [
        _call(
            f"{role}=Pass",
            [
                "None" if config.merged else names[f"bwd_{role}"],
                *(f"{name}={value}" for name, value in zip(("BLOCK_M", "BLOCK_N", "num_warps", "num_stages"), values)),
            ],
            indent=12,
        )
        for role, values in passes.items()
    ]
    lines += [f"merged={names['bwd']},"] if config.merged else []
    lines += [f"dbias={names['bwd_dbias']},"] if "bwd_dbias" in names else []
    lines += ["tma=True,"] if config.tma else []
    return "config=BackwardConfig(\n" + "".join(f"            {line}\n" for line in lines) + "        ),"


def _call(callee: str, arguments: list[str], indent: int) -> str:
    """`callee(arguments),` broken over lines the way ruff format breaks it at 120 columns."""
    pad, line = " " * indent, ", ".join(arguments)
    if indent + len(callee) + len(line) + 3 <= _LINE_LENGTH:
        return f"{callee}({line}),"
    if indent + 4 + len(line) <= _LINE_LENGTH:
        return f"{callee}(\n{pad}    {line}\n{pad}),"
    return f"{callee}(\n" + "".join(f"{pad}    {argument},\n" for argument in arguments) + f"{pad}),"


def _table_view(table: GpuTable, has_backward: bool, has_dq_as_held: bool) -> dict[str, object]:
    rows = [
        {
            "op": row.spec.op if has_backward else "",
            "dtypes": "("
            + ", ".join(_TORCH_DTYPES[d] for d in row.dtypes)
            + ("," if len(row.dtypes) == 1 else "")
            + ")",
            "head_dim": row.spec.head_dim,
            "head_dim_v": row.spec.head_dim_v,
            "variant": row.spec.variant,
            "max_seqlen_k": repr(row.max_seqlen_k),
            "config": _config_arguments(row, has_dq_as_held),
        }
        for row in sorted(table.rows, key=lambda row: row.order)
    ]
    return {"name": table.name, "comment": table.comment, "rows": rows}


def _served(rows: Iterable[Row], op: str) -> list[dict[str, object]]:
    """Per dtype and (head_dim, head_dim_v), the variants that the portable rows of `op` cover."""
    held: dict[str, dict[tuple[int, int], set[str]]] = {}
    for row in (row for row in rows if row.spec.op == op):
        for dtype in row.dtypes:
            pair = (row.spec.head_dim, row.spec.head_dim_v)
            held.setdefault(dtype, {}).setdefault(pair, set()).add(row.spec.variant)
    return [
        {
            "dtype": _TORCH_DTYPES[dtype],
            "pairs": [
                {"pair": str(pair), "variants": _variants(pair, sorted(variants, key=_variant_order))}
                for pair, variants in sorted(held[dtype].items())
            ],
        }
        for dtype in DTYPES
        if dtype in held
    ]


def _variants(pair: tuple[int, int], variants: list[str]) -> str:
    return _literal("()", variants, used=len(f"        {pair}: ,"), indent=8)


def _public(has_forward: bool, has_dropout: bool) -> list[str]:
    """The names that a module offers."""
    functions = ["flash_attention", "flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func"]
    return (["dropout_mask"] if has_dropout else []) + (functions if has_forward else [])


def _sizes(counts_heads: bool, has_window: bool) -> list[str]:
    """The kernels' arguments that change from call to call."""
    sizes = ["nheads_q", "qhead_per_kvhead", "seqlen_q", "seqlen_k"]
    return (["num_heads"] if counts_heads else []) + sizes + (["window_left", "window_right"] if has_window else [])


def _literal(brackets: str, words: list[str], *, used: int, indent: int = 0) -> str:
    """A list or tuple of words, broken the way ruff format breaks it on a line of which `used` columns are taken."""
    opening, closing = brackets[0], brackets[1]
    quoted = [f'"{word}"' for word in words]
    line = opening + ", ".join(quoted) + ("," if brackets == "()" and len(words) == 1 else "") + closing
    if used + len(line) <= _LINE_LENGTH:
        return line
    pad = " " * indent
    return f"{opening}\n" + "".join(f"{pad}    {word},\n" for word in quoted) + pad + closing


def render_module(content: ModuleContent) -> str:
    """The module's text.

    Raises:
        TemplateError: a template is wrong.
    """
    return render("module/module.py.jinja", module=ModuleView(content))


def render_kernel_text(content: ModuleContent) -> str:
    """The text of the module's device functions and kernels.

    Raises:
        TemplateError: a template is wrong.
    """
    view = ModuleView(content)
    return "\n\n".join([render("module/helpers.jinja", module=view), *(kernel.source for kernel in view.kernels)])
