"""What every command has in common: help, exit codes, errors, JSON, and plain text where no terminal reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flashgen import errors
from flashgen.cli import main as module
from flashgen.cli.main import COMMANDS, cli, run
from tests.cli.conftest import Cli

ESCAPE = "\x1b"


def subprocess_run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flashgen.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(module.cli, "main", fail)


def test_every_command_is_there_and_has_help() -> None:
    context = cli.make_context("flashgen", ["gpus"])
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.help


def test_unknown_command_is_usage() -> None:
    assert run(["tuna"]) == 2


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["emit", "--help"], ["configs", "check", "--help"]])
def test_help_exits_0(arguments: list[str], cli: Cli) -> None:
    done = cli(*arguments)
    assert done.code == 0
    assert done.out.startswith("Usage: flashgen")


def test_no_arguments_show_help(cli: Cli) -> None:
    done = cli()
    assert done.code == 2
    assert "Commands:" in done.out + done.err


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.SpecError, 2),
        (errors.UnknownGpu, 2),
        (errors.TunedConfigError, 2),
        (errors.OutputError, 2),
        (errors.NoUsableGpu, 3),
        (errors.NoFeasibleConfig, 4),
        (errors.NotExact, 5),
        (errors.Drift, 6),
        (errors.TemplateError, 1),
    ],
)
def test_errors_are_one_block_and_their_exit_code(
    kind: type[errors.FlashgenError], code: int, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(monkeypatch, kind("what was asked\n  next: what to do"))
    done = cli("gpus")
    assert (done.code, done.out) == (code, "")
    assert done.err == "error: what was asked\n  next: what to do\n"


def test_errors_are_a_document_with_json(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, errors.UnknownGpu("no GPU is known as 'x'"))
    expected = {"kind": "UnknownGpu", "message": "no GPU is known as 'x'", "exit_code": 2}
    assert cli("gpus", "--json").document == {"error": expected}


def test_usage_errors_are_a_document_with_json(cli: Cli) -> None:
    done = cli("tune", "--head-dim", "300", "--json")
    assert done.code == 2
    assert "300 is not in the range" in done.document["error"]["message"]
    assert "300 is not in the range" in done.err


def test_an_unexpected_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        run(["gpus"])


def test_ctrl_c_exits_130_and_says_what_is_kept(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, KeyboardInterrupt())
    done = cli("gpus")
    assert done.code == 130
    assert "what was written before is kept" in done.err


def test_main_exits_with_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["flashgen", "emit", "--gpu", "nothing-like-it"])
    with pytest.raises(SystemExit) as exit_:
        module.main()
    assert exit_.value.code == 2


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}])
def test_a_pipe_gets_no_escape_codes(environment: dict[str, str]) -> None:
    for arguments in (["gpus"], ["emit", "--gpu", "nothing-like-it"]):
        done = subprocess_run(*arguments, **environment)
        assert ESCAPE not in done.stdout + done.stderr
    assert "closest" in done.stderr or "no GPU is known" in done.stderr


def test_no_color_on_a_terminal(tmp_path: Path) -> None:
    """Through a pseudo-terminal: styled by default, plain under NO_COLOR."""
    code = (
        "import os, pty, sys\n"
        "def read(fd):\n"
        "    data = os.read(fd, 65536)\n"
        "    out.write(data)\n"
        "    return data\n"
        "out = open(sys.argv[1], 'wb')\n"
        "status = pty.spawn([sys.executable, '-m', 'flashgen.cli', 'emit', '--gpu', 'x'], read)\n"
        "sys.exit(os.waitstatus_to_exitcode(status))\n"
    )

    def shown(name: str, **environment: str) -> str:
        path = tmp_path / name
        kept = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm-256color"} | environment
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)], env=kept, stdin=subprocess.DEVNULL, capture_output=True
        )
        assert done.returncode == 2
        return path.read_text()

    assert ESCAPE in shown("styled")
    assert ESCAPE not in shown("plain", NO_COLOR="1")


def test_a_closed_pipe_is_no_traceback() -> None:
    command = f"{sys.executable} -m flashgen.cli gpus --json --sources | head -c 1 > /dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr
