"""What a tuning run shows while it goes on, and what it leaves: rules are written as they are found."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from flashgen.cli.output import console, note, print_line, print_table, warn
from flashgen.config import KernelConfig
from flashgen.outcome import Reason, Rejected
from flashgen.resources.fit import HELD_OUT
from flashgen.spec import AttentionSpec, Op
from flashgen.store.codec import encode_entry
from flashgen.store.entry import TunedEntry, WorkloadRange
from flashgen.store.record import RuleFile
from flashgen.tune.evaluate import Evaluated
from flashgen.tune.records import TrialRecord
from flashgen.tune.result import TuneResult

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_COLUMNS = ("kernel", "dtypes", "keys", "config", "time", "TFLOP/s", "ties")


@dataclass
class TuneWatch:
    """A tune.Progress that draws on stderr, if that is a terminal, and adds each spec's rules to its op's file.

    `files` are of one GPU and one command.
    """

    files: Mapping[Op, RuleFile]
    measured: bool
    warning: str | None
    quiet: bool  # no text on stdout
    written: list[TunedEntry] = field(default_factory=list)
    _bar: Bar | None = None
    _task: TaskID | None = None
    _best_us: float = float("inf")

    def __enter__(self) -> TuneWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()  # a bar that is left running hides the cursor

    def started(self, spec: AttentionSpec, enumerated: int, fit: int, trials: int) -> None:
        self._stop()
        self._best_us = float("inf")
        self._draw(f"{spec.key}: {enumerated} enumerated, {fit} may fit", total=trials)

    def tried(self, spec: AttentionSpec, record: TrialRecord) -> None:
        if isinstance(record.outcome, Evaluated):
            self._best_us = min(self._best_us, record.outcome.us)
        if self._bar is not None and self._task is not None:
            best = "" if self._best_us == float("inf") else f"best {self._best_us:.1f} us"
            self._bar.update(self._task, advance=1, best=best)

    def step(self, spec: AttentionSpec, text: str) -> None:
        self._stop()
        self._draw(f"{spec.key}: {text}", total=None)

    def ended(self, result: TuneResult) -> None:
        self._stop()
        for text in result.notes:
            note(f"{result.spec.key}: {text}")
        file = self.files[result.spec.op]
        added = file.add(result.entries) if result.entries else ()
        self.written.extend(added)
        if len(added) < len(result.entries):
            warn(f"{result.spec.key}: {file.path} holds a measured rule, which a predicted one does not replace")
        if not self.quiet:
            print_line("\n".join(lines_of(result, measured=self.measured)))

    def _draw(self, text: str, total: int | None) -> None:
        """A line with a bar and the time that is left; where stderr is no terminal, just the line."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        if not sys.stderr.isatty():
            note(text)
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, TextColumn("{task.fields[best]}"), console=console(sys.stderr), transient=True)
        self._task = self._bar.add_task(text, total=total, best="")
        self._bar.start()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._task = None

    def warn_of_failures(self, results: Sequence[TuneResult]) -> None:
        """Why specs have no rule, once all are done: where none has one, the run's own error says it."""
        for result in results:
            if not result.entries and not result.interrupted:
                warn(result.failure or f"{result.spec.key}: no rule")

    def print_summary(self, results: Sequence[TuneResult]) -> None:
        found = [entry for result in results for entry in result.entries]
        if found:
            print_table("", _COLUMNS, [_row(entry) for entry in found], right=_COLUMNS[4:])
        if found and not self.measured:
            print_line(f"~ {HELD_OUT}")
        if any(result.interrupted for result in results):
            print_line("interrupted: the rules found until then are kept; with --storage FILE the same command goes on")
        for op, file in self.files.items():
            if count := sum(entry.spec.op == op for entry in self.written):
                print_line(f"{file.path}: {count} rules written")
        if not self.written:
            print_line("nothing was written")

    def document(self, results: Sequence[TuneResult]) -> dict[str, Any]:
        file = next(iter(self.files.values()))
        return {
            "gpu": file.gpu,
            "warning": self.warning,
            "command": file.command,
            "paths": {op: str(file.path) for op, file in self.files.items()},
            "interrupted": any(result.interrupted for result in results),
            "results": [self._result_document(result) for result in results],
        }

    def _result_document(self, result: TuneResult) -> dict[str, Any]:
        return {
            "spec": result.spec.key,
            "derived_from": result.derived_from.key if result.derived_from else None,
            "counts": asdict(result.counts),
            "reasons": {str(reason): number for reason, number in result.reasons.items()},
            "entries": [encode_entry(entry) for entry in result.entries],
            "written": any(entry in self.written for entry in result.entries),
            "notes": list(result.notes),
            "interrupted": result.interrupted,
            "failure": result.failure,
        }


