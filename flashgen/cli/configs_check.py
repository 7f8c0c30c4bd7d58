"""`flashgen configs check`: whether what the files of tuned_configs say still stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flashgen.cli import options
from flashgen.cli.output import note, print_json, print_line, print_table
from flashgen.errors import Drift, TunedConfigError, UnknownGpu

if TYPE_CHECKING:
    from flashgen.bench.retime import Retimed
    from flashgen.compiler.drift import Recompiled
    from flashgen.store.entry import TunedFile

_OTHER_KERNELS = "kernels: "  # how a change of a rule's kernels begins, among those of its tools
_FILE_COLUMNS = ("gpu", "op", "state", "rules", "path")
_CHANGE_COLUMNS = ("gpu", "rule", "state", "what", "then", "now")
_TIME_COLUMNS = ("rule", "workload", "then", "now", "now/then", "pace")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Checked:
    """A file as it was read: its rules, or its error, and how many rules were made with what other tools."""

    path: Path
    file: TunedFile | None = None
    error: str | None = None
    made_with: dict[str, int]

    @property
    def state(self) -> str:
        if self.error:
            return "malformed"
        if any(change.startswith(_OTHER_KERNELS) for change in self.made_with):
            return "stale"
        return "other tools" if self.made_with else "ok"

    @property
    def document(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "gpu": self.path.parent.name,
            "op": self.path.stem,
            "state": self.state,
            "rules": None if self.file is None else len(self.file.entries),
            "error": self.error,
            "made_with": self.made_with,
        }


@click.command("check")
@options.configs("Directory of tuned configs.")
@click.option("--gpu", metavar="NAME", help="Of the files, those of this GPU (or `portable`) only.")
@click.option("--compile", "compiles", is_flag=True, help="Also compile every rule; needs no GPU.")
@click.option("--time", "times", is_flag=True, help="Also time the measured rules of this machine's GPU again.")
@click.option(
    "--margin",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="Of --time: changes up to this are noise.",
)
@options.as_json
@click.pass_context
def check(
    ctx: click.Context, configs: Path | None, gpu: str | None, compiles: bool, times: bool, margin: float, as_json: bool
) -> None:
    """Read every file strictly, and compare the tools its rules were made with to those that are here.

    --compile compiles every rule for its GPU (portable ones for every architecture), half a second to three seconds
    each the first time, and compares shared memory, registers and spills with the file.

    Exits 2 if a file is malformed, and 6 if a rule no longer holds: its kernels would be written otherwise today, so
    that what would be emitted is not what was proven; the compiler refuses it, or it needs more shared memory than its
    GPU has, or spills more than any rule may; it compiles to other figures under the very triton that made it; or it is
    slower than recorded. Other versions of torch or triton, and figures that another triton changed, are listed only.
    """
    from flashgen.assets import tuned_configs_dir
    from flashgen.compiler.toolchain import toolchain
    from flashgen.store.directory import rule_paths, slug_in

    directory = configs or tuned_configs_dir()
    checked = [_read(path) for path in rule_paths(directory, None if gpu is None else slug_in(directory, gpu))]
    files = [each.file for each in checked if each.file is not None]
    recompiled = _recompiled(files) if compiles else None
    retimed = _retimed(files, gpu, margin / 100) if times else None
    if as_json:
        print_json(
            {
                "toolchain": asdict(toolchain()),
                "files": [each.document for each in checked],
                "recompiled": None if recompiled is None else [_recompiled_document(*each) for each in recompiled],
                "retimed": None if retimed is None else [_retimed_document(each) for each in retimed],
            }
        )
    else:
        _print_files(checked)
        if recompiled is not None:
            _print_recompiled(recompiled)
        if retimed is not None:
            _print_retimed(retimed)
    holds = [each.state != "stale" for each in checked]
    holds += [each.holds for _, each in recompiled or ()] + [each.holds for each in retimed or ()]
    malformed = any(each.error for each in checked)
    ctx.exit(TunedConfigError.exit_code if malformed else 0 if all(holds) else Drift.exit_code)


def _read(path: Path) -> _Checked:
    from flashgen.compiler.toolchain import toolchain_of
    from flashgen.store.directory import read_rules
    from flashgen.store.lookup import staleness

    try:
        file = read_rules(path)
    except TunedConfigError as error:
        return _Checked(path=path, error=str(error), made_with={})
    # A line is `<rule>: <tool>: <version> -> <version here>`, and a rule's label has no colon.
    changes = Counter(line.partition(": ")[2] for line in staleness(file, toolchain_of))
    return _Checked(path=path, file=file, made_with=dict(changes))


def _print_files(checked: Sequence[_Checked]) -> None:
    documents = [each.document for each in checked]
    rows = [tuple(document[name] for name in _FILE_COLUMNS) for document in documents]
    print_table("", _FILE_COLUMNS, rows, right=("rules",))
    for each in checked:
        if each.error:
            print_line(each.error)
    totals: Counter[str] = Counter()
    for each in checked:
        for change, count in each.made_with.items():  # hashes of kernels differ from rule to rule, and say no more
            totals["kernels than today's templates write" if change.startswith(_OTHER_KERNELS) else change] += count
    for change, count in totals.items():
        print_line(f"{count} rules were made with other {change}")


def _recompiled(files: Sequence[TunedFile]) -> list[tuple[str, Recompiled]]:
    """(GPU, rule as it is now) of every rule whose GPU is known."""
    from flashgen.compiler.drift import recompile, targets_of

    jobs, found = options.core_count(), []
    for file in files:
        try:
            targets = targets_of(file.gpu, jobs)
        except UnknownGpu as error:
            note(f"the {file.op} rules of {file.gpu} were not compiled: {error}")
            continue
        note(f"compiling {len(file.entries)} {file.op} rules of {file.gpu} for {', '.join(t.arch for t in targets)}")
        found += [(file.gpu, each) for each in recompile(file, targets, jobs)]
    return found


def _print_recompiled(recompiled: Sequence[tuple[str, Recompiled]]) -> None:
    rows = [row for gpu, each in recompiled for row in _change_rows(gpu, each)]
    if rows:
        print_line()
        print_table("", _CHANGE_COLUMNS, rows, right=_CHANGE_COLUMNS[4:])
    for gpu, each in recompiled:
        if each.why:
            print_line(f"{gpu} {each.entry.label}: {each.why}")
    _print_counts("rules compiled", [each.state for _, each in recompiled])


def _change_rows(gpu: str, each: Recompiled) -> list[tuple[object, ...]]:
    """A row for each figure that changed; one without figures where none did and the rule does not hold."""
    rule = (gpu, each.entry.label, each.state)
    rows: list[tuple[object, ...]] = [(*rule, change.what, change.then, change.now) for change in each.changes]
    return rows or ([] if each.holds else [(*rule, "", "", "")])


def _recompiled_document(gpu: str, each: Recompiled) -> dict[str, Any]:
    return {
        "gpu": gpu,
        "rule": each.entry.label,
        "config": each.entry.config.key,
        "state": each.state,
        "holds": each.holds,
        "why": each.why,
        "then": asdict(each.entry.resources),
        "now": None if each.now is None else asdict(each.now),
    }


def _retimed(files: Sequence[TunedFile], gpu: str | None, margin: float) -> list[Retimed]:
    """The measured rules of the GPU that is here, timed again; raises NoUsableGpu if it is not here."""
    from flashgen.bench.retime import clocked_on, retime
    from flashgen.hardware.resolve import resolve

    here = resolve(gpu or "auto", require_gpu=True)
    entries = [entry for file in files if file.gpu == here.target.slug for entry in file.entries]
    found = []
    for each in retime(entries, clocked_on(here.target, here.index or 0), margin):
        note(f"{each.entry.label}, {each.then.workload.key}: {each.pace}")
        found.append(each)
    if not found:
        note(f"no rule was timed: none of these files holds a measured one for {here.target.slug}")
    return found


def _print_retimed(retimed: Sequence[Retimed]) -> None:
    rows = []
    for each in retimed:
        now, ratio = ("", "") if each.ratio is None else (f"{each.now_us:g} us", f"{each.ratio:.3f}")
        then = f"{each.then.median_us:g} us"
        rows.append((each.entry.label, each.then.workload.key, then, now, ratio, each.pace))
    print_line()
    print_table("", _TIME_COLUMNS, rows, right=_TIME_COLUMNS[2:5])
    _print_counts("times taken again", [each.pace for each in retimed])


def _print_counts(what: str, found: Sequence[str]) -> None:
    """Such as `26 rules compiled: 10 as recorded, 16 drifted`."""
    counts = ", ".join(f"{count} {each}" for each, count in sorted(Counter(found).items()))
    print_line(f"{len(found)} {what}{': ' if counts else ''}{counts}")


def _retimed_document(each: Retimed) -> dict[str, Any]:
    return {
        "rule": each.entry.label,
        "workload": asdict(each.then.workload),
        "pace": each.pace,
        "then_us": each.then.median_us,
        "now": asdict(each.now),
        "ratio": each.ratio,
    }
