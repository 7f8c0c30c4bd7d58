"""Packs of query heads that share their keys: every size of pack is exact, and few queries fill few tiles."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flashgen.outcome import Proof, Rejected
from flashgen.spec import AttentionSpec
from flashgen.verify.probes import Layout, Probe, Suite
from flashgen.verify.prove import prove_rule
from tests.kernels.gluon.candidates import loaded, source_of

SHAPES: dict[tuple[int, int, int, int, int], Layout] = {  # the packs hold 4, 16, 1, 8 and 2 heads
    (2, 8, 2, 77, 150): "mixed",
    (1, 48, 1, 5, 33): "bhsd",
    (1, 3, 1, 150, 40): "bhsd",
    (1, 16, 2, 17, 130): "cache_tail",
    (1, 6, 1, 70, 70): "packed",
}
PROBES = tuple(Probe(name=str(shape), shape=shape, layout=layout) for shape, layout in SHAPES.items())
SUITE = Suite(
    name="packs", probes=(*PROBES, Probe(name="window", shape=(1, 8, 1, 77, 150), window=(9, 1), only="window"))
)


def proven_in_packs(source: str, spec: AttentionSpec) -> Proof | Rejected:
    module = loaded(source)
    return prove_rule(module, module.PORTABLE[0], spec, "fp16", "cpu", SUITE, 0, stop_at_failure=True)


@pytest.mark.parametrize(
    ("variant", "head_dims", "knobs"),
    [
        ("full", (64, 64), {"ping_pong": True, "programs_per_sm": 1}),
        ("causal", (128, 128), {"BLOCK_M": 192, "num_stages": 1}),
        ("window_softcap", (64, 24), {"programs_per_sm": 1, "q_stages": 2, "fused_scale": True}),
    ],
)
def test_packs_of_every_size_are_exact(variant: str, head_dims: tuple[int, int], knobs: dict[str, Any]) -> None:
    spec = AttentionSpec.of_variant(variant, dtype="fp16", head_dim=head_dims[0], head_dim_v=head_dims[1])
    outcome = proven_in_packs(source_of(spec, pack_gqa=True, **knobs), spec)
    assert isinstance(outcome, Proof), outcome
    assert outcome.probes == len(SUITE.suited(spec))


FAULTS: list[tuple[str, str, str, str]] = [
    ("the mask takes rows for queries", "= start_m + rows // PACK", "= start_m + rows", ""),
    ("the lse goes to the next head", "* PACK + rows % PACK", "* PACK + (rows + 1) % PACK", "lse"),
    ("Q of another pack", "own_m, off_h * PACK", "own_m, off_h", "out"),
    ("the output goes to another pack", "start_m, off_h * PACK", "start_m, off_h", "out"),
    (
        "a consumer has the next one's queries",
        "start_m += 64 // PACK * GROUP",
        "start_m += 64 // PACK * (1 - GROUP)",
        "",
    ),
    ("a consumer skips what its later queries see", "        64 // PACK,\n", "        1,\n", "out"),
    ("a tile has as many queries as rows", "config.BLOCK_M // pack)", "config.BLOCK_M)", ""),
    ("heads of other keys in a pack", "math.gcd(nheads_q // nheads_k, 16)", "math.gcd(nheads_q, 16)", ""),
]


@pytest.mark.parametrize(("old", "new", "says"), [each[1:] for each in FAULTS], ids=[each[0] for each in FAULTS])
def test_a_planted_fault_is_found(old: str, new: str, says: str) -> None:
    spec = AttentionSpec.of_variant("causal", dtype="fp16", head_dim=64)
    source = source_of(spec, pack_gqa=True)
    assert source.count(old) >= 1
    outcome = proven_in_packs(source.replace(old, new), spec)
    assert isinstance(outcome, Rejected)
    assert says in outcome.detail


@pytest.mark.parametrize(
    ("heads", "seqlen_q", "pack", "programs"),
    [((32, 4), 64, 8, 16), ((32, 4), 1, 8, 4), ((48, 2), 65, 8, 30), ((32, 1), 8, 16, 2), ((6, 2), 64, 1, 6)],
)
def test_few_queries_of_many_heads_fill_few_tiles(
    heads: tuple[int, int], seqlen_q: int, pack: int, programs: int
) -> None:
    spec = AttentionSpec.of_variant("causal", dtype="fp16", head_dim=64)
    module = loaded(source_of(spec, pack_gqa=True))
    launches: list[tuple[Any, dict[str, Any]]] = []
    kernel = {(count,): lambda *args, count=count, **sizes: launches.append((count, sizes)) for count in range(100)}
    config = module.PORTABLE[0].config._replace(kernel=kernel)
    q, k = (torch.empty(1, count, length, 64).half() for count, length in zip(heads, (seqlen_q, 512)))
    module._launch_hopper(config, q, k, k, q, SimpleNamespace(), ())
    ((count, sizes),) = launches
    assert (count, sizes["PACK"]) == (programs, pack)
