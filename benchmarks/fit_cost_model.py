"""Fits the constants of flashgen/resources/fit.py to measured tables, and prints them.

    python benchmarks/fit_cost_model.py

Minimises the mean squared log error, in which a config weighs the more the nearer it is to the best of its table: it is
the order of the fast ones that the model is asked for. No part of it is random.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flashgen.config import KernelConfig
from flashgen.families import TL
from flashgen.hardware.lookup import find_gpu
from flashgen.outcome import Resources
from flashgen.resources.cost import predict
from flashgen.resources.fit import H200, Fit
from flashgen.spec import AttentionSpec, Workload

DATA = Path(__file__).parent / "data"
TABLES = ("sweep-nvidia-h200.json", "exhaustive-nvidia-h200-d128-causal.json")
TARGET = find_gpu("nvidia-h200")
FITTED = tuple(name for name in asdict(H200) if name not in ("short_first", "capped"))
START = dict.fromkeys(FITTED, 1.0) | {"latency": 300.0, "unpipelined": 1000.0, "spill": 4.0, "overlap": 2.0}
SIMPLEX_SIZES = (0.7, 0.4, 0.2)  # of the logarithms, one a restart
STEPS = 300  # a restart
PULL = 1e-6  # back to the start: what the data say nothing about stays there, and what they do hardly moves
STEEPNESS = 4  # a config that takes twice the time of the best weighs a sixteenth of it

Point = list[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A config's measured time; `table` names the file and the spec."""

    table: str
    spec: AttentionSpec
    config: KernelConfig
    workload: Workload
    resources: Resources
    us: float

    def predicted_us(self, fit: Fit) -> float:
        return predict(self.spec, self.config, TARGET, self.workload, self.resources, fit).us


def cases() -> tuple[Case, ...]:
    """Every config of the tables that was timed, and that its family would try for its spec today."""
    found = [case for name in TABLES for case in _cases(name, json.loads((DATA / name).read_text()))]
    return tuple(case for case in found if TL.excluded(case.spec, case.config, TARGET) is None)


def _cases(name: str, document: dict[str, Any]) -> Iterable[Case]:
    assert document["gpu"] == TARGET.slug
    for row in document["rows"]:
        if row["us"] is not None:
            key = row.get("spec") or document["spec"]
            _, dtype, head, mask = key.split("-")
            d = int(head[1:])
            yield Case(
                table=f"{key}, {name.split('-')[0]}",
                spec=AttentionSpec(dtype=dtype, head_dim=d, head_dim_v=d, causal=mask == "causal"),
                config=TL.config(row["config"]),
                workload=Workload(batch=4, heads_q=2048 // d, heads_kv=2048 // d, seqlen_q=4096, seqlen_k=4096),
                resources=Resources(**row["resources"]),
                us=row["us"],
            )


def fit(known: Sequence[Case]) -> Fit:
    """The constants of least loss, from a start that owes nothing to any data."""

    def constants(logs: Point) -> Fit:
        return replace(H200, **{name: math.exp(value) for name, value in zip(FITTED, logs)})

    def held(logs: Point) -> float:
        return loss(constants(logs), known) + PULL * sum((x - y) ** 2 for x, y in zip(logs, start))

    start = best = [math.log(START[name]) for name in FITTED]
    for size in SIMPLEX_SIZES:
        best = nelder_mead(held, best, size, STEPS)
    return constants(best)


def nelder_mead(loss: Callable[[Point], float], start: Point, size: float, steps: int) -> Point:
    """Minimises by the downhill simplex method (Nelder and Mead, The Computer Journal 7, 1965), usual coefficients."""
    corners = [start, *([x + size * (i == j) for j, x in enumerate(start)] for i in range(len(start)))]
    ranked = sorted((loss(corner), corner) for corner in corners)
    for _ in range(steps):
        *others, (highest, worst) = ranked
        centre = [sum(xs) / len(others) for xs in zip(*(corner for _, corner in others))]

        def at(reach: float, centre: Point = centre, worst: Point = worst) -> tuple[float, Point]:
            point = [c + reach * (c - w) for c, w in zip(centre, worst)]
            return loss(point), point

        tried = at(1.0)
        if tried < ranked[0]:
            tried = min(tried, at(2.0))
        elif tried[0] >= others[-1][0]:
            tried = min(tried, at(0.5 if tried[0] < highest else -0.5))
        if tried[0] < highest:
            ranked = sorted([*others, tried])
        else:
            nearer = [[(x + y) / 2 for x, y in zip(ranked[0][1], corner)] for _, corner in ranked[1:]]
            ranked = sorted([ranked[0], *((loss(corner), corner) for corner in nearer)])
    return ranked[0][1]


def loss(fit: Fit, known: Sequence[Case]) -> float:
    """The weighted mean of the squared log error."""
    best: dict[str, float] = {}
    for case in known:
        best[case.table] = min(case.us, best.get(case.table, math.inf))
    weights = [(best[case.table] / case.us) ** STEEPNESS for case in known]
    errors = [math.log(case.predicted_us(fit) / case.us) ** 2 for case in known]
    return sum(weight * error for weight, error in zip(weights, errors)) / sum(weights)


def main() -> None:
    known = cases()
    best = fit(known)
    print(
        f"{len(known)} configs; rms log error {loss(best, known) ** 0.5:.4f}, committed: {loss(H200, known) ** 0.5:.4f}"
    )
    for name in FITTED:
        print(f"{name}: {getattr(best, name):.2g}, committed: {getattr(H200, name):g}")


if __name__ == "__main__":
    main()
