"""From the candidates that came through a search to its rules: final timings, the choice, the thorough proofs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import NamedTuple

from flashgen.config import KernelConfig
from flashgen.families import FAMILIES
from flashgen.outcome import Proof, Rejected
from flashgen.resources.fit import HELD_OUT
from flashgen.spec import Workload
from flashgen.store.evidence import EvidenceKind
from flashgen.tune.choose import NOBODY, Incumbents, Timed
from flashgen.tune.evaluate import NEAR, Evaluated, Fallen, Gate, usable
from flashgen.tune.rules import Rule, fit_rules, lengths_of
from flashgen.tune.stages import Compiled, Stages, score_us

_MAX_FINALISTS = 8  # of those that must be timed; one more for every further length
_MAX_PROOFS = 8  # that may fail: when so many of the best do, it is not the configs that are wrong


class ProvenRule(NamedTuple):
    """A rule and the thorough proof of its config."""

    rule: Rule
    proof: Proof


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """The rules by length (none where nobody is left), and what became of the other candidates.

    `others` are the finalists that no rule names, by time. `fell` holds those that the search let through and the
    finals rejected, `proven` the configs that were shown to be exact here.
    """

    rules: tuple[ProvenRule, ...] = ()
    proven: frozenset[KernelConfig] = frozenset()
    others: tuple[Compiled, ...] = ()
    fell: tuple[tuple[KernelConfig, Fallen], ...] = ()

    @property
    def winners(self) -> tuple[KernelConfig, ...]:
        """The configs of the rules, that for the longest sequences first."""
        return tuple(dict.fromkeys(rule.winner.compiled.config for rule, _ in reversed(self.rules)))


def settle(
    evaluated: Iterable[Evaluated],
    stages: Stages,
    workloads: Sequence[Workload],
    incumbents: Incumbents = NOBODY,
) -> Settled:
    """The rules of the best candidates; where these are unordered, those of the others beside them, for determinism.

    Raises:
        FlashgenError: the GPU's process does not start.
    """
    evaluated = tuple(evaluated)
    settled = _settle(evaluated, stages, workloads, incumbents)
    if not any(_is_unordered(config) for config in settled.winners):
        return settled
    in_order = [one for one in evaluated if not _is_unordered(one.compiled.config)]
    ordered = _settle(in_order, stages, workloads, incumbents)
    return Settled(
        rules=settled.rules + ordered.rules,
        proven=settled.proven | ordered.proven,
        others=tuple(one for one in settled.others if one.config not in ordered.winners),
        fell=tuple((dict(settled.fell) | dict(ordered.fell)).items()),
    )


def _is_unordered(config: KernelConfig) -> bool:
    return FAMILIES[config.family].unordered


def _settle(
    evaluated: Iterable[Evaluated], stages: Stages, workloads: Sequence[Workload], incumbents: Incumbents
) -> Settled:
    """Times the best candidates together, fits rules and proves their configs; where one fails, the others' rules.

    After a few thorough proofs that fail nothing is chosen: what they have in common is the kernel's text.

    Raises:
        FlashgenError: the GPU's process does not start.
    """
    failed = 0
    waiting = sorted(evaluated, key=lambda one: (one.us, one.compiled.config.key))
    fell: list[tuple[KernelConfig, Fallen]] = []
    proofs: dict[KernelConfig, Proof] = {}
    proven: set[KernelConfig] = set()
    while waiting and failed < _MAX_PROOFS:
        finalists, waiting = _finalists(waiting, workloads, incumbents, limited=stages.kind == "measured")
        exact = [one.compiled for one in finalists]
        if stages.kind == "measured":
            exact = _exact(exact, stages, fell)
            proven.update(one.config for one in exact)
        standing = _timed(exact, stages, fell)
        while standing and failed < _MAX_PROOFS:
            rules = fit_rules(standing, workloads, incumbents, _error(stages.kind))
            if (failure := _prove(rules, proofs, stages)) is None:
                settled = _settled(rules, proofs, standing, waiting)
                return replace(settled, proven=frozenset(proven | proofs.keys()), fell=tuple(fell))
            failed += 1
            loser, why = failure
            _drop(loser, Gate.PROVE, why, fell)
            standing = [one for one in standing if one.compiled != loser]
    return Settled(fell=tuple(fell))


def _error(kind: EvidenceKind) -> float:
    """What times may be wrong by, beyond their intervals."""
    return HELD_OUT.error if kind == "predicted" else 0.0


def _settled(
    rules: Sequence[Rule],
    proofs: dict[KernelConfig, Proof],
    standing: Sequence[Timed],
    waiting: Sequence[Evaluated],
) -> Settled:
    named = [rule.winner.compiled for rule in rules]
    beaten = [one.compiled for one in sorted(standing, key=lambda one: one.us) if one.compiled not in named]
    return Settled(
        rules=tuple(ProvenRule(rule, proofs[rule.winner.compiled.config]) for rule in rules),
        others=(*beaten, *(one.compiled for one in waiting)),
    )


def _prove(
    rules: Iterable[Rule], proofs: dict[KernelConfig, Proof], stages: Stages
) -> tuple[Compiled, Rejected] | None:
    """Adds to `proofs` what they lack of the rules' configs; the first of these that is not exact, or None."""
    for winner in (rule.winner.compiled for rule in rules):
        if winner.config in proofs:
            continue
        proof = stages.prove(winner.candidate, thorough=True)
        if isinstance(proof, Rejected):
            return winner, proof
        proofs[winner.config] = proof
    return None


