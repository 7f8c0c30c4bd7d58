"""The backward in Gluon in parts of the batch and of the heads: exact on the modelled machine, and fit to be timed."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from flashgen.outcome import Proof, Rejected
from flashgen.spec import AttentionSpec
from flashgen.verify.probes import Probe, Suite
from flashgen.verify.prove import prove_rule
from flashgen.verify.suites import FULL
from tests.kernels.gluon.candidates import loaded, source_of
from tests.kernels.gluon.language import SEED

MIB = 2**20
H200_SMS = 132
# With one SM a part has two programs or more, and here room for the sum of four heads of 20 queries.
BATCH, HEADS = (5, 2, 2, 20, 37), (2, 10, 5, 20, 37)  # parts of 1, 2 and 2 batch elements; of 2 and 3 heads of k
ROOM = 4 * 20
SUITE = Suite(
    name="parts",
    probes=(
        Probe(name="batch", shape=BATCH, op="backward", dlse=True),
        Probe(name="heads", shape=HEADS, op="backward", dlse=True),
        Probe(name="each laid out otherwise", shape=HEADS, op="backward", layout="mixed"),
        Probe(name="two programs a head", shape=(1, 6, 6, 20, 140), op="backward", layout="packed"),
        Probe(name="dq alone", shape=HEADS, op="backward", wanted=("dq",)),
        Probe(name="dk and dv", shape=HEADS, op="backward", layout="bhsd", wanted=("dk", "dv")),
        Probe(name="first keys hidden", shape=HEADS, op="backward", window=(9, 1), only="window"),
    ),
)


def spec_of(variant: str, head_dim: int = 64, head_dim_v: int | None = None) -> AttentionSpec:
    return AttentionSpec.of_variant(variant, dtype="fp16", head_dim=head_dim, head_dim_v=head_dim_v, op="backward")


def proven_in_parts(source: str, spec: AttentionSpec) -> tuple[Proof | Rejected, set[int]]:
    """What the suite says of the module's only rule, in parts that are small enough for it; how many there were."""
    module, counts, SEED.seed = loaded(source), set(), 0
    parts_of = module._parts

    def counted(*arguments: Any) -> Any:
        counts.add(len(parts := parts_of(*arguments)))
        return parts

    module._parts, module._sm_count = counted, lambda device: 1
    rule = module.PORTABLE[0]
    rule = rule._replace(config=rule.config._replace(part_bytes=ROOM * 4 * spec.head_dim))
    return prove_rule(module, rule, spec, "fp16", "cpu", SUITE, 0, stop_at_failure=True), counts


@pytest.mark.parametrize(
    ("variant", "head_dims", "queries", "as_held"),
    [("full", (64, 64), 128, False), ("window", (64, 24), 64, True), ("causal", (192, 128), 64, False)],
)
def test_parts_are_exact(variant: str, head_dims: tuple[int, int], queries: int, as_held: bool) -> None:
    spec = spec_of(variant, *head_dims)
    outcome, counts = proven_in_parts(source_of(spec, BLOCK_M=queries, part_mbytes=32, dq_as_held=as_held), spec)
    assert isinstance(outcome, Proof), outcome
    assert {2, 3, 4} <= counts


FAULTS: list[tuple[str, str, str, str]] = [
    ("the last part is lost", "for i in range(parts)]", "for i in range(parts - (parts > 1))]", "are NaN"),
    ("what begins the third part is lost", "slice(count * i // parts,", "slice(count * i // parts + i // 2,", ""),
    ("heads of q as if each had its own of k", "slice(h.start * group, h.stop * group)", "h", ""),
    ("a part reads the first one's K", "own = (of_q, of_q, of_q, of_k,", "own = (of_q, of_q, of_q, parts[0][1],", ""),
    ("a part's dQ goes to the batch's end", "of_q, of_k, of_k)\n", "parts[-1][0], of_k, of_k)\n", ""),
    ("the sum is zeroed for the first part alone", "= _prepare(dout, out, lse, dq_sum)",
     "= _prepare(dout, out, lse, dq_sum if vars(_execute_backward).setdefault('sum', dq_sum) is dq_sum else None)",
     "are NaN"),
    ("dQ is not scaled", "other=0.0) * softmax_scale", "other=0.0)", "dq: row error"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "says"), [each[1:] for each in FAULTS], ids=[each[0] for each in FAULTS])
