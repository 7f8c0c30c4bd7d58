"""From tuned configs to the text of an emitted module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from flashgen import __version__
from flashgen.codegen.device_names import device_pattern, short_name
from flashgen.codegen.facts import facts_of, gpu_comment
from flashgen.codegen.feasible import require_fit
from flashgen.codegen.module import GpuTable, ModuleContent, Row, render_module
from flashgen.codegen.request import EmitRequest
from flashgen.codegen.rules import Case, Heads, RuleSet, cases_of, rule_sets
from flashgen.codegen.sources import Source, gpu_source, joined, required_gpu_source, rule_sources
from flashgen.errors import TemplateError, TunedConfigError
from flashgen.spec import Dtype, Op
from flashgen.store.directory import PORTABLE
from flashgen.store.entry import TunedEntry
from flashgen.variants import PLAIN, SOFTCAP


@dataclass(frozen=True, kw_only=True, slots=True)
class Emission:
    """A module's text, what it says, the files behind it, and what its user should know, a line each."""

    text: str
    content: ModuleContent
    sources: tuple[Source, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Files:
    """The rules of one op: those of each GPU that has some, and the portable ones."""

    op: Op
    tuned: tuple[Source, ...]
    fallback: tuple[Source, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Served:
    """Of those the rules for what is served, by GPU, and the portable ones."""

    files: _Files
    tables: dict[str, tuple[RuleSet, ...]]
    portable: tuple[RuleSet, ...]


def emit(request: EmitRequest) -> Emission:
    """The module that the tuned configs give.

    Raises:
        SpecError: features that no mask which is asked for is written with.
        TunedConfigError: a file that is missing or malformed, or no portable rule for what is to be served.
        NoFeasibleConfig: a rule needs more shared memory than a GPU has that it is for.
        TemplateError: a template is wrong.
    """
    files = [_read(request, op) for op in request.ops]
    cases = _cases(files[0], request)
    served = [_narrowed(each, cases, request) for each in files]
    _require_any_length(served, request)
    for each in served:
        for slug, sets in (*each.tables.items(), (PORTABLE, each.portable)):
            require_fit(_used(sets), slug, request.configs)
    content = _content(request, served, cases)
    sources = tuple(source for each in files for source in (*each.tuned, *each.fallback))
    notes = tuple(note for each in served for note in _notes(each, request))
    return Emission(text=_text(content), content=content, sources=sources, notes=notes)


def _read(request: EmitRequest, op: Op) -> _Files:
    """The files of one op. A GPU must have forward rules; where it has no others, the portable ones do."""
    slugs = sorted(set(request.gpus))
    if op == "forward":
        tuned = tuple(required_gpu_source(request.configs, slug, op) for slug in slugs)
    else:
        tuned = tuple(found for slug in slugs if (found := gpu_source(request.configs, slug, op)) is not None)
    return _Files(op=op, tuned=tuned, fallback=rule_sources(request.configs, PORTABLE, op))


def _narrowed(files: _Files, cases: frozenset[Case], request: EmitRequest) -> _Served:
    """The rules for what is served."""

    written = {case for case in cases if files.op == "forward" or case.dtype != "fp8"}

    def sets(entries: Sequence[TunedEntry]) -> tuple[RuleSet, ...]:
        return rule_sets(entries, written, request.variants, files.op)

    tables = {source.file.gpu: sets(source.file.entries) for source in files.tuned}
    return _Served(files=files, tables=tables, portable=sets(joined(files.fallback)))


def _cases(forward: _Files, request: EmitRequest) -> frozenset[Case]:
    """What to serve: what the GPUs' forward rules do, narrowed to what was asked for, and all of that. That is fp8 only
    where it was asked for.

    Raises:
        TunedConfigError: there is nothing to serve.
    """
    tuned = [entry for source in forward.tuned for entry in source.file.entries]
    every = cases_of(tuned if forward.tuned else joined(forward.fallback))
    held = {case for case in every if case.dtype != "fp8" or "fp8" in request.dtypes}
    heads = {case.heads for case in held}
    if request.head_dims:
        heads = {each for each in heads if each[0] in request.head_dims}
        heads |= {(each, each) for each in set(request.head_dims) - {head_dim for head_dim, _ in heads}}

    def dtypes(each: Heads) -> Iterable[Dtype]:
        return request.dtypes or {case.dtype for case in held if case.heads == each} or {case.dtype for case in held}

    cases = {Case(dtype=dtype, heads=each) for each in heads for dtype in dtypes(each)}
    if not request.head_dims:
        cases = {case for case in cases if case.dtype != "fp8" or case in held}  # which few head_dims have
    if not cases:
        gpu = short_name(request.gpus[0]) if request.gpus else PORTABLE
        if every > held:
            raise TunedConfigError(
                f"there is nothing to emit: {request.configs} serves fp8 alone, which is not exact\n"
                f"  next: flashgen emit --gpu {gpu} --dtype fp8, or flashgen tune --gpu {gpu} --out {request.configs}"
            )
        raise TunedConfigError(
            f"there is nothing to emit: no rule in {request.configs} serves any dtype and head_dim\n"
            f"  next: flashgen tune --gpu {gpu} --out {request.configs}"
        )
    return frozenset(cases)


def _require_any_length(served: Sequence[_Served], request: EmitRequest) -> None:
    """Where no tuned rule serves a call, a portable one must. In fp8, which has none, some mask must have a tuned rule
    for any number of keys.

    Raises:
        TunedConfigError: which are missing, and the command that makes them.
    """
    lacking = [one for each in served for one in each.portable if not one.serves_any_length]
    held = {_heads(one) for each in served for sets in each.tables.values() for one in sets if one.serves_any_length}
    if bare := [one.spec.key for one in lacking if one.spec.is_fp8 and _heads(one) not in held]:
        raise TunedConfigError(
            f"no rule for any number of keys of {', '.join(bare)}: fp8 has no portable rules, so a GPU must have some\n"
            f"  next: flashgen tune --gpu auto --op forward --dtype fp8 --out {request.configs}, on an sm_90 GPU"
        )
    missing = [one for one in lacking if not one.spec.is_fp8]
    if not missing:
        return
    ops = {one.spec.op for one in missing}
    sets = dict.fromkeys(one.spec.features for one in missing if one.spec.features not in (PLAIN, SOFTCAP))
    command = ["flashgen tune --gpu portable", *(f"--op {op}" for op in ops if len(ops) == 1)]
    command += [f"--head-dim {head_dim}" for head_dim in sorted({one.spec.head_dim for one in missing})]
    command += [f"--dtype {dtype}" for dtype in sorted({dtype for one in missing for dtype in one.dtypes})]
    command += [f"--feature {'+'.join(features)}" for features in sets]
    specs = ", ".join(one.spec.key for one in missing[:4]) + (", ..." if len(missing) > 4 else "")
    without = "\n  or: flashgen emit --op forward, for a module without gradients" if ops == {"backward"} else ""
    raise TunedConfigError(
        f"no portable rule for any number of keys of {specs}: a module needs one for all that it serves\n"
        f"  next: {' '.join(command)} --out {request.configs}{without}"
    )


def _heads(one: RuleSet) -> tuple[bool, int, int]:
    return one.spec.is_fp8, one.spec.head_dim, one.spec.head_dim_v


def _content(request: EmitRequest, served: Sequence[_Served], cases: frozenset[Case]) -> ModuleContent:
    slugs = sorted(set(request.gpus))
    tables = {slug: tuple(one for each in served for one in each.tables.get(slug, ())) for slug in slugs}
    used = {slug: entries for slug, sets in tables.items() if (entries := _used(sets))}
    portable = tuple(one for each in served for one in each.portable)
    fallback = _used(portable)
    return ModuleContent(
        gpus=tuple(
            GpuTable(slug=s, pattern=device_pattern(s), comment=gpu_comment(s, entries), rows=_rows(tables[s]))
            for s, entries in used.items()
        ),
        portable=_rows(portable),
        portable_shared_bytes=max((entry.resources.shared_bytes for entry in fallback), default=0),
        facts=facts_of(used, fallback, cases, request.variants),
        command=request.command,
        version=__version__,
    )


def _rows(sets: Iterable[RuleSet]) -> tuple[Row, ...]:
    return tuple(row for one in sets for row in one.rows)


def _used(sets: Iterable[RuleSet]) -> tuple[TunedEntry, ...]:
    return tuple(dict.fromkeys(rule.entry for one in sets for rule in one.rules))


def _notes(served: _Served, request: EmitRequest) -> Iterator[str]:
    """Where a GPU's rules come from, and what of them is left to the portable ones."""
    op = served.files.op
    yield from (source.note for source in served.files.tuned if source.note)
    for slug in sorted(set(request.gpus) - served.tables.keys()):
        command = f"flashgen tune --gpu {short_name(slug)} --op {op} --out {request.configs}"
        yield f"{slug} has no {op} rules: portable ones fill in; to tune for it: {command}"
    for slug, sets in served.tables.items():
        missing = [each for each in sets if not each.serves_any_length]
        for fp8, instead in ((False, "portable ones fill in"), (True, "such a call raises")):
            if names := [f"{each.spec.key} ({'/'.join(each.dtypes)})" for each in missing if each.spec.is_fp8 == fp8]:
                yield f"{slug} has no rule for any number of keys of {', '.join(names)}: {instead}"


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
