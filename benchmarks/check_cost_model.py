"""How well the cost model orders configs of specs that it was not fitted to.

    python benchmarks/check_cost_model.py

Fits the model's constants (benchmarks/fit_cost_model.py) to all measured specs but one, and to all head dims but one,
and asks for the order of those that were left out. Writes cost-model.json and cost-model.md to benchmarks/; `worst` of
the first is HELD_OUT in flashgen/resources/fit.py, which goes into every predicted rule. Takes minutes on one core.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from math import comb, log
from pathlib import Path

from fit_cost_model import TABLES, TARGET, Case, cases, fit

from flashgen.resources.fit import H200, Fit, HeldOut

HERE = Path(__file__).parent
COMMAND = "python benchmarks/check_cost_model.py"
LEFT_OUT: dict[str, Callable[[Case], object]] = {
    "spec": lambda case: case.spec.key,
    "head_dim": lambda case: case.spec.head_dim,
}
DIGITS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """How the model's order of one table's configs compares with the measured one; regrets as in HeldOut.

    `random5_regret` is what the best of five configs at random gives away on average: what the model has to beat.
    """

    table: str
    configs: int
    rank_correlation: float
    first_regret: float
    top5_regret: float
    error: float
    random5_regret: float


def orders(known: Sequence[Case], group_of: Callable[[Case], object]) -> list[Order]:
    """Every table's order by a model that was fitted without the cases of its group."""
    groups = list(dict.fromkeys(map(group_of, known)))
    others = [[case for case in known if group_of(case) != group] for group in groups]
    with ProcessPoolExecutor() as pool:
        fits = list(pool.map(fit, others))
    found = []
    for group, constants in zip(groups, fits):
        found += orders_of([case for case in known if group_of(case) == group], constants)
    return sorted(found, key=lambda order: order.table)


def orders_of(known: Sequence[Case], constants: Fit) -> list[Order]:
    tables = dict.fromkeys(case.table for case in known)
    return [_order(table, [case for case in known if case.table == table], constants) for table in tables]


def _order(table: str, own: Sequence[Case], constants: Fit) -> Order:
    measured, expected = [case.us for case in own], [case.predicted_us(constants) for case in own]
    picks = sorted(range(len(own)), key=lambda index: (expected[index], own[index].config.key))
    first, top5 = (min(measured[index] for index in picks[:count]) / min(measured) - 1 for count in (1, 5))
    return Order(
        table=table,
        configs=len(own),
        rank_correlation=round(spearman(expected, measured), DIGITS),
        first_regret=round(first, DIGITS),
        top5_regret=round(top5, DIGITS),
        error=round((sum(log(a / b) ** 2 for a, b in zip(expected, measured)) / len(own)) ** 0.5, DIGITS),
        random5_regret=round(_best_of_random(sorted(measured), 5) / min(measured) - 1, DIGITS),
    )


def _best_of_random(ordered: Sequence[float], picks: int) -> float:
    """The mean of the least of `picks` different ones; the i-th is that in C(n - 1 - i, picks - 1) of all draws."""
    ways = [comb(len(ordered) - 1 - index, picks - 1) for index in range(len(ordered))]
    return sum(way * value for way, value in zip(ways, ordered)) / sum(ways)


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """The rank correlation; equal values share the mean of their ranks."""
    ranks_a, ranks_b = _ranks(a), _ranks(b)
    mean = (len(a) - 1) / 2
    covariance, variance_a, variance_b = (
        sum((x - mean) * (y - mean) for x, y in zip(one, other))
        for one, other in ((ranks_a, ranks_b), (ranks_a, ranks_a), (ranks_b, ranks_b))
    )
    return covariance / (variance_a * variance_b) ** 0.5


def _ranks(values: Sequence[float]) -> list[float]:
    return [sum(other < value for other in values) + (values.count(value) - 1) / 2 for value in values]


def worst(found: Sequence[Order], specs: int) -> HeldOut:
    configs = sum(order.configs for order in found)
    return HeldOut(
        gpu=TARGET.slug,
        op="forward",
        specs=specs,
        rank_correlation=min(order.rank_correlation for order in found),
        first_regret=max(order.first_regret for order in found),
        top5_regret=max(order.top5_regret for order in found),
        error=round((sum(order.configs * order.error**2 for order in found) / configs) ** 0.5, DIGITS),
    )


def markdown(by_left_out: dict[str, list[Order]]) -> str:
    lines = [
        f"The cost model's order of forward kernels measured on {TARGET.slug}, by constants fitted without the spec or",
        "the head_dim that is ordered; where `nothing` was left out, by the committed constants. Regret: time of the",
        "first pick, of the best of the first five, or of the best of five at random (the mean), over the best",
        "config's, less one. Error: root mean square of the log of predicted over measured time. Configs without a",
        "pipeline are in the exhaustive table only: where that is held out, nothing says what they cost.",
        "",
        f"    {COMMAND}",
        "",
        "| left out | spec, table | configs | error | rank correlation | first: regret | five | random five |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for left_out, found in by_left_out.items():
        for order in found:
            figures = (
                f"{order.error:.1%} | {order.rank_correlation:.2f} | {order.first_regret:.1%} | {order.top5_regret:.1%}"
            )
            lines.append(f"| {left_out} | {order.table} | {order.configs} | {figures} | {order.random5_regret:.1%} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    known = cases()
    by_left_out = {name: orders(known, group_of) for name, group_of in LEFT_OUT.items()}
    held_out = worst([order for found in by_left_out.values() for order in found], len({case.spec for case in known}))
    by_left_out["nothing"] = sorted(orders_of(known, H200), key=lambda order: order.table)
    document = {
        "command": COMMAND,
        "data": list(TABLES),
        "constants": asdict(H200),
        "worst": asdict(held_out),
        "left_out": {name: [asdict(order) for order in found] for name, found in by_left_out.items()},
    }
    (HERE / "cost-model.json").write_text(json.dumps(document, indent=1) + "\n")
    (HERE / "cost-model.md").write_text(markdown(by_left_out))
    print(markdown(by_left_out))
    print(held_out)


if __name__ == "__main__":
    main()
