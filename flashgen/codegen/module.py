"""The emitted module as data, and its text: a pure function of the rows, so that equal rows give equal bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flashgen.codegen.environment import render
from flashgen.codegen.kernel import Kernel, render_kernel
from flashgen.config import KernelConfig
from flashgen.errors import TemplateError
from flashgen.spec import DTYPES, AttentionSpec

_TORCH_DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}
_LINE_LENGTH = 120
_VARIANT_ORDER = ("full", "causal", "window", "window_softcap")


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
        spec = self.spec
        limit = float("inf") if self.max_seqlen_k is None else self.max_seqlen_k
        variant = _VARIANT_ORDER.index(spec.variant)
        return (DTYPES.index(self.dtypes[0]), spec.head_dim, spec.head_dim_v, variant, limit)


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
        self.kernels = _distinct_kernels(self.rows)
        variants = {row.spec.variant for row in self.rows}
        self.has_softcap = any(variant.endswith("softcap") for variant in variants)
        self.has_window = any(variant.startswith("window") for variant in variants)
        self.has_tma = self._any_knob("tma")
        self.has_persistent = self._any_knob("programs_per_sm")
        self.has_maxnreg = self._any_knob("maxnreg")
        portable = GpuTable(slug="portable", pattern="", comment=_PORTABLE_COMMENT, rows=content.portable)
        self.tables = [_table_view(table) for table in (*content.gpus, portable)]
        self.gpus = [{"pattern": _pattern_literal(table.pattern), "table": table.name} for table in content.gpus]
        self.served = _served(content.portable)
        self.variants = [variant for variant in _VARIANT_ORDER if variant in variants]

    def _any_knob(self, name: str) -> bool:
        return any(row.config.knobs().get(name) for row in self.rows)


_PORTABLE_COMMENT = "For any GPU, and for tensors that TMA cannot describe: small tiles, loaded through pointers."


def _docstring_text(text: str) -> str:
    """`text` as it must stand between triple quotes to be read back unchanged."""
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')


def _pattern_literal(pattern: str) -> str:
    return repr(pattern) if '"' in pattern else f'r"{pattern}"'


def _distinct_kernels(rows: Iterable[Row]) -> list[Kernel]:
    """The kernels that the rows run, each once, in the order of the rows."""
    kernels: dict[str, Kernel] = {}
    for row in sorted(rows, key=lambda row: _VARIANT_ORDER.index(row.spec.variant)):
        kernel = render_kernel(row.spec, row.config)
        known = kernels.setdefault(kernel.name, kernel)
        assert known == kernel, f"two kernels would be named {kernel.name}"
    return list(kernels.values())


def _config_arguments(row: Row) -> str:
    kernel = render_kernel(row.spec, row.config).name
    knobs = row.config.knobs()
    positional = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
    shown = {name: knobs[name] for name in positional}
    shown |= {"heads_per_group": knobs["heads_per_group"]} if knobs["heads_per_group"] != 1 else {}
    shown |= {name: knobs[name] for name in ("tma", "programs_per_sm", "maxnreg") if knobs[name]}
    return _call("config=Config", [kernel, *(f"{name}={value!r}" for name, value in shown.items())], indent=8)


def _call(callee: str, arguments: list[str], indent: int) -> str:
    """`callee(arguments),` broken over lines the way ruff format breaks it at 120 columns."""
    pad, line = " " * indent, ", ".join(arguments)
    if indent + len(callee) + len(line) + 3 <= _LINE_LENGTH:
        return f"{callee}({line}),"
    if indent + 4 + len(line) <= _LINE_LENGTH:
        return f"{callee}(\n{pad}    {line}\n{pad}),"
    return f"{callee}(\n" + "".join(f"{pad}    {argument},\n" for argument in arguments) + f"{pad}),"


def _table_view(table: GpuTable) -> dict[str, object]:
    rows = [
        {
            "dtypes": "("
            + ", ".join(_TORCH_DTYPES[d] for d in row.dtypes)
            + ("," if len(row.dtypes) == 1 else "")
            + ")",
            "head_dim": row.spec.head_dim,
            "head_dim_v": row.spec.head_dim_v,
            "variant": row.spec.variant,
            "max_seqlen_k": repr(row.max_seqlen_k),
            "config": _config_arguments(row),
        }
        for row in sorted(table.rows, key=lambda row: row.order)
    ]
    return {"name": table.name, "comment": table.comment, "rows": rows}


def _served(rows: Iterable[Row]) -> list[dict[str, object]]:
    """Per dtype and (head_dim, head_dim_v), the variants that the portable rows cover."""
    held: dict[str, dict[tuple[int, int], set[str]]] = {}
    for row in rows:
        for dtype in row.dtypes:
            pair = (row.spec.head_dim, row.spec.head_dim_v)
            held.setdefault(dtype, {}).setdefault(pair, set()).add(row.spec.variant)
    return [
        {
            "dtype": _TORCH_DTYPES[dtype],
            "pairs": [
                {"pair": str(pair), "variants": _tuple_literal([v for v in _VARIANT_ORDER if v in variants])}
                for pair, variants in sorted(held[dtype].items())
            ],
        }
        for dtype in DTYPES
        if dtype in held
    ]


def _tuple_literal(words: list[str]) -> str:
    return "(" + ", ".join(f'"{word}"' for word in words) + ("," if len(words) == 1 else "") + ")"


def render_module(content: ModuleContent) -> str:
    """The module's text.

    Raises:
        TemplateError: a template is wrong.
    """
    return render("module/module.py.jinja", module=ModuleView(content))
