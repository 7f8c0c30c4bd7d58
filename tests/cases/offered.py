"""What flashgen does not offer yet. Offering it means deleting a line here; its cases then run, or fail."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.cases.case import Case, load_cases

TESTS = Path(__file__).parents[1]


@cache
def shown_by_hand() -> frozenset[str]:
    """Ids that tests name by `@pytest.mark.case("...")`, anywhere below tests/."""
    return frozenset(case_id for path in TESTS.rglob("test_*.py") for case_id in _marked(path))


def _marked(path: Path) -> list[str]:
    calls = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    return [
        argument.value
        for call in calls
        if ast.unparse(call.func) == "pytest.mark.case"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


NOT_OFFERED: tuple[tuple[str, Callable[[Case], bool]], ...] = (
    ("needs sequences of various lengths", lambda case: case.op == "varlen"),
    ("needs decoding from a cache", lambda case: case.op == "decode"),
    ("needs a paged cache", lambda case: case.op == "paged"),
    ("needs the tuner", lambda case: case.op == "tuner" and case.id not in shown_by_hand()),
)


# Cases of attention that need more than a call on a form: two devices, a graph, memory that is never touched.
_BY_HAND = frozenset({("fwd", "device"), ("bwd", "big")})


def not_offered(case: Case) -> str | None:
    """Why `case` cannot run yet, or None."""
    return next((reason for reason, applies in NOT_OFFERED if applies(case)), None)


def runs_from_data(case: Case) -> bool:
    """Whether the harness runs `case`: attention with given sizes, or its gradients, by a call of its own."""
    attention = case.op in ("fwd", "bwd") and case.batch is not None
    return attention and (case.op, case.kind) not in _BY_HAND and not_offered(case) is None


def unaccounted() -> list[str]:
    """Ids of cases that nothing shows and that are not listed as missing either."""
    return [
        case.id
        for case in load_cases()
        if not runs_from_data(case) and case.id not in shown_by_hand() and not_offered(case) is None
    ]
