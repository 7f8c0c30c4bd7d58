"""The rule that a settled search amounts to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flashgen.compiler.toolchain import kernels_hash
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Measurement, Prediction, Proof, Rejected, Toolchain
from flashgen.spec import AttentionSpec, Dtype, Workload
from flashgen.store.entry import TunedEntry
from flashgen.store.evidence import Evidence, Timing, significant
from flashgen.tune.choose import Choice
from flashgen.tune.evaluate import Fallen, Gate, over_limit, stop_if_fatal
from flashgen.tune.stages import Candidate, Stages


def entry_of(
    choice: Choice,
    proof: Proof,
    candidates: int,
    workloads: Sequence[Workload],
    stages: Stages,
    toolchain: Toolchain,
) -> TunedEntry:
    """The rule for the winner's spec in its own dtype; `candidates` were timed or predicted."""
    compiled = choice.winner.compiled
    spec = compiled.candidate.spec
    timings = tuple(
        _timing(spec, workload, time) for workload, time in zip(workloads, choice.winner.times, strict=True)
    )
    evidence = Evidence(
        kind=stages.kind,
        timings=timings,
        ties=len(choice.tied),
        candidates=candidates,
        worst_regret=significant(choice.worst_regret),
        mean_regret=significant(choice.mean_regret),
    )
    return TunedEntry(
        spec=spec,
        dtypes=(spec.dtype,),
        config=compiled.config,
        evidence=evidence,
        resources=compiled.resources,
        proof=proof,
        toolchain=replace(toolchain, kernels=kernels_hash(spec, compiled.config)),
    )


def _timing(spec: AttentionSpec, workload: Workload, time: Measurement | Prediction) -> Timing:
    if isinstance(time, Measurement):
        return Timing.measured(spec, workload, time)
    return Timing.predicted(spec, workload, time)


def serve_also(entry: TunedEntry, dtype: Dtype, stages: Stages, target: GpuTarget) -> TunedEntry | Rejected:
    """`entry` serving `dtype` too, in which its kernel must compile within the limits and be exact as well.

    Raises:
        FlashgenError: the kernel took the GPU context with it.
    """
    twin = Candidate(replace(entry.spec, dtype=dtype), entry.config)
    ((_, resources),) = stages.compile([twin])
    if isinstance(resources, Rejected):
        return resources
    if (over := over_limit(resources, target)) is not None:
        return over
    proof = entry.proof
    if dtype not in proof.dtypes:
        other = stages.prove(twin, thorough=True)
        if isinstance(other, Rejected):
            stop_if_fatal(twin, Fallen(gate=Gate.PROVE, rejected=other, resources=resources), stages)
            return other
        proof = joined(proof, other)
    return replace(entry, dtypes=(*entry.dtypes, dtype), proof=proof)


def joined(one: Proof, other: Proof) -> Proof:
    """Two proofs of one kernel in different dtypes as one record, whose worst probe is the worse of the two."""
    worse = max(one, other, key=lambda proof: proof.worst_ratio)
    dtypes = tuple(dict.fromkeys((*one.dtypes, *other.dtypes)))
    return replace(worse, dtypes=dtypes, probes=one.probes + other.probes, seed=one.seed)