def lines_of(result: TuneResult, *, measured: bool) -> list[str]:
    """One spec's way through the funnel, and its rules."""
    counts = result.counts
    if not counts.enumerated:
        return [f"{result.spec.key}: nothing to try"]
    origin = f", from the finalists of {result.derived_from.key}" if result.derived_from else ""
    stages = [
        ("enumerated", counts.enumerated),
        ("fit", counts.fit),
        ("tried", counts.tried),
        ("compiled", counts.compiled),
        ("timed" if measured else "predicted", counts.timed),
        ("exact", counts.exact),
    ]
    funnel = " > ".join(f"{number} {stage}" for stage, number in stages)
    lines = [f"{result.spec.key}{origin}", f"  {funnel} > {len(result.entries)} best"]
    fell = ", ".join(f"{number} {reason}" for reason, number in result.reasons.items())
    lines += [f"  fell: {fell}"] if fell else []
    lines += [f"  {why.reason}, such as {config.key}: {why.detail}" for config, why in _faults(result)]
    with_unordered = any(entry.unordered for entry in result.entries)
    return lines + [line for entry in result.entries for line in _rule_lines(entry, with_unordered)]


def _faults(result: TuneResult) -> Iterable[tuple[KernelConfig, Rejected]]:
    """The first config that fell for each reason which no kernel should give, whatever its tiles."""
    faults = [pair for pair in reversed(result.rejected) if pair[1].reason in (Reason.INEXACT, Reason.CRASHED)]
    return {why.reason: (config, why) for config, why in faults}.values()


def _rule_lines(entry: TunedEntry, with_unordered: bool) -> list[str]:
    needs, proof, evidence = entry.resources, entry.proof, entry.evidence
    where = "" if entry.workloads == WorkloadRange() else f" for {entry.workloads}"
    where += " with deterministic=True" if with_unordered and not entry.unordered else ""
    spills = f", {needs.spill_bytes} bytes spilled" if needs.spill_bytes else ""
    lines = [
        f"  best{where}: {entry.config.key}",
        f"  needs {needs.shared_bytes} bytes of shared memory, {needs.registers} registers a thread{spills}",
        f"  exact: {proof.probes} probes, worst error {proof.worst_ratio:.2f} of the allowed ({proof.worst_probe}), "
        f"{', '.join(proof.dtypes)}, {proof.where}",
    ]
    for timing in evidence.timings:
        spread = (
            f"predicted, bound by {timing.bound}" if timing.is_predicted else f"{timing.low_us:g} to {timing.high_us:g}"
        )
        lines.append(f"  {timing.workload.key}: {timing.median_us:g} us ({spread}), {timing.tflops:g} TFLOP/s")
    worst, mean = evidence.worst_regret, evidence.mean_regret
    lines += [f"  up to {worst:.1%} slower than the best of a workload, {mean:.1%} on average"] if worst else []
    return lines + ([f"  {evidence.ties} more could not be told apart from the best"] if evidence.ties else [])


def _row(entry: TunedEntry) -> tuple[str, ...]:
    """The summary's line: times and rates as the geometric mean would say little, so the longest workload's."""
    timing = max(entry.evidence.timings, key=lambda timing: timing.workload.seqlen_k)
    kind = "" if entry.evidence.kind == "measured" else "~"
    return (
        entry.spec.key,
        "/".join(entry.dtypes),
        str(entry.workloads).removeprefix("seqlen_k "),
        entry.config.key,
        f"{kind}{timing.median_us:g} us",
        f"{kind}{timing.tflops:g}",
        str(entry.evidence.ties),
    )
