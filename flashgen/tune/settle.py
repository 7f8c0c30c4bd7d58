"""From the candidates that came through a search to one rule: final timings, the choice, the thorough proof."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flashgen.config import KernelConfig
from flashgen.outcome import Proof, Rejected
from flashgen.tune.choose import Choice, Timed, choose
from flashgen.tune.evaluate import Evaluated, Fallen, Gate, stop_if_fatal, usable
from flashgen.tune.stages import Compiled, Stages

_MAX_FINALISTS = 8  # of those that must be timed
_MAX_PROOFS = 8  # that may fail: when so many of the best do, it is not the configs that are wrong
_MARGIN = 1.1  # over the best of the search: a short timing is no further off than that


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """The choice and the winner's proof (both None where nobody is left), and what became of the others.

    `ranked` are the compiled finalists, the winner first, then by time. `fell` holds those that the search let through
    and the finals rejected.
    """

    choice: Choice | None
    proof: Proof | None
    ranked: tuple[Compiled, ...]
    fell: tuple[tuple[KernelConfig, Fallen], ...]


def settle(evaluated: Iterable[Evaluated], stages: Stages) -> Settled:
    """Times the best candidates together and proves the preferred one; one that fails gives way to the next.

    After a few thorough proofs that fail nothing is chosen: what they have in common is the kernel's text.

    Raises:
        FlashgenError: a candidate took the GPU context with it.
    """
    failed = 0
    waiting = sorted(evaluated, key=lambda one: (one.us, one.compiled.config.key))
    fell: list[tuple[KernelConfig, Fallen]] = []
    while waiting and failed < _MAX_PROOFS:
        finalists, waiting = _finalists(waiting, _MAX_FINALISTS if stages.kind == "measured" else len(waiting))
        standing = _timed(_proven(finalists, stages, fell), stages, fell)
        while standing and failed < _MAX_PROOFS:
            choice = choose(standing)
            winner = choice.winner.compiled
            proof = stages.prove(winner.candidate, thorough=True)
            if isinstance(proof, Proof):
                others = sorted((one for one in standing if one.compiled != winner), key=lambda one: one.us)
                ranked = (winner, *(one.compiled for one in others), *(one.compiled for one in waiting))
                return Settled(choice=choice, proof=proof, ranked=ranked, fell=tuple(fell))
            failed += 1
            _drop(winner, Gate.PROVE, proof, stages, fell)
            standing = [one for one in standing if one.compiled != winner]
    return Settled(choice=None, proof=None, ranked=(), fell=tuple(fell))


def _finalists(ranked: Sequence[Evaluated], limit: int) -> tuple[list[Evaluated], list[Evaluated]]:
    """(those that may still be the best, the others)."""
    near = [one for one in ranked[:limit] if one.us <= _MARGIN * ranked[0].us]
    return near, list(ranked[len(near) :])


def _proven(finalists: Sequence[Evaluated], stages: Stages, fell: list[tuple[KernelConfig, Fallen]]) -> list[Compiled]:
    """Of the finalists, those that may be timed: where kernels run, none that this process has not seen to be exact."""
    kept = []
    for one in finalists:
        proof = one.proof
        found = proof if proof is not None or stages.kind != "measured" else stages.prove(one.compiled.candidate)
        if isinstance(found, Rejected):
            _drop(one.compiled, Gate.PROVE, found, stages, fell)
        else:
            kept.append(one.compiled)
    return kept


def _timed(compiled: Sequence[Compiled], stages: Stages, fell: list[tuple[KernelConfig, Fallen]]) -> list[Timed]:
    kept = []
    for one, found in zip(compiled, stages.time(compiled) if compiled else ()):
        times = usable(found)
        if isinstance(times, Rejected):
            _drop(one, Gate.TIME, times, stages, fell)
        else:
            kept.append(Timed(compiled=one, times=times))
    return kept


def _drop(
    compiled: Compiled, gate: Gate, rejected: Rejected, stages: Stages, fell: list[tuple[KernelConfig, Fallen]]
) -> None:
    fallen = Fallen(gate=gate, rejected=rejected, resources=compiled.resources)
    fell.append((compiled.config, fallen))
    stop_if_fatal(compiled.candidate, fallen, stages)
