"""The sizes at which each case runs: as it is listed, in a form small enough for the interpreter, and beside it.

A fault rarely sits at one size. NEIGHBOURS adds the sizes that a case's notes name and those next to them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.cases.case import Case

Changes = Mapping[str, Any]
INFINITE = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Form:
    """`case` to run under `name`. `gpu` says that only a GPU shows it."""

    name: str
    case: Case
    gpu: bool


def each(key: str, *values: Any) -> list[Changes]:
    return [{key: value} for value in values]


def lengths(*pairs: tuple[int, int]) -> list[Changes]:
    return [{"seqlen_q": q, "seqlen_k": k, "zero_rows": None} for q, k in pairs]


def heads(*pairs: tuple[int, int]) -> list[Changes]:
    return [{"heads_q": q, "heads_kv": kv} for q, kv in pairs]


# A case in words that flashgen has: no key mask, so the second key is hidden by causality from the first query.
RESTATED: dict[str, Changes] = {
    "mask-05": {"seqlen_q": 2, "causal": True, "q": [[-20000.0], [-20000.0]], "key_mask": None},
    "grad-02": {"needs": "q"},  # a form each
    "grad-05": {"dtype": "bf16"},  # what autocast computes in
}
# Shown on a GPU alone: a matter of bf16.
ON_A_GPU = frozenset({"num-13"})
# What a case expects beyond its first token, in words that check.py knows.
ALSO: dict[str, tuple[str, ...]] = {
    "mask-05": ("first_row:1.0",),
    "causal-02": ("same_as:full",),
    "window-01": ("returns_v",),
    "window-04": ("same_as:full",),
    "num-01": ("first_row:133120",),
    "num-08": ("within:1e-5",),
    "lse-01": ("within:1e-5",),
    "grad-05": ("needs_autocast",),
}

NEIGHBOURS: dict[str, list[Changes]] = {
    "mask-01": lengths((1, 0), (2, 1), (33, 1), (40, 8), (64, 17), (65, 32), (100, 99)),
    "mask-04": lengths((79, 64), (80, 64), (81, 64), (95, 64), (96, 64), (97, 64), (130, 64)),
    "mask-05": [{"q": [[-2e4], [-2e4]], "dtype": "fp16"}, {"q": [[-1e30], [-1e30]]}, {"q": [[2e4], [2e4]]}],
    "mask-07": [*lengths((17, 1), (33, 16), (48, 32)), {"window": (3, 0)}, {"softcap": 5.0}],
    "mask-08": [
        {"dtype": "fp16"},
        {"bias_row": {"row": 0, "value": -1e30}},
        {"bias_row": {"row": 3, "value": -math.inf}},
        {"causal": True},
        {"bias_row": {"row": 3, "value": -math.inf}, "op": "bwd", "expect": "match_ref_grad"},
    ],
    "mask-10": [*each("block", 16, 32), *lengths((31, 33), (33, 31)), {"causal": False}],
    "causal-01": lengths((1, 5), (5, 5), (3, 33), (17, 40), (32, 48)),
    "causal-02": each("seqlen_k", 1, 2, 15, 17, 33, 64),
    "causal-04": [*lengths((33, 47), (64, 17)), {"causal": True, "seqlen": 48}],
    "causal-05": each("seqlen_k", 128, 129, 130, 143, 144, 145, 159, 160, 175, 176, 177, 190, 191, 192),
    "causal-07": lengths((16, 49), (17, 48), (48, 16), (15, 47)),
    "window-01": [{"window": (left, 0), "also": None} for left in (1, 2, 7, 15, 16)] + each("window", (0, -1)),
    "window-02": each("window", (-1, 0), (128, 0), (129, 0), (INFINITE, 0)),
    "window-04": [
        *each("window", (-1, 23), (-1, 24), (8, -1), (INFINITE, -1), (INFINITE, INFINITE)),
        *({"window": (-1, right), "also": None} for right in (7, 8, 22)),
    ],
    "window-05": [
        *each("seqlen_q", 95, 96, 97, 128, 130),
        *each("window", (32, 0), (0, 64), (0, 0), (64, 32), (1, 1), (-1, 64), (32, -1)),
    ],
    "window-08": [
        *({"seqlen": 70, "window": (left, 0)} for left in (0, 32, 70)),
        {"seqlen_q": 70, "seqlen_k": 90, "window": (15, 17), "causal": False},
    ],
    "tail-01": each("seqlen", 15, 16, 17, 31, 32, 33),
    "tail-02": lengths((63, 63), (63, 64), (64, 63), (64, 64), (64, 65), (65, 63), (65, 64), (65, 65)),
    "tail-04": each("seqlen", 1, 2, 3, 4, 5, 6, 8),
    "tail-05": [*each("seqlen", 1, 15, 17, 33), {"causal": True}],
    "tail-07": each("seqlen_k", 1, 97, 127, 128, 129),
    "tail-08": each("head_dim", 1, 33, 65, 127),
    "tail-10": [*lengths((0, 5), (0, 0), (1, 0), (40, 0)), {"batch": 0}, {"causal": True}, {"window": (3, 2)}],
    "tail-11": each("seqlen", 128, 256, 257),
    "dim-01": [{"seqlen": 33}, {"batch": 1, "heads_q": 1, "heads_kv": 1, "seqlen": 65}],
    "dim-02": each("head_dim", 24, 40, 72, 80, 112, 120, 160, 192, 256),
    "dim-04": [{"head_dim": 16, "head_dim_v": 40}, {"head_dim": 40, "head_dim_v": 24, "causal": True}],
    "dim-05": each("head_dim", 40, 80),
    "dim-07": each("head_dim", 1, 2, 7, 9, 15),
    "layout-01": [
        {"layout": {"q": "bhsd_view", "k": "bshd", "v": "every_2nd_token"}},
        {"layout": {"q": "every_2nd_token", "k": "bhsd_view", "v": "bshd"}},
        {"layout": {"q": "every_2nd_token", "k": "every_2nd_token", "v": "bhsd_view"}, "heads_kv": 1},
    ],
    "layout-02": [{"seqlen_k": n} for n in (1, 2, 31, 32, 34, 63, 64, 65, 66, 95, 97)]
    + [{"dtype": "fp16", "seqlen_k": 65}, {"causal": True, "seqlen_k": 65}],
    "layout-04": [{"layout": {x: "last_dim_strided"}} for x in "qkv"],
    "layout-05": [
        {"layout": {"q": "every_2nd_token"}},
        {"layout": {"k": "bhsd_view", "v": "every_2nd_token"}, "calls": ["view", "contiguous", "view"]},
    ],
    "layout-07": each("do_layout", "expand_heads", "last_dim_strided", "bhsd_view"),
    "layout-08": [{"do_layout": "every_2nd_token"}, {"causal": True, "heads_kv": 1}],
    "layout-10": heads((1, 1), (5, 1), (4, 2)),
    "layout-13": [{"layout": {x: f"singleton_stride_{n}"}} for x in "kv" for n in (0, 1, 16, 2**40)],
    "num-01": [{"scale": 0.25}],
    "num-02": [
        *lengths((37, 20), (1, 1), (20, 64)),
        {"causal": False},
        {"window": (3, 2), "causal": False},
        {"softcap": 5.0},
    ],
    "num-04": [{"softcap": 10.0}, {"softcap": 1.0}, {"softcap": 1e-3}, {"softcap": 1e6}],
    "num-05": [{"softcap": 30.0}, {"softcap": 50.0}, {"softcap": 0.0}],
    "num-07": [{"softcap": 1.0}, {"softcap": 50.0}, {"gain": 50.0}],
    "num-08": [{"causal": True}, {"seqlen": 65}, {"head_dim": 128, "seqlen": 40}],
    "num-10": [{"gain_k": 32.0}, {"gain_k": 64.0, "causal": True}],
    "num-13": [{"causal": False}, {"head_dim": 128}, {"seqlen_k": 333}],
    "gqa-01": heads((33, 2), (1, 2), (2, 3)),
    "gqa-02": heads((21, 7), (7, 1), (5, 5), (16, 2), (12, 4)),
    "lse-01": [{"seqlen_k": n} for n in (2, 8, 16, 17, 64)]
    + [{"scale": 1.0, "gain": 10.0, "also": None}, {"causal": True}],
    "lse-02": [{"scale": 2.0}, {"scale": 1e-3}, {"softcap": 0.0}, {"window": (9, 0)}, {"causal": False}],
    "grad-01": [{"dtype": "fp16"}, {"do_layout": "expand0"}, {"causal": False, "window": (9, 4)}, {"heads_kv": 1}],
    "grad-02": each("needs", "k", "v", "qk", "qv", "kv"),
    "grad-05": [{"do_dtype": "fp32"}, {"causal": False}],
    "grad-07": [{"causal": True, "seqlen": 20}, {"do_dtype": "fp32", "do_layout": "cat_view"}],
    "grad-08": [
        *({"block": block, "expect": "match_ref_grad"} for block in (16, 64)),
        *({"dropout": p, "expect": "match_ref_grad"} for p in (0.1, 0.9)),
        {"causal": True, "seqlen_q": 45, "expect": "match_ref_grad"},
    ],
}

# For the interpreter: sizes that show the same fault in seconds. bf16 is wrong there, so it stands for another dtype
# where the fault is no matter of bf16.
SMALL: dict[str, Changes] = {
    "causal-02": {"heads_q": 2, "heads_kv": 2},
    "dim-05": {"seqlen": 33, "heads_q": 2, "heads_kv": 2},
    "grad-05": {"dtype": "fp16", "dtypes": {"q": "fp32", "k": "fp32", "v": "fp16"}},
    "layout-10": {"seqlen": 20},
    "num-01": {"dtype": "fp32"},
    "num-08": {"heads_q": 1, "heads_kv": 1, "batch": 1},
    "num-10": {"seqlen": 65, "heads_q": 1, "heads_kv": 1},
    "tail-01": {"heads_q": 2, "heads_kv": 2},
    "tail-08": {"batch": 1},
    "tail-11": {"heads_q": 1, "heads_kv": 1, "head_dim": 16, "block": 128},
    "window-02": {"heads_q": 1, "heads_kv": 1},
    "window-08": {"head_dim": 16},
}
_MOST_TILES = 2000


def forms(case: Case) -> Iterator[Form]:
    """Every form of `case`: those of the interpreter, then the listed sizes on a GPU."""
    restated = case.but({"also": ALSO.get(case.id), **RESTATED.get(case.id, {})})
    full = restated.but({"small": None})
    small = full.but({**restated.extra.get("small", {}), **SMALL.get(case.id, {})})
    changes: list[Changes] = [{}, *NEIGHBOURS.get(case.id, [])]
    for change in changes:
        yield from _interpreted(case, small.but(change), change)
    for change in changes:
        yield Form(name=_name(case.id, change, "gpu"), case=full.but(change), gpu=True)


def _interpreted(listed: Case, case: Case, change: Changes) -> Iterator[Form]:
    only_a_grid = case.given("batch") * case.given("heads_q") > _MOST_TILES  # one program a head
    if only_a_grid or case.id in ON_A_GPU:
        return
    if case.dtype == "bf16":
        case = case.but({"dtype": "fp16"})
    substitute = () if case.dtype == listed.dtype or "dtype" in change else (f"as-{case.dtype}",)
    yield Form(name=_name(listed.id, change, *substitute), case=case, gpu=False)


def _name(case_id: str, change: Changes, *more: str) -> str:
    shown = [
        f"{key}={_short(value)}" for key, value in change.items() if value is not None and key not in ("also", "expect")
    ]
    return "-".join([case_id, *shown, *more])


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{member}" for key, member in value.items())
    return "".join(str(value).split())
