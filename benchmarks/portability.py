"""Which rules fit which GPUs, and what another triton makes of the committed ones, by the compiler alone.

    python benchmarks/portability.py

Runs the two commands below with the triton that is installed, keeps what the tables need of their JSON in
benchmarks/data/portability-triton-<version>.json, and writes benchmarks/portability.md from all such files: to be run
once under each triton. Needs no GPU; takes minutes on two cores.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any, TypeVar

from flashgen.cli.config_argument import parse_spec
from flashgen.codegen.device_names import short_name
from flashgen.compiler.drift import State
from flashgen.compiler.portability import Verdict
from flashgen.errors import Drift
from flashgen.resources.limits import MAX_SPILL_BYTES
from flashgen.resources.portable import PORTABLE, SHARED_BYTES

COMMAND = "python benchmarks/portability.py"
PORTABILITY = "flashgen configs portability examples/flash_attention_h200.py"
CHECK = "flashgen configs check --compile"
HERE = Path(__file__).parent
DATA = "portability-triton-{}.json"
FIGURES = {"registers": "registers", "spill_bytes": "spilled bytes", "shared_bytes": "shared bytes"}

Json = dict[str, Any]
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def answer(command: str) -> tuple[int, Json]:
    """The exit code and the JSON of a flashgen command, run in the repository; Drift's code is an answer too."""
    arguments = [sys.executable, "-m", "flashgen.cli", *shlex.split(command)[1:], "--json"]
    done = subprocess.run(arguments, cwd=HERE.parent, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, Drift.exit_code):
        done.check_returncode()
    return done.returncode, json.loads(done.stdout)


def record() -> Json:
    """What the tables need of both commands' answers, under the triton that is installed."""
    (fit_code, fit), (check_code, check) = answer(PORTABILITY), answer(CHECK)
    columns = columns_of(fit["gpus"])
    return {
        "command": COMMAND,
        "toolchain": fit["toolchain"],
        "portability": {
            "command": PORTABILITY,
            "exit_code": fit_code,
            "columns": columns,
            "rules": [
                {
                    "for": rule["for"],
                    "op": parse_spec(rule["spec"]).op,
                    "head_dim": parse_spec(rule["spec"]).head_dim,
                    "cells": [cell_of(rule["gpus"][column["gpus"][0]]) for column in columns],
                }
                for rule in fit["rules"]
            ],
        },
        "check": {
            "command": CHECK,
            "exit_code": check_code,
            "made_with": other_tools(check["files"]),
            "rules": [
                {
                    "gpu": rule["gpu"],
                    "rule": rule["rule"],
                    "state": rule["state"],
                    "why": rule["why"],
                    **changes_of(rule),
                }
                for rule in check["recompiled"]
            ],
        },
    }


def columns_of(gpus: Json) -> list[Json]:
    """GPUs of one architecture and limit together: what is said of the first is said of all."""
    alike = grouped(gpus, lambda slug: (gpus[slug]["arch"], gpus[slug]["limit_bytes"]))
    return [{"arch": arch, "limit_bytes": limit, "gpus": slugs} for (arch, limit), slugs in alike.items()]


def other_tools(files: Sequence[Json]) -> dict[str, int]:
    """How many rules were made with what other versions; rules of other kernels are stale, and are listed as such."""
    found: Counter[str] = Counter()
    for file in files:
        found.update({change: count for change, count in file["made_with"].items() if not change.startswith("kernels")})
    return dict(found)


def cell_of(cell: Json) -> Json:
    if cell["resources"] is None:
        return {"verdict": cell["verdict"], "why": cell["why"]}
    return {"verdict": cell["verdict"], **{name: cell["resources"][name] for name in ("shared_bytes", "spill_bytes")}}


def changes_of(rule: Json) -> Json:
    """[as recorded, now] of each figure that changed."""
    then, now = rule["then"], rule["now"] or rule["then"]
    return {name: [then[name], now[name]] for name in FIGURES if then[name] != now[name]}


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items of equal key together, in their order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    return [f"| {' | '.join(map(str, row))} |" for row in (columns, ["---"] * len(columns), *rows)] + [""]


def fit_table(found: Json) -> list[str]:
    """A row for all rules of one GPU, pass and head_dim."""
    groups = grouped(found["rules"], lambda rule: (rule["for"], rule["op"], rule["head_dim"]))
    rows = [
        (*key, len(rules), *map(cell_text, zip(*(rule["cells"] for rule in rules)))) for key, rules in groups.items()
    ]
    return table(("for", "pass", "head_dim", "rules", *(column["arch"] for column in found["columns"])), rows)


def cell_text(cells: Sequence[Json]) -> str:
    """The most bytes that a rule needs, and how many of the rules do not just fit."""
    compiled = [cell for cell in cells if "shared_bytes" in cell]
    missing = Counter(cell["verdict"] for cell in cells if "shared_bytes" not in cell)
    if not compiled:
        return ", ".join(missing)
    parts = [str(max(cell["shared_bytes"] for cell in compiled))]
    if exceed := sum(cell["verdict"] == Verdict.EXCEEDS for cell in compiled):
        parts.append(f"{exceed} exceed{'s' * (exceed == 1)}")
    if spills := [cell["spill_bytes"] for cell in compiled if cell["spill_bytes"]]:
        parts.append(f"{len(spills)} spill up to {max(spills)}" if len(spills) > 1 else f"1 spills {spills[0]}")
    return ", ".join(parts + [f"{count} {verdict}" for verdict, count in missing.items()])


