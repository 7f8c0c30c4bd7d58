"""Finding the rule for a case, joining two files of rules, and telling two files apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from flashgen.errors import TunedConfigError
from flashgen.outcome import Toolchain
from flashgen.spec import AttentionSpec, Workload
from flashgen.store.codec import Plain, encode_entry, encode_record
from flashgen.store.entry import TunedEntry, TunedFile
from flashgen.variants import with_variant


def find_entry(file: TunedFile, spec: AttentionSpec, workload: Workload | None = None) -> TunedEntry | None:
    """The rule for `spec` and `workload`, or None. Without a workload: the rule for the longest sequences.

    A rule timed in the asked dtype comes before one that serves it beside its own. Where no rule has the spec, the
    closest kernel's stands in: first the same mask with fewer features, then for a window the causal rule, with all
    features and with fewer. Head dims have no stand-in. The entry's own spec says which rule it was.
    """
    for tuned_as in _stand_ins(spec):
        rules = [entry for entry in file.entries if serves(entry, tuned_as)]
        if workload is not None:
            rules = [entry for entry in rules if entry.workloads.covers(workload)]
        if rules:
            return max(rules, key=lambda entry: (entry.spec.dtype == spec.dtype, entry.workloads.end))
    return None


def _stand_ins(spec: AttentionSpec) -> Iterator[AttentionSpec]:
    """`spec`, then the specs whose rules may stand in for its own, closest first."""
    for mask in ("window", "causal") if spec.window else (spec.mask,):
        for count in range(len(spec.features), -1, -1):
            yield with_variant(spec, "_".join((mask, *spec.features[:count])))


def serves(entry: TunedEntry, spec: AttentionSpec) -> bool:
    """Whether the rule is for just this, in its own dtype or another that shares it."""
    return spec.dtype in entry.dtypes and replace(entry.spec, dtype=spec.dtype) == spec


def merge(old: TunedFile, new: TunedFile, *, predicted_over_measured: bool = False) -> TunedFile:
    """Both files' rules in one. Where two have one spec and overlap, the new one rules, the old keeps the rest; but an
    unordered one takes nothing from an ordered one.

    A measured rule is not overruled by a predicted one unless `predicted_over_measured`; then it is the new one that
    keeps the rest. Nothing that either file covers is left without a rule.

    Raises:
        TunedConfigError: the files are of two GPUs or two ops.
    """
    if (old.gpu, old.op) != (new.gpu, new.op):
        raise TunedConfigError(f"cannot merge {new.op} rules of {new.gpu} into {old.op} rules of {old.gpu}")

    def stays(entry: TunedEntry, rival: TunedEntry) -> bool:
        """Whether the old `entry` holds against the new `rival`."""
        measured = entry.evidence.kind == "measured" and rival.evidence.kind == "predicted"
        return measured and not predicted_over_measured

    kept = [part for entry in old.entries for part in _outside(entry, [n for n in new.entries if not stays(entry, n)])]
    taken = [part for entry in new.entries for part in _outside(entry, [o for o in old.entries if stays(o, entry)])]
    return replace(old, command=_commands(old, new, kept), entries=(*kept, *taken))


def _outside(entry: TunedEntry, rivals: list[TunedEntry]) -> list[TunedEntry]:
    """`entry` cut down to what no rival of the same spec covers. Where a rival may give other bits in another run, the
    rule that may not stays beside it, for determinism."""
    ranges = [entry.workloads]
    for rival in rivals:
        if rival.spec == entry.spec and (entry.unordered or not rival.unordered):
            ranges = [left for piece in ranges for left in piece.without(rival.workloads)]
    return [replace(entry, workloads=piece) for piece in ranges]


def _commands(old: TunedFile, new: TunedFile, kept: list[TunedEntry]) -> str:
    """The commands that make the merged rules again, in order: the old file's too if any of its rules is left."""
    latest = new.command.split(" && ")
    earlier = [command for command in old.command.split(" && ") if command not in latest] if kept else []
    return " && ".join([*earlier, *latest])


def diff(a: TunedFile, b: TunedFile) -> tuple[str, ...]:
    """What `b` says otherwise than `a`, a line each: `-` rule gone, `+` rule new, `~` value changed. Empty if equal."""
    old, new = ({entry.label: entry for entry in file.entries} for file in (a, b))
    heads = [encode_record(file, without=["entries"]) for file in (a, b)]
    lines = [f"~ {change}" for change in _changes("", *heads)]
    for label in (*old, *(label for label in new if label not in old)):
        if label not in new:
            lines.append(f"- {label}: {old[label].config.key}")
        elif label not in old:
            lines.append(f"+ {label}: {new[label].config.key}")
        else:
            changes = _changes("", encode_entry(old[label]), encode_entry(new[label]))
            lines.extend(f"~ {label}: {change}" for change in changes)
    return tuple(lines)


def _changes(path: str, a: Plain, b: Plain) -> Iterator[str]:
    """The leaves that differ, such as `config.BLOCK_M: 128 -> 64`."""
    if isinstance(a, list) and isinstance(b, list):
        a, b = ({f"[{i}]": item for i, item in enumerate(items)} for items in (a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        for key in (*a, *(key for key in b if key not in a)):
            yield from _changes(_join(path, key), a.get(key, "absent"), b.get(key, "absent"))
    elif a != b:
        yield f"{path}: {_shown(a)} -> {_shown(b)}"


def _join(path: str, key: str) -> str:
    return f"{path}{key}" if key.startswith("[") or not path else f"{path}.{key}"


def _shown(value: Plain) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case dict():
            return f"{{{', '.join(f'{key}: {_shown(member)}' for key, member in value.items())}}}"
        case _:
            return str(value)


def staleness(file: TunedFile, today: Callable[[TunedEntry], Toolchain]) -> tuple[str, ...]:
    """The rules that were made with other tools than `today` gives them, or whose kernels would be written otherwise
    now, a line each; empty if there are none."""
    return tuple(
        f"{entry.label}: {change}"
        for entry in file.entries
        for change in _changes("", encode_record(entry.toolchain), encode_record(today(entry)))
    )
