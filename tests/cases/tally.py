"""The count of public cases by kind, at the end of a run that touched any."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

# Worst first: a case is what its worst test says, and "passed" outweighs a form of it that could not run.
_STATES = ("failed", "passed", "needs GPU", "not offered")


class CaseTally:
    """A pytest plugin: tests with `@pytest.mark.case(id)` report for that case, in worker processes too."""

    def __init__(self) -> None:
        self.states: dict[str, set[str]] = defaultdict(set)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            item.user_properties.extend(("case", mark.args[0]) for mark in item.iter_markers("case"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == "case" and (state := _state(report)):
                self.states[str(value)].add(state)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.states:
            return
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for case_id, states in self.states.items():
            counts[case_id.rpartition("-")[0]][min(states, key=_STATES.index)] += 1
        terminalreporter.section("public cases")
        terminalreporter.write_line(f"{'kind':10}" + "".join(f"{state:>13}" for state in _STATES))
        for kind, count in sorted(counts.items()):
            terminalreporter.write_line(f"{kind:10}" + "".join(f"{count[state]:13}" for state in _STATES))
        total = sum(counts.values(), Counter())
        terminalreporter.write_line(f"{'all':10}" + "".join(f"{total[state]:13}" for state in _STATES))


def _state(report: pytest.TestReport) -> str | None:
    if report.failed:
        return "failed"
    if report.skipped:
        return "not offered" if "not offered yet" in str(report.longrepr) else "needs GPU"
    return "passed" if report.when == "call" else None
