"""`flashgen configs portability`: which rules fit which GPUs, by the compiler alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flashgen.cli import options
from flashgen.cli.output import note, print_json, print_line, print_table
from flashgen.errors import Drift

if TYPE_CHECKING:
    from flashgen.compiler.portability import Cell, Portability, Subject
    from flashgen.hardware.target import GpuTarget


@click.command("portability")
@click.argument("path", required=False, type=click.Path(exists=True, path_type=Path), metavar="[MODULE|FILE|DIR]")
@click.option("--gpu", "gpus", multiple=True, metavar="NAME", help="Column; may be repeated.  [default: all known]")
@click.option("--config", metavar="FILE|KNOBS", help="One config in place of a PATH, as `explain` takes it.")
@click.option("--spec", metavar="KEY", help="What --config computes, such as forward-bf16-d128-causal.")
@options.as_json
@click.pass_context
def portability(
    ctx: click.Context, path: Path | None, gpus: tuple[str, ...], config: str | None, spec: str | None, as_json: bool
) -> None:
    """Show for every rule and every known GPU whether it fits: of an emitted MODULE, a FILE of rules, or a DIR of them.

    The default are the rules that flashgen ships. Each is compiled once an architecture, half a second to three seconds
    the first time, in the dtype that it was timed in, and judged by every GPU's limits. Exits 6 if a rule does not run
    on the GPU that it is for, or a portable one on any GPU that has a column.
    """
    from flashgen.compiler.portability import matrix
    from flashgen.hardware.known import KNOWN
    from flashgen.hardware.resolve import resolve

    if (config is None) != (spec is None) or (config and path):
        raise click.UsageError("give a MODULE, a FILE or a DIR; or --config and --spec, and none of these")
    targets = [resolve(name, require_gpu=False).target for name in gpus] or [gpu.target for gpu in KNOWN.values()]
    subjects = _subjects(path) if config is None or spec is None else [_config(config, spec, targets[0])]
    rows = matrix(subjects, list(dict.fromkeys(targets)), options.core_count(), note)
    if as_json:
        print_json(_document(rows))
    else:
        _print(rows)
    ctx.exit(Drift.exit_code if any(row.broken for row in rows) else 0)


def _subjects(path: Path | None) -> list[Subject]:
    from flashgen.assets import tuned_configs_dir
    from flashgen.compiler.portability import of_file, of_module
    from flashgen.store.directory import read_directory
    from flashgen.store.files import read_tuned
    from flashgen.verify.worker import RULE_TIMEOUT_S, Worker

    path = path or tuned_configs_dir()
    if path.is_dir():
        return [subject for file in read_directory(path).values() for subject in of_file(file)]
    if path.suffix != ".py":
        return of_file(read_tuned(path))
    source = path.read_text()
    with Worker(interpret=True) as worker:  # it only imports the module, which needs no GPU that way
        return of_module(source, worker.rules(source, RULE_TIMEOUT_S))


def _config(text: str, key: str, target: GpuTarget) -> Subject:
    from flashgen.assets import tuned_configs_dir
    from flashgen.cli.config_argument import config_for, parse_spec
    from flashgen.compiler.portability import of_config
    from flashgen.tune.workloads import default_workloads

    spec = parse_spec(key)
    config = config_for(text, spec, target, default_workloads(spec, "quick")[0], tuned_configs_dir())
    return of_config(f"{spec.key} {config.key}", spec, config)


def _print(rows: Sequence[Portability]) -> None:
    if not rows:
        print_line("there is no rule to judge")
        return
    columns = _columns([cell.target for cell in rows[0].cells])
    lines = [
        (row.subject.gpu, row.subject.name, *(_text(row.cells[first]) for first in columns.values())) for row in rows
    ]
    print_table("", ("for", "rule", *columns), lines)
    reasons = Counter(
        (cell.target.slug, cell.verdict, cell.detail) for row in rows for cell in row.cells if cell.resources is None
    )
    for (slug, verdict, detail), count in reasons.items():
        print_line(f"{slug}: {verdict}, {count} of {len(rows)} rules: {detail}")
    for row in rows:
        for cell in row.broken:
            print_line(f"{row.subject.gpu} {row.subject.name}: does not run on {cell.target.slug}: {cell.detail}")


def _columns(targets: Sequence[GpuTarget]) -> dict[str, int]:
    """GPUs of one architecture and limit as one column: its head, and the number of the first of them."""
    from flashgen.codegen.device_names import short_name

    heads = {}
    for (arch, limit), alike in groupby(enumerate(targets), lambda each: (each[1].arch, each[1].smem_per_block)):
        members = list(alike)
        heads["\n".join((arch, str(limit), *(short_name(target.slug) for _, target in members)))] = members[0][0]
    return heads


def _text(cell: Cell) -> str:
    if cell.resources is None:
        return cell.verdict
    if cell.resources.shared_bytes > cell.target.smem_per_block:
        return f"{cell.verdict}: {cell.resources.shared_bytes}"
    return f"{cell.verdict} {cell.resources.spill_bytes}" if cell.resources.spill_bytes else cell.verdict


def _document(rows: Sequence[Portability]) -> dict[str, Any]:
    from flashgen.compiler.toolchain import toolchain

    targets = [cell.target for cell in rows[0].cells] if rows else []
    return {
        "toolchain": asdict(toolchain()),
        "gpus": {target.slug: {"arch": target.arch, "limit_bytes": target.smem_per_block} for target in targets},
        "rules": [
            {
                "for": row.subject.gpu or None,
                "rule": row.subject.name,
                "spec": row.subject.unit.spec.key,
                "gpus": {cell.target.slug: _cell_document(cell) for cell in row.cells},
                "broken": [cell.target.slug for cell in row.broken],
            }
            for row in rows
        ],
    }


def _cell_document(cell: Cell) -> dict[str, Any]:
    return {
        "verdict": cell.verdict,
        "runs": cell.runs,
        "why": cell.detail,
        "resources": None if cell.resources is None else asdict(cell.resources),
    }
