"""A click group that imports a command when it is used, so that --help loads none of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import click


class LazyCommand(NamedTuple):
    """`module` holds the click command under the name `command`; `summary` is its line in the group's help."""

    module: str
    summary: str


class LazyGroup(click.Group):
    """Commands by name, as LazyCommands."""

    def __init__(self, *args: Any, lazy: dict[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        command = import_module(self.lazy[cmd_name].module).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.summary) for name, lazy in self.lazy.items()])