def fit_notes(found: Json) -> list[str]:
    """What holds of the portable rules, whether all run where they should, and which were not compiled and why."""
    columns, rules = found["columns"], found["rules"]
    lines, spilling, most = [], [], 0
    for column, cells in zip(columns, zip(*(rule["cells"] for rule in rules))):
        portable = [cell for rule, cell in zip(rules, cells) if rule["for"] == PORTABLE and "shared_bytes" in cell]
        most = max(most, *(cell["shared_bytes"] for cell in portable), 0)
        spilling += [column["arch"]] * any(cell["spill_bytes"] for cell in portable)
        for why, count in Counter(cell["why"] for cell in cells if "why" in cell).items():
            lines.append(f"- {column['arch']}: {count} of {len(rules)} were not compiled: {why}")
    return [
        *paragraph(
            f"The portable rules need at most {most} bytes of the {SHARED_BYTES} that each of their GPUs has. "
            f"Some of them spill on: {', '.join(spilling) or 'none'}. Exit code {found['exit_code']}: "
            f"{'each' if found['exit_code'] == 0 else 'not each'} rule runs on the GPUs that it is for."
        ),
        *lines,
        "",
    ]


def check_notes(found: Json) -> list[str]:
    """How many rules are in which state, what their tools were, and why those that do not hold do not."""
    counts = Counter(rule["state"] for rule in found["rules"])
    states = ", ".join(f"{counts[state]} {state}" for state in State if counts[state])
    made_with = "".join(f" {count} were made with other {change}." for change, count in found["made_with"].items())
    fallen = [
        f"- {rule['gpu']} {rule['rule']}, {rule['state']}: {rule['why']}" for rule in found["rules"] if rule["why"]
    ]
    said = f"{len(found['rules'])} rules: {states}.{made_with} Exit code {found['exit_code']}."
    return [*paragraph(said), *fallen, *[""] * bool(fallen)]


def change_table(found: Json) -> list[str]:
    """A row for each GPU and pass: how many rules changed, and each figure's range of changes."""
    states = [state for state in State if any(rule["state"] == state for rule in found["rules"])]
    if states == [State.AS_RECORDED]:
        return []
    rows = []
    for key, rules in grouped(found["rules"], lambda rule: (rule["gpu"], rule["rule"].partition("-")[0])).items():
        counts = Counter(rule["state"] for rule in rules)
        rows.append((*key, len(rules), *(counts[state] for state in states), *(span(rules, name) for name in FIGURES)))
    return table(("gpu", "pass", "rules", *states, *FIGURES.values()), rows)


def span(rules: Sequence[Json], name: str) -> str:
    """Such as `-34 to +6`, over the rules whose figure changed."""
    changes = [now - then for then, now in (rule[name] for rule in rules if name in rule)]
    ends = sorted({min(changes, default=0), max(changes, default=0)})
    return " to ".join(f"{end:+}" if end else "0" for end in ends)


def spill_table(found: Json) -> list[str]:
    """The rules that spill more than they did when they were made."""
    more = [
        rule for rule in found["rules"] if "spill_bytes" in rule and rule["spill_bytes"][1] > rule["spill_bytes"][0]
    ]
    if not more:
        return []
    return [
        *paragraph(
            "These spill more bytes than their files say. Whoever runs them with this triton should tune them again, "
            "or time them on their GPU: `flashgen configs check --time` says whether they became slower."
        ),
        *table(("gpu", "rule", "as recorded", "now"), ((r["gpu"], r["rule"], *r["spill_bytes"]) for r in more)),
    ]


def markdown(documents: Sequence[Json]) -> str:
    lines = [
        "# Which rules fit which GPUs, and what another triton makes of them",
        "",
        *paragraph(
            "By the compiler alone; no GPU was used. Bytes of shared memory a block and bytes spilled a thread are the "
            f"compiler's own. Up to {MAX_SPILL_BYTES} bytes a rule may spill. This file is written by"
        ),
        f"    {COMMAND}",
        "",
        "run once under each triton below.",
        "",
        "## The module for the H200 on every known GPU",
        "",
        *paragraph(
            "The command prints a row for each of the module's rules. Here those of one pass and head_dim share a "
            "row, and each cell says how much shared memory the largest needs, how many of them exceed what the GPU "
            "has, and how many spill, with the most that one does."
        ),
        *paragraph(f"Limits: {', '.join(map(limit_text, documents[-1]['portability']['columns']))}."),
    ]
    for document in documents:
        found = document["portability"]
        lines += [*heading(document, found), *fit_table(found), *fit_notes(found)]
    lines += ["## The committed rules, compiled again", ""]
    lines += paragraph(
        "Changes are those of the rules that changed; a portable rule's figures are the largest of all architectures."
    )
    for document in documents:
        found = document["check"]
        lines += [*heading(document, found), *check_notes(found), *change_table(found), *spill_table(found)]
    return "\n".join(lines).rstrip() + "\n"


def paragraph(text: str) -> list[str]:
    return [*wrap(text, 120, break_long_words=False, break_on_hyphens=False), ""]


def heading(document: Json, found: Json) -> list[str]:
    tools = document["toolchain"]
    command = f"command: `{found['command']}`, with torch {tools['torch']} and kernels {tools['kernels']}"
    return [f"### triton {tools['triton']}", "", command, ""]


def limit_text(column: Json) -> str:
    return f"{column['arch']} {column['limit_bytes']} bytes ({', '.join(map(short_name, column['gpus']))})"


def version(document: Json) -> list[int]:
    return [int(part) for part in document["toolchain"]["triton"].split("+")[0].split(".")]


def main() -> None:
    document = record()
    path = HERE / "data" / DATA.format(document["toolchain"]["triton"])
    path.write_text(json.dumps(document, indent=1) + "\n")
    documents = [json.loads(each.read_text()) for each in (HERE / "data").glob(DATA.format("*"))]
    text = markdown(sorted(documents, key=version))
    (HERE / "portability.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
