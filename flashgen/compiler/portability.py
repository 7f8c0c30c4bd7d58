"""Which rules fit which GPUs, by the compiler alone: each rule is compiled once an architecture, and judged by the
limits of every GPU that has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from flashgen.compiler.architectures import missing_compiler
from flashgen.compiler.crosscompile import Unit, compile_units, unit_of
from flashgen.config import KernelConfig
from flashgen.families import FAMILIES, Family, serving
from flashgen.hardware.known import KNOWN
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Rejected, Resources
from flashgen.resources.limits import over_limit
from flashgen.resources.portable import PORTABLE, is_supported
from flashgen.spec import AttentionSpec
from flashgen.store.entry import TunedFile


class Verdict(StrEnum):
    FITS = "fits"
    SPILLS = "spills"  # it runs; whether it should, `Cell.runs` says
    EXCEEDS = "exceeds"  # the GPU's shared memory
    UNSUPPORTED = "unsupported"  # by every family, or refused by the compiler
    UNKNOWN = "no compiler"  # for the architecture, in this toolchain


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A rule in question, which any of `families` may write. `gpu` is the slug of the GPU that it is for, `portable`,
    or '' if it is for none."""

    name: str
    unit: Unit
    gpu: str
    families: tuple[Family, ...]
    tma: bool

    def is_for(self, target: GpuTarget) -> bool:
        return self.gpu == target.slug or (self.gpu == PORTABLE and is_supported(target))

    def obstacle(self, target: GpuTarget) -> str | None:
        """Why the rule need not be compiled for `target`, or None."""
        reasons = [family.unsupported(self.unit.spec, target) for family in self.families]
        if reasons and None not in reasons:
            return reasons[0]
        return f"tma needs sm_90 or later; {target.slug} is {target.arch}" if self.tma and not target.has_tma else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A rule on a GPU. `detail` says with numbers why it does not run there, or should not; '' if it may."""

    target: GpuTarget
    verdict: Verdict
    resources: Resources | None = None
    detail: str = ""

    @property
    def runs(self) -> bool:
        return not self.detail


@dataclass(frozen=True, kw_only=True, slots=True)
class Portability:
    """A row of the matrix: one rule on every GPU."""

    subject: Subject
    cells: tuple[Cell, ...]

    @property
    def broken(self) -> tuple[Cell, ...]:
        """Where the rule is meant to run, and does not. Nothing is known where nothing could be compiled."""
        return tuple(
            cell
            for cell in self.cells
            if self.subject.is_for(cell.target) and not cell.runs and cell.verdict is not Verdict.UNKNOWN
        )


def of_config(name: str, spec: AttentionSpec, config: KernelConfig, gpu: str = "") -> Subject:
    """A config for one spec."""
    return Subject(
        name=name,
        unit=unit_of(spec, config),
        gpu=gpu,
        families=(FAMILIES[config.family],),
        tma=bool(config.knobs().get("tma")),
    )


def of_file(file: TunedFile) -> list[Subject]:
    """The rules of a file of tuned configs, in the dtypes that they were timed in."""
    return [of_config(entry.label, entry.spec, entry.config, file.gpu) for entry in file.entries]


def of_module(source: str, rules: Iterable[Mapping[str, Any]]) -> list[Subject]:
    """The rules of an emitted module, in their first dtypes: `rules` as verify.rules.describe_rules gives them."""
    subjects = []
    for number, rule in enumerate(rules):
        spec = AttentionSpec(**rule["spec"])
        subjects.append(
            Subject(
                name=f"{spec.key}, {rule['tiles']}",
                unit=Unit(source=source, spec=spec, name=rule["name"], rule=number),
                gpu=PORTABLE if rule["pattern"] is None else _slug_of(rule["pattern"]),
                families=tuple(serving(spec.op).values()),
                tma=rule["tma"],
            )
        )
    return subjects


def _slug_of(pattern: str) -> str:
    """The known GPU whose device names the pattern is for, else the pattern."""
    matching = (slug for slug, gpu in KNOWN.items() if any(re.fullmatch(pattern, name) for name in gpu.device_names))
    return next(matching, pattern)


def matrix(
    subjects: Sequence[Subject], targets: Sequence[GpuTarget], jobs: int, say: Callable[[str], None] = lambda text: None
) -> tuple[Portability, ...]:
    """Every subject on every target, compiled in `jobs` processes; `say` gets a line for each architecture."""
    by_arch: dict[str, list[GpuTarget]] = {}
    for target in targets:
        by_arch.setdefault(target.arch, []).append(target)
    answers = {}
    for arch, alike in by_arch.items():
        answers[arch] = _compiled(subjects, alike, jobs, say)
    return tuple(
        Portability(
            subject=subject,
            cells=tuple(_judged(subject, number, target, answers[target.arch]) for target in targets),
        )
        for number, subject in enumerate(subjects)
    )


Answer = Resources | Rejected | str  # the string: why the architecture has no compiler


def _compiled(
    subjects: Sequence[Subject], alike: Sequence[GpuTarget], jobs: int, say: Callable[[str], None]
) -> dict[int, Answer]:
    """The compiler's answers by number of subject, for targets of one architecture, where one of them asks for it."""
    asked = [n for n, subject in enumerate(subjects) if any(subject.obstacle(target) is None for target in alike)]
    if not asked:
        return {}
    say(f"compiling {len(asked)} rules for {alike[0].arch}")
    if (why := missing_compiler(alike[0], jobs)) is not None:
        return dict.fromkeys(asked, why)
    units = [subjects[number].unit for number in asked]
    return {asked[position]: answer for position, answer in compile_units(units, alike[0], jobs)}


def _judged(subject: Subject, number: int, target: GpuTarget, answers: Mapping[int, Answer]) -> Cell:
    if (obstacle := subject.obstacle(target)) is not None:
        return Cell(target=target, verdict=Verdict.UNSUPPORTED, detail=obstacle)
    answer = answers[number]
    if isinstance(answer, str):
        return Cell(target=target, verdict=Verdict.UNKNOWN, detail=answer)
    if isinstance(answer, Rejected):
        return Cell(target=target, verdict=Verdict.UNSUPPORTED, detail=f"{target.arch}: {answer.detail}")
    over = over_limit(answer, target)
    verdict = Verdict.SPILLS if answer.spill_bytes else Verdict.FITS
    if answer.shared_bytes > target.smem_per_block:
        verdict = Verdict.EXCEEDS
    return Cell(target=target, verdict=verdict, resources=answer, detail=over.detail if over else "")
