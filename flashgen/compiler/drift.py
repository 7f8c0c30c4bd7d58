"""Whether committed rules still compile to what their files say of them: no GPU is needed to find out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from flashgen.compiler.architectures import missing_compiler
from flashgen.compiler.crosscompile import compile_units, unit_of, worst_of
from flashgen.compiler.toolchain import toolchain_of
from flashgen.hardware.resolve import resolve
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Reason, Rejected, Resources, Toolchain
from flashgen.resources.limits import over_limit
from flashgen.resources.portable import PORTABLE, one_gpu_an_arch
from flashgen.store.entry import TunedEntry, TunedFile


class State(StrEnum):
    """What became of a rule, mildest first."""

    AS_RECORDED = "as recorded"
    DRIFTED = "drifted"  # other figures under another triton than the rule's own: it fits, and may be slower
    DIFFERS = "differs"  # other figures under the rule's own triton: what the file says is not what it compiles to
    STALE = "stale"  # its kernels would be written otherwise today: what was proven is not what would be emitted
    SPILLS = "spills"  # more than any rule may
    EXCEEDS = "exceeds"  # the shared memory of a GPU that it is for
    REFUSED = "refused"  # by the compiler


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A figure of Resources, as the file has it and as it is now."""

    what: str
    then: int
    now: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Recompiled:
    """A rule under the toolchain that is here. `why` says with numbers what is wrong, '' if nothing is.

    `now` is None where the compiler refused it; of a portable rule it is the largest over the architectures.
    """

    entry: TunedEntry
    state: State
    now: Resources | None = None
    why: str = ""

    @property
    def holds(self) -> bool:
        """Whether what the rule promises still stands; figures that another triton changed do not alter that."""
        return self.state in (State.AS_RECORDED, State.DRIFTED)

    @property
    def changes(self) -> tuple[Change, ...]:
        if self.now is None:
            return ()
        then, now = asdict(self.entry.resources), asdict(self.now)
        return tuple(Change(what=name, then=then[name], now=now[name]) for name in then if then[name] != now[name])


def targets_of(slug: str, jobs: int) -> tuple[GpuTarget, ...]:
    """The GPUs whose compilers decide about the rules of `slug`: its own; of portable rules one of each architecture
    that this toolchain has a compiler for.

    Raises:
        UnknownGpu: a GPU that is neither known nor in this machine, so that nothing says what to compile for.
    """
    if slug != PORTABLE:
        return (resolve(slug, require_gpu=False).target,)
    return tuple(target for target in one_gpu_an_arch() if missing_compiler(target, jobs) is None)


def recompile(file: TunedFile, targets: Sequence[GpuTarget], jobs: int) -> tuple[Recompiled, ...]:
    """Every rule of the file, in its own dtype, compiled for all `targets` in `jobs` processes."""
    units = [unit_of(entry.spec, entry.config) for entry in file.entries]
    answers: list[dict[GpuTarget, Resources | Rejected]] = [{} for _ in units]
    for target in targets:
        for index, answer in compile_units(units, target, jobs):
            answers[index][target] = answer
    return tuple(judge(entry, each, toolchain_of(entry)) for entry, each in zip(file.entries, answers))


def judge(entry: TunedEntry, answers: Mapping[GpuTarget, Resources | Rejected], today: Toolchain) -> Recompiled:
    """What the compiler's answers, one or more, say about a rule; `today` is what it would be made with now."""
    compiled: list[Resources] = []
    overs: list[Rejected] = []
    for target, answer in answers.items():
        if isinstance(answer, Rejected):
            return Recompiled(entry=entry, state=State.REFUSED, why=f"{target.arch}: {answer.detail}")
        compiled.append(answer)
        overs += [over for over in [over_limit(answer, target)] if over is not None]
    now = worst_of(compiled)
    if overs:
        state = State.EXCEEDS if overs[0].reason is Reason.SRAM else State.SPILLS
        return Recompiled(entry=entry, state=state, now=now, why=overs[0].detail)
    state, why = _state(entry, now, today)
    return Recompiled(entry=entry, state=state, now=now, why=why)


def _state(entry: TunedEntry, now: Resources, today: Toolchain) -> tuple[State, str]:
    """The state of a rule that fits, and what is wrong with it."""
    made_with = entry.toolchain
    if made_with.kernels != today.kernels:
        return State.STALE, f"proven with kernels {made_with.kernels}, today's templates write {today.kernels}"
    if now == entry.resources:
        return State.AS_RECORDED, ""
    if made_with.triton != today.triton:
        return State.DRIFTED, ""
    return (
        State.DIFFERS,
        f"triton {today.triton} made it and compiles it otherwise: the file or the compiler was changed",
    )
