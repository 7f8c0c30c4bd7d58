"""The rules that a settled search amounts to, as tuned_configs holds them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from flashgen.compiler.toolchain import kernels_hash
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Measurement, Prediction, Proof, Rejected, Resources, Toolchain
from flashgen.resources.fit import HELD_OUT
from flashgen.resources.limits import over_limit
from flashgen.spec import AttentionSpec, Dtype, Workload
from flashgen.store.entry import TunedEntry
from flashgen.store.evidence import Evidence, EvidenceKind, Timing, significant
from flashgen.tune.rules import Rule
from flashgen.tune.settle import ProvenRule
from flashgen.tune.stages import Candidate, Stages


def entries_of(
    rules: Iterable[ProvenRule], candidates: int, kind: EvidenceKind, toolchain: Toolchain
) -> tuple[TunedEntry, ...]:
    """An entry for each rule, for the winner's spec in its own dtype; `candidates` were timed or predicted."""
    return tuple(_entry(*each, candidates, kind, toolchain) for each in rules)


def _entry(rule: Rule, proof: Proof, candidates: int, kind: EvidenceKind, toolchain: Toolchain) -> TunedEntry:
    compiled = rule.winner.compiled
    spec = compiled.candidate.spec
    timings = tuple(_timing(spec, workload, time) for workload, time in zip(rule.workloads, rule.winner.times))
    return TunedEntry(
        spec=spec,
        dtypes=(spec.dtype,),
        workloads=rule.keys,
        config=compiled.config,
        evidence=Evidence(
            kind=kind,
            timings=timings,
            ties=len(rule.choice.tied),
            candidates=candidates,
            worst_regret=significant(rule.worst_regret),
            mean_regret=significant(rule.mean_regret),
            model=HELD_OUT if kind == "predicted" else None,
        ),
        resources=compiled.resources,
        proof=proof,
        toolchain=replace(toolchain, kernels=kernels_hash(spec, compiled.config)),
    )


def _timing(spec: AttentionSpec, workload: Workload, time: Measurement | Prediction) -> Timing:
    if isinstance(time, Measurement):
        return Timing.measured(spec, workload, time)
    return Timing.predicted(spec, workload, time)


def serve_also(
    entries: Iterable[TunedEntry], dtype: Dtype, stages: Stages, target: GpuTarget
) -> tuple[TunedEntry, ...] | Rejected:
    """The entries serving `dtype` too, in which all of their kernels must compile within the limits and be exact.

    Raises:
        FlashgenError: the GPU's process does not start.
    """
    entries = tuple(entries)
    twins = [Candidate(replace(entry.spec, dtype=dtype), entry.config) for entry in entries]
    needs = dict(stages.compile(twins))
    shared: list[TunedEntry] = []
    for index, (entry, twin) in enumerate(zip(entries, twins)):
        found = _serving(entry, twin, needs[index], stages, target)
        if isinstance(found, Rejected):
            return found
        shared.append(found)
    return tuple(shared)


def _serving(
    entry: TunedEntry, twin: Candidate, needs: Resources | Rejected, stages: Stages, target: GpuTarget
) -> TunedEntry | Rejected:
    """The entry serving the dtype of `twin` too, the same kernels in that dtype, which need `needs`."""
    if isinstance(needs, Rejected):
        return needs
    if (over := over_limit(needs, target)) is not None:
        return over
    dtype, proof = twin.spec.dtype, entry.proof
    if dtype not in proof.dtypes:
        other = stages.prove(twin, thorough=True)
        if isinstance(other, Rejected):
            return other
        proof = joined(proof, other)
    return replace(entry, dtypes=(*entry.dtypes, dtype), proof=proof)


def joined(one: Proof, other: Proof) -> Proof:
    """Two proofs of one kernel in different dtypes as one record, whose worst probe is the worse of the two."""
    worse = max(one, other, key=lambda proof: proof.worst_ratio)
    dtypes = tuple(dict.fromkeys((*one.dtypes, *other.dtypes)))
    return replace(worse, dtypes=dtypes, probes=one.probes + other.probes, seed=one.seed)
