"""A kernel's Python whose loops carry what triton's carry.

Triton visits a loop's body once to find the names that it changes: one that then holds the very value that it held
before the loop counts as unchanged, and keeps that value in every step (CodeGenerator._find_carries, triton 3.6 to
3.9). So a name that follows another a step behind, and begins where that one begins, never moves.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import textwrap
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch


class Loop:
    """A loop under way, with the names that were there before it."""

    def __init__(self, before: dict[str, Any]) -> None:
        self._before = {name: value for name, value in before.items() if isinstance(value, torch.Tensor)}
        self._unchanged: set[str] | None = None

    def carried(self, now: dict[str, Any], names: tuple[str, ...]) -> list[Any]:
        """What `names` are at the end of a step."""
        if self._unchanged is None:
            self._unchanged = {name for name in names if name in self._before and now[name] is self._before[name]}
        return [self._before[name] if name in self._unchanged else now.get(name) for name in names]


class _Loops(ast.NodeTransformer):
    def visit_For(self, loop: ast.For) -> Any:
        self.generic_visit(loop)
        if "static_range" in ast.unparse(loop.iter):  # unrolled
            return loop
        stored = [each for node in loop.body for each in ast.walk(node) if isinstance(each, ast.Name)]
        names = sorted({each.id for each in stored if isinstance(each.ctx, ast.Store) and each.id[:5] != "loop_"})
        this = f"loop_{loop.lineno}"
        before, end = ast.parse(
            f"{this} = Loop(dict(locals()))\n[{', '.join(names)}] = {this}.carried(locals(), {tuple(names)})"
        ).body
        loop.body.append(end)
        return [before, loop]


def carrying_code(function: Callable[..., Any]) -> CodeType:
    """The code of `function`, which finds Loop among its globals."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = _Loops().visit(tree).body[0]
    definition.decorator_list = []
    found: dict[str, Any] = {}
    flags = __future__.annotations.compiler_flag
    exec(compile(ast.fix_missing_locations(tree), function.__code__.co_filename, "exec", flags), found)
    code: CodeType = found[function.__name__].__code__
    return code
