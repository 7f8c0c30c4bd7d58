"""`flashgen`: the group of commands, and what becomes of errors.

Exit codes: 0 done, 1 a fault, 2 usage, 3 no usable GPU, 4 nothing fits, 5 not exact, 6 drift or stale, 130 Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from flashgen import __version__
from flashgen.cli.lazy import LazyCommand, LazyGroup
from flashgen.cli.output import print_error
from flashgen.errors import FlashgenError

INTERRUPTED = 130
_CLOSED_PIPE = 141

COMMANDS = {
    "tune": LazyCommand("flashgen.cli.tune", "Find the fastest exact kernels for a GPU; writes tuned configs."),
    "worker": LazyCommand("flashgen.cli.worker", "Help tune runs from other GPUs or hosts, through a shared storage."),
    "emit": LazyCommand("flashgen.cli.emit", "Write the module from tuned configs: one file, torch and triton only."),
    "verify": LazyCommand("flashgen.cli.verify", "Prove an emitted module, or tuned configs, again."),
    "bench": LazyCommand("flashgen.cli.bench", "Time an emitted module beside its peers."),
    "explain": LazyCommand("flashgen.cli.explain", "Show where one config's bytes, registers and time go."),
    "configs": LazyCommand("flashgen.cli.configs", "List, show, check, compare and merge tuned configs."),
    "gpus": LazyCommand("flashgen.cli.gpus", "List the GPUs that are known, and those of this machine."),
    "doctor": LazyCommand("flashgen.cli.doctor", "Diagnose this machine: torch, triton, compiler, GPUs."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="flashgen", message="%(prog)s %(version)s")
def cli() -> None:
    """Tunes, proves and vendors FlashAttention kernels written in Triton.

    \b
    flashgen tune --gpu auto                       find the fastest exact kernels, write ./tuned_configs
    flashgen emit --gpu auto --configs tuned_configs --out flash_attention.py
    python flash_attention.py                      the module proves itself on your GPU

    Exit codes: 0 done, 2 usage, 3 no usable GPU, 4 nothing fits, 5 not exact, 6 drift or stale.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits. What nobody expected keeps its traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run(given))


def run(arguments: Sequence[str]) -> int:
    """The exit code of one command line."""
    as_json = "--json" in arguments
    try:
        code = cli.main(args=list(arguments), prog_name="flashgen", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        error.show()
        return print_error(type(error).__name__, error.format_message(), error.exit_code, as_json=as_json, shown=True)
    except FlashgenError as error:
        return print_error(type(error).__name__, str(error), error.exit_code, as_json=as_json)
    except (KeyboardInterrupt, click.Abort):
        return print_error("Interrupted", "interrupted; what was written before is kept", INTERRUPTED, as_json=as_json)
    except BrokenPipeError:  # whoever read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CLOSED_PIPE
