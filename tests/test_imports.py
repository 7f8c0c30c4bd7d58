"""Who may import what: the table below is the diagram, and a module imports what stands above it, never below.

Imports inside functions count too, but for the packages that must stay out of `flashgen --help`.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import flashgen

PACKAGE = Path(flashgen.__file__).parent

# Names on one line know nothing of each other.
LAYERS = (
    ("errors",),
    ("spec", "config", "outcome", "assets"),
    ("variants",),
    ("hardware",),
    ("families",),
    ("resources",),
    ("store",),
    ("codegen",),
    ("compiler",),
    ("verify",),
    ("tune",),
    ("bench",),
    ("cli",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# Packages from outside, and the parts that may import them.
THIRD_PARTY = {
    "click": {"cli"},
    "rich": {"cli"},
    "jinja2": {"codegen"},
    "yaml": {"store"},
    "optuna": {"tune"},
    "sqlalchemy": {"tune"},
    "grpc": {"tune"},
    "flash_attn": {"bench"},  # a peer that is timed where it is installed
    "torch": {"hardware", "compiler", "verify", "tune", "bench"},
    "triton": {"hardware", "compiler", "verify", "tune", "bench"},
}
# These take seconds to import: only inside the function that needs them.
HEAVY = ("torch", "triton", "optuna", "sqlalchemy", "grpc")


class Import(NamedTuple):
    """`part` of flashgen imports `module`; `at_import` if that happens when the file itself is imported."""

    part: str
    module: str
    at_import: bool
    where: str


def imports_of(path: Path) -> Iterator[Import]:
    relative = path.relative_to(PACKAGE)
    part = relative.parts[0].removesuffix(".py")

    def walk(node: ast.AST, at_import: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            where = f"{relative}:{getattr(child, 'lineno', 0)}"
            if isinstance(child, ast.Import):
                yield from (Import(part, alias.name, at_import, where) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{where}: a relative import; write the whole name"
                yield Import(part, str(child.module), at_import, where)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _is_type_checking(child):
                yield from walk(child, False)
            else:
                yield from walk(child, at_import)

    yield from walk(ast.parse(path.read_text()), True)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


PRELOADED = "compiler/imported.py:"  # by the process that compilers are forked from, and by no module

ALL = [
    each
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.parent != PACKAGE or path.stem != "__init__"
    for each in imports_of(path)
]
INSIDE = [each for each in ALL if each.module.split(".")[0] == "flashgen"]
OUTSIDE = [each for each in ALL if each.module.split(".")[0] not in {*sys.stdlib_module_names, "flashgen"}]


def test_every_part_has_a_place_in_the_table() -> None:
    parts = {
        path.name.removesuffix(".py")
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert parts - {"__init__", "__main__"} == set(RANK)


def test_imports_point_one_way() -> None:
    wrong = []
    for each in INSIDE:
        _, _, imported = each.module.partition(".")
        target = imported.split(".")[0]
        if target and target != each.part and RANK[target] >= RANK[each.part]:
            wrong.append(f"{each.where}: {each.part} imports {each.module}")
    assert not wrong, "\n".join(wrong)


def test_outside_packages_stay_where_they_belong() -> None:
    wrong = [
        f"{e.where}: {e.part} imports {e.module}"
        for e in OUTSIDE
        if e.part not in THIRD_PARTY.get(e.module.split(".")[0], ())
    ]
    assert not wrong, "\n".join(wrong)


def test_heavy_packages_are_imported_where_they_are_used() -> None:
    wrong = [
        f"{e.where}: imports {e.module} at its top"
        for e in OUTSIDE
        if e.at_import and e.module.split(".")[0] in HEAVY and not e.where.startswith(PRELOADED)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["tune", "--help"], ["emit", "--help"], ["gpus", "--help"]]
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import json, sys\n"
        "from flashgen.cli.main import run\n"
        f"code = run({arguments!r})\n"
        f"print(json.dumps([code, [name for name in {HEAVY!r} if name in sys.modules]]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []]


def test_group_help_loads_no_command() -> None:
    code = (
        "import sys\n"
        "from flashgen.cli.main import COMMANDS, run\n"
        "run(['--help'])\n"
        "print([lazy.module for lazy in COMMANDS.values() if lazy.module in sys.modules], 'rich' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] False"
