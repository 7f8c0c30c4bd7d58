"""What commands print. Results go to stdout, as text or as exactly one JSON document; all else goes to stderr.

rich is imported where a table is printed: --help and errors need none of it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_WIDTH = 10_000  # columns where no terminal reads: tables for grep do not wrap


def console(file: TextIO | None = None) -> Console:
    """A rich console on stdout or `file`: plain text where that is no terminal, and under NO_COLOR."""
    from rich.console import Console

    file = sys.stdout if file is None else file
    plain = not file.isatty()
    return Console(
        file=file,
        width=_PIPE_WIDTH if plain else None,
        color_system=None if plain or os.environ.get("NO_COLOR") else "auto",
        force_terminal=False if plain else None,
        highlight=False,
        markup=False,
        emoji=False,
    )


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()
) -> None:
    """A table on stdout; the columns named in `right` are aligned right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    screen = console()
    with screen.capture() as captured:
        if title:
            screen.print(title, style="bold")
        screen.print(table)
    print_line("\n".join(line.rstrip() for line in captured.get().rstrip().splitlines()))


def print_line(text: str = "") -> None:
    """Text on stdout, its lines as they are."""
    click.echo(text)


def print_json(document: Any) -> None:
    click.echo(json.dumps(document, indent=2, allow_nan=False))


def note(text: str) -> None:
    """What a person should know, on stderr, whatever stdout holds."""
    click.echo(f"note: {text}", err=True)


def warn(text: str) -> None:
    click.echo(click.style("warning: ", fg="yellow") + text, err=True, color=_colour(sys.stderr))


def print_error(kind: str, message: str, code: int, *, as_json: bool, shown: bool = False) -> int:
    """The error as one block on stderr and, where JSON was asked for, as the document; returns `code`."""
    if not shown:
        click.echo(click.style("error: ", fg="red") + message, err=True, color=_colour(sys.stderr))
    if as_json:
        print_json({"error": {"kind": kind, "message": message, "exit_code": code}})
    return code


def _colour(file: TextIO) -> bool:
    return file.isatty() and not os.environ.get("NO_COLOR")
