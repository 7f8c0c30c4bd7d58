"""From tuned configs to the text of an emitted module."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from flashgen import __version__
from flashgen.codegen.device_names import device_pattern, short_name
from flashgen.codegen.facts import facts_of, gpu_comment
from flashgen.codegen.module import GpuTable, ModuleContent, Row, render_module
from flashgen.codegen.rules import Case, Heads, RuleSet, cases_of, rule_sets
from flashgen.codegen.sources import Source, gpu_source, joined, portable_sources
from flashgen.errors import TemplateError, TunedConfigError
from flashgen.spec import Dtype, Op
from flashgen.store.directory import PORTABLE
from flashgen.store.entry import TunedEntry


@dataclass(frozen=True, kw_only=True, slots=True)
class EmitRequest:
    """A module for `gpus` (slugs; none: portable rules only), from the rules in `configs`, else from the shipped ones.

    `head_dims` and `dtypes` are those to serve; empty, all that the GPUs' rules do. The softcap kernel masks by window
    bounds, so that it comes with the window kernel only.
    """

    gpus: tuple[str, ...]
    configs: Path
    op: Op = "forward"
    head_dims: tuple[int, ...] = ()
    dtypes: tuple[Dtype, ...] = ()
    window: bool = True
    softcap: bool = True

    @property
    def variants(self) -> tuple[str, ...]:
        masks = ("full", "causal", "window") if self.window else ("full", "causal")
        return (*masks, "window_softcap") if self.window and self.softcap else masks

    @property
    def command(self) -> str:
        """What makes the module again, but for the paths, which differ from one checkout to another."""
        parts = ["flashgen emit"]
        parts += [f"--gpu {short_name(slug)}" for slug in sorted(set(self.gpus)) or [PORTABLE]]
        parts += [f"--op {self.op}"] if self.op != "forward" else []
        parts += [f"--head-dim {head_dim}" for head_dim in sorted(set(self.head_dims))]
        parts += [f"--dtype {dtype}" for dtype in sorted(set(self.dtypes))]
        parts += ["--no-window"] if not self.window else [] if self.softcap else ["--no-softcap"]
        return " ".join(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Emission:
    """A module's text, what it says, the files behind it, and what its user should know, a line each."""

    text: str
    content: ModuleContent
    sources: tuple[Source, ...]
    notes: tuple[str, ...]


def emit(request: EmitRequest) -> Emission:
    """The module that the tuned configs give.

    Raises:
        TunedConfigError: a file that is missing or malformed, or no portable rule for what is to be served.
        TemplateError: a template is wrong.
    """
    tuned = tuple(gpu_source(request.configs, slug, request.op) for slug in sorted(set(request.gpus)))
    fallback = portable_sources(request.configs, request.op)
    portable = joined(fallback).entries
    cases = _cases([entry for source in tuned for entry in source.file.entries] if tuned else portable, request)
    portable_sets = rule_sets(portable, cases, request.variants)
    _require_any_length(portable_sets, request)
    tables = {source.file.gpu: rule_sets(source.file.entries, cases, request.variants) for source in tuned}
    content = _content(request, tables, portable_sets, cases)
    notes = (*(source.note for source in tuned if source.note), *_gaps(tables))
    return Emission(text=_text(content), content=content, sources=(*tuned, *fallback), notes=notes)


def _cases(entries: Iterable[TunedEntry], request: EmitRequest) -> frozenset[Case]:
    """What to serve: what the entries do, narrowed to what was asked for, and all of that.

    Raises:
        TunedConfigError: there is nothing to serve.
    """
    held = cases_of(entries)
    heads = {case.heads for case in held}
    if request.head_dims:
        heads = {each for each in heads if each[0] in request.head_dims}
        heads |= {(each, each) for each in set(request.head_dims) - {head_dim for head_dim, _ in heads}}

    def dtypes(each: Heads) -> Iterable[Dtype]:
        return request.dtypes or {case.dtype for case in held if case.heads == each} or {case.dtype for case in held}

    cases = {Case(dtype=dtype, heads=each) for each in heads for dtype in dtypes(each)}
    if not cases:
        raise TunedConfigError(f"there is nothing to emit: no rule in {request.configs} serves any dtype and head_dim")
    return frozenset(cases)


def _require_any_length(portable: Iterable[RuleSet], request: EmitRequest) -> None:
    """Where no tuned rule serves a call, a portable one must."""
    missing = [one for one in portable if not one.serves_any_length]
    if not missing:
        return
    dims = " ".join(f"--head-dim {head_dim}" for head_dim in sorted({one.spec.head_dim for one in missing}))
    dtypes = " ".join(f"--dtype {dtype}" for dtype in sorted({dtype for one in missing for dtype in one.dtypes}))
    specs = ", ".join(one.spec.key for one in missing[:4]) + (", ..." if len(missing) > 4 else "")
    raise TunedConfigError(
        f"no portable rule for any number of keys of {specs}: a module needs one for all that it serves\n"
        f"  next: flashgen tune --gpu portable {dims} {dtypes} --out {request.configs}"
    )


def _content(
    request: EmitRequest, tables: dict[str, tuple[RuleSet, ...]], portable: tuple[RuleSet, ...], cases: frozenset[Case]
) -> ModuleContent:
    used = {slug: entries for slug, sets in tables.items() if (entries := _used(sets))}
    fallback = _used(portable)
    return ModuleContent(
        gpus=tuple(
            GpuTable(slug=s, pattern=device_pattern(s), comment=gpu_comment(s, entries), rows=_rows(tables[s]))
            for s, entries in used.items()
        ),
        portable=_rows(portable),
        portable_shared_bytes=max(entry.resources.shared_bytes for entry in fallback),
        facts=facts_of(used, fallback, cases, request.variants),
        command=request.command,
        version=__version__,
    )


def _rows(sets: Iterable[RuleSet]) -> tuple[Row, ...]:
    return tuple(row for one in sets for row in one.rows)


def _used(sets: Iterable[RuleSet]) -> tuple[TunedEntry, ...]:
    return tuple(dict.fromkeys(rule.entry for one in sets for rule in one.rules))


def _gaps(tables: dict[str, tuple[RuleSet, ...]]) -> list[str]:
    """A note for each GPU that leaves some of what is served to the portable rules."""
    notes = []
    for slug, sets in tables.items():
        if missing := [f"{one.spec.key} ({'/'.join(one.dtypes)})" for one in sets if not one.serves_any_length]:
            notes.append(f"{slug} has no rule for any number of keys of {', '.join(missing)}: portable ones fill in")
    return notes


def _text(content: ModuleContent) -> str:
    """The rendered module, which is Python and the same each time."""
    text = render_module(content)
    try:
        compile(text, content.filename, "exec")
    except SyntaxError as error:
        raise TemplateError(f"the module would not be Python: line {error.lineno}: {error.msg}") from error
    if render_module(content) != text:
        raise TemplateError("the module would differ from one rendering to the next")
    return text