def test_a_fault_planted_in_the_parts_is_found(old: str, new: str, says: str) -> None:
    spec = spec_of("causal")
    source = source_of(spec, part_mbytes=32)
    assert source.count(old) == 1
    outcome, _ = proven_in_parts(source.replace(old, new), spec)
    assert isinstance(outcome, Rejected)
    assert says in outcome.detail


@pytest.fixture(scope="module")
def module() -> ModuleType:
    module = loaded(source_of(spec_of("causal"), part_mbytes=32))
    module._sm_count = lambda device: H200_SMS
    return module


@pytest.mark.parametrize(
    ("shape", "head_dim", "mbytes", "parts"),
    [
        ((64, 16, 16, 1024, 1024), 64, 32, 8),  # the FlashAttention paper's GPT-2: 8 of 64 batch elements
        ((64, 16, 16, 1024, 1024), 64, 16, 16),
        ((65, 16, 16, 1024, 1024), 64, 32, 9),
        ((2, 32, 32, 8192, 8192), 128, 32, 8),  # 8 of 32 heads
        ((2, 32, 8, 8192, 8192), 128, 32, 2),  # two heads of k have 32 MiB, but five 264 programs or more
        ((1, 16, 16, 16384, 16384), 128, 32, 4),
        ((1, 64, 8, 4096, 4096), 128, 16, 1),  # one head of k has 16 MiB, but 32 programs: all eight have 256
        ((64, 16, 16, 1024, 100), 64, 16, 3),  # a program a head: 17 batch elements at least
        ((64, 16, 16, 64, 64), 64, 32, 1),
        ((3, 4, 2, 0, 64), 64, 32, 1),
        ((3, 4, 2, 64, 0), 64, 32, 1),
    ],
)
def test_parts_fit_and_fill_the_gpu(
    shape: tuple[int, int, int, int, int], head_dim: int, mbytes: int, parts: int, module: ModuleType
) -> None:
    batch, nheads_q, nheads_k, seqlen_q, seqlen_k = shape
    q = torch.empty(batch, nheads_q, seqlen_q, head_dim, device="meta")
    k = torch.empty(batch, nheads_k, seqlen_k, head_dim, device="meta")
    config = module.PORTABLE[0].config._replace(part_bytes=mbytes * MIB)
    made = module._parts(config, q, k)
    assert len(made) == parts
    for x, own in ((q, [each[0] for each in made]), (k, [each[1] for each in made])):
        covered = torch.zeros(x.shape[:2])
        for part in own:
            covered[part] += 1
        assert (covered == 1).all()
    for of_q, of_k in made if parts > 1 else ():
        heads = k[of_k].shape[0] * k[of_k].shape[1]
        assert q[of_q].shape[0] * q[of_q].shape[1] == heads * nheads_q // nheads_k
        programs = heads * -(-seqlen_k // config.BLOCK_N)
        assert programs >= 2 * H200_SMS
        assert 4 * q[of_q].numel() <= config.part_bytes or programs < 4 * H200_SMS


@pytest.mark.parametrize("head_dim", [64, 256])
@pytest.mark.parametrize("mbytes", [16, 32])
def test_a_thorough_proof_splits_the_batch_and_the_heads(head_dim: int, mbytes: int, module: ModuleType) -> None:
    config = module.PORTABLE[0].config._replace(part_bytes=mbytes * MIB)
    split = set()
    for probe in FULL.suited(spec_of("causal", head_dim)):
        batch, nheads_q, nheads_k, seqlen_q, seqlen_k = probe.shape
        q = torch.empty(batch, nheads_q, seqlen_q, head_dim, device="meta")
        k = torch.empty(batch, nheads_k, seqlen_k, head_dim, device="meta")
        if len(made := module._parts(config, q, k)) > 1:
            split.add("heads" if k[made[0][1]].shape[1] < nheads_k else "batch")
    assert split == {"batch", "heads"}


def test_a_module_without_parts_has_nothing_of_them() -> None:
    source = source_of(spec_of("causal"))
    assert not [word for word in ("_parts", "part_bytes", "_finish_part", "RLock", "_sm_count") if word in source]