def _finalists(
    ranked: Sequence[Evaluated], workloads: Sequence[Workload], incumbents: Incumbents, *, limited: bool
) -> tuple[list[Evaluated], list[Evaluated]]:
    """(those that may still be the best, over all workloads or at one length, the incumbents first; the others).

    Where they are `limited`, the best of every order come before the second ones.
    """
    lengths = lengths_of(workloads)
    orders = [_near(ranked, positions) for positions in (range(len(workloads)), *lengths.values())]
    near = dict.fromkeys(index for index in chain.from_iterable(zip_longest(*orders)) if index is not None)
    first = sorted(near, key=lambda index: ranked[index].compiled.config not in incumbents)
    taken = first[: _MAX_FINALISTS + len(lengths) - 1] if limited else first
    return [ranked[index] for index in taken], [one for index, one in enumerate(ranked) if index not in taken]


def _near(ranked: Sequence[Evaluated], workloads: Sequence[int]) -> list[int]:
    """The candidates that are not clearly slower than the best on some of the workloads, by time there."""
    us = [score_us(tuple(one.times[position] for position in workloads)) for one in ranked]
    return [index for index in sorted(range(len(us)), key=us.__getitem__) if us[index] <= NEAR * min(us)]


def _exact(compiled: Sequence[Compiled], stages: Stages, fell: list[tuple[KernelConfig, Fallen]]) -> list[Compiled]:
    """Those that this process sees to be exact, now or in the search before."""
    kept = []
    for one in compiled:
        found = stages.prove(one.candidate)
        if isinstance(found, Rejected):
            _drop(one, Gate.PROVE, found, fell)
        else:
            kept.append(one)
    return kept


def _timed(compiled: Sequence[Compiled], stages: Stages, fell: list[tuple[KernelConfig, Fallen]]) -> list[Timed]:
    kept = []
    for one, found in zip(compiled, stages.time(compiled) if compiled else ()):
        times = usable(found)
        if isinstance(times, Rejected):
            _drop(one, Gate.TIME, times, fell)
        else:
            kept.append(Timed(compiled=one, times=times))
    return kept


def _drop(compiled: Compiled, gate: Gate, rejected: Rejected, fell: list[tuple[KernelConfig, Fallen]]) -> None:
    fell.append((compiled.config, Fallen(gate=gate, rejected=rejected, resources=compiled.resources)))
