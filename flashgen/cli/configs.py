"""`flashgen configs`: what the files of tuned_configs say, whether it stands, and how two of them join or differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flashgen.cli import options
from flashgen.cli.configs_check import check
from flashgen.cli.configs_portability import portability
from flashgen.cli.output import print_json, print_line, print_table
from flashgen.errors import Drift, OutputError

if TYPE_CHECKING:
    from flashgen.store.entry import TunedEntry, TunedFile

_RULE_COLUMNS = ("kernel", "dtypes", "keys", "config", "time", "TFLOP/s", "ties", "shared", "error/allowed")

_directory = options.configs("Directory of tuned configs.")


@click.group("configs")
def command() -> None:
    """List, show, check, compare and merge tuned configs, DIR/<gpu>/<op>.yaml."""


command.add_command(check)
command.add_command(portability)


def _or_shipped(configs: Path | None) -> Path:
    from flashgen.assets import tuned_configs_dir

    return configs or tuned_configs_dir()


@command.command("list")
@_directory
@options.as_json
def list_files(configs: Path | None, as_json: bool) -> None:
    """One line for each file."""
    from flashgen.store.directory import read_directory

    files = read_directory(_or_shipped(configs))
    if as_json:
        print_json([{"path": str(path), **_summary(file)} for path, file in files.items()])
        return
    columns = ("gpu", "op", "rules", "measured", "dtypes", "head dims", "path")
    rows = []
    for path, file in files.items():
        said = _summary(file)
        dims = ", ".join(map(str, said["head_dims"]))
        rows.append((file.gpu, file.op, said["rules"], said["measured"], ", ".join(said["dtypes"]), dims, path))
    print_table("", columns, rows, right=columns[2:4])


def _summary(file: TunedFile) -> dict[str, Any]:
    from flashgen.spec import DTYPES

    entries = file.entries
    return {
        "gpu": file.gpu,
        "op": file.op,
        "rules": len(entries),
        "measured": sum(entry.evidence.kind == "measured" for entry in entries),
        "dtypes": [dtype for dtype in DTYPES if any(dtype in entry.dtypes for entry in entries)],
        "head_dims": sorted({entry.spec.head_dim for entry in entries}),
        "command": file.command,
    }


@command.command("show")
@click.argument("gpu", required=False)
@_directory
@options.as_json
def show(gpu: str | None, configs: Path | None, as_json: bool) -> None:
    """The rules of GPU (default: of all), with their evidence. Predicted times are marked `~`."""
    from flashgen.store.codec import encode_file
    from flashgen.store.directory import read_directory, slug_in

    directory = _or_shipped(configs)
    files = read_directory(directory, None if gpu is None else slug_in(directory, gpu))
    if as_json:
        print_json([{"path": str(path), **encode_file(file)} for path, file in files.items()])
        return
    for path, file in files.items():
        print_table(f"{path}: {file.command}", _RULE_COLUMNS, map(_row, file.entries), right=_RULE_COLUMNS[4:])


def _row(entry: TunedEntry) -> tuple[object, ...]:
    timing = max(entry.evidence.timings, key=lambda timing: timing.workload.seqlen_k)
    mark = "~" if timing.is_predicted else ""
    return (
        entry.spec.key,
        "/".join(entry.dtypes),
        str(entry.workloads).removeprefix("seqlen_k "),
        entry.config.key,
        f"{mark}{timing.median_us:g} us",
        f"{mark}{timing.tflops:g}",
        entry.evidence.ties,
        entry.resources.shared_bytes,
        f"{entry.proof.worst_ratio:.2f}",
    )


@command.command("diff")
@click.argument("old", type=options.READABLE_FILE)
@click.argument("new", type=options.READABLE_FILE)
@click.option("--exit-code", is_flag=True, help="Exit 6 if they differ.")
@options.as_json
@click.pass_context
def diff_files(ctx: click.Context, old: Path, new: Path, exit_code: bool, as_json: bool) -> None:
    """What the file NEW says otherwise than OLD: `-` a rule is gone, `+` it is new, `~` a value changed."""
    from flashgen.store.files import read_tuned
    from flashgen.store.lookup import diff

    lines = diff(read_tuned(old), read_tuned(new))
    if as_json:
        print_json({"equal": not lines, "changes": lines})
    else:
        print_line("\n".join(lines) if lines else "equal")
    ctx.exit(Drift.exit_code if lines and exit_code else 0)


@command.command("merge")
@click.argument("old", type=options.READABLE_FILE)
@click.argument("new", type=options.READABLE_FILE)
@click.option("--out", type=options.FILE, required=True, metavar="FILE", help="Where the joined file goes; may be OLD.")
@click.option(
    "--predicted-over-measured", is_flag=True, help="Let predicted rules of NEW replace measured ones of OLD."
)
@options.as_json
def merge_files(old: Path, new: Path, out: Path, predicted_over_measured: bool, as_json: bool) -> None:
    """Join the rules of two files of one GPU and op. Where both have a rule, NEW's is taken."""
    from flashgen.store.files import read_tuned, write_tuned
    from flashgen.store.lookup import diff, merge

    before = read_tuned(old)
    merged = merge(before, read_tuned(new), predicted_over_measured=predicted_over_measured)
    if out.exists() and out.resolve() not in (old.resolve(), new.resolve()):
        raise OutputError(f"{out}: exists, and is neither of the two files; it was left as it is")
    write_tuned(out, merged)
    changes = diff(before, merged)
    if as_json:
        print_json({"out": str(out), "rules": len(merged.entries), "changes": changes})
    else:
        print_line("\n".join((*changes, f"{out}: {len(merged.entries)} rules written")))
