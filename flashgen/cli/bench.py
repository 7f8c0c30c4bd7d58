"""`flashgen bench`: an emitted module beside its peers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flashgen.cli import options
from flashgen.cli.output import note, print_json, print_table
from flashgen.spec import OPS

if TYPE_CHECKING:
    from flashgen.bench.run import RowResult
    from flashgen.bench.suites import OpChoice


@click.command("bench")
@click.argument("module", type=options.READABLE_FILE)
@click.option(
    "--suite",
    "suite_name",
    default="anchors",
    show_default=True,
    help="`anchors`: forward and backward at usual sizes. `paper`: the FlashAttention paper's GPT-2 row. "
    "`fp8`: the forward of `anchors` in fp8, beside bf16.",
)
@click.option("--op", type=click.Choice((*OPS, "all")), default="all", show_default=True, help="Only rows of this op.")
@options.head_dims
@click.option("--peers/--no-peers", default=True, show_default=True, help="Also time the attention of others.")
@click.option("--counters", is_flag=True, help="Count HBM bytes with Nsight Compute, too (suite paper).")
@click.option("--rounds", type=click.IntRange(1, 100), default=5, show_default=True, help="Rounds of 7 samples each.")
@click.option("--out", type=options.DIRECTORY, help="Write SUITE.json (every sample) and SUITE.md here.")
@options.as_json
def command(
    module: Path,
    suite_name: str,
    op: OpChoice,
    head_dims: tuple[int, ...],
    peers: bool,
    counters: bool,
    rounds: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Time MODULE, an emitted file, on this machine's first GPU, interleaved with SDPA's FA2 and cuDNN, FlexAttention
    and, where it is installed, FA4. Every answer is compared before it is timed."""
    from flashgen.bench import table
    from flashgen.bench.contenders import contenders
    from flashgen.bench.run import bench
    from flashgen.bench.suites import suite
    from flashgen.compiler.load import load_file
    from flashgen.hardware.resolve import resolve
    from flashgen.tune.cuda_clock import CudaClock

    if counters and suite_name != "paper":
        raise click.UsageError("--counters counts the rows of the paper: give --suite paper")
    rows = suite(suite_name, op, head_dims)
    found = resolve("auto", require_gpu=True)
    index = found.index or 0
    clock, device = CudaClock(index, found.target.l2_bytes), f"cuda:{index}"
    entered = contenders(load_file(module, "flashgen_benched"), suite_name, peers)
    results: list[RowResult] = []
    for result in bench(rows, entered, clock, device, rounds):
        note(f"{len(results) + 1}/{len(rows)} {table.summary(result)}")
        results.append(_counted(result, module, suite_name, device) if counters else result)
    facts = table.facts_of(index, _command_line(module, suite_name, op, head_dims, peers, counters, rounds))
    if out is not None:
        _write(out, suite_name, results, facts)
    if as_json:
        print_json({"facts": facts, "rows": [table.medians(result) for result in results]})
    else:
        _show(suite_name, results)


def _counted(result: RowResult, module: Path, suite_name: str, device: str) -> RowResult:
    """The result with the HBM bytes of every contender that was timed."""
    from dataclasses import replace

    from flashgen.bench.counters import count

    names = [timed.contender for timed in result.timed if timed.rounds]
    counted = count(module, suite_name, result.row, names, device)
    for each in counted:
        note(f"{each.contender}: {each.missing or f'{each.total / 1e9:.3g} GB, {each.kernels} kernels'}")
    return replace(result, counted=counted)


def _write(out: Path, suite_name: str, results: Sequence[RowResult], facts: dict[str, str]) -> None:
    from flashgen.bench import paper, table
    from flashgen.store.atomic import replace_file

    as_markdown = paper.as_markdown if suite_name == "paper" else table.as_markdown
    replace_file(out / f"{suite_name}.json", table.as_json(results, facts).encode(), lambda path: None)
    replace_file(out / f"{suite_name}.md", as_markdown(results, facts).encode(), lambda path: None)


def _show(suite_name: str, results: Sequence[RowResult]) -> None:
    from flashgen.bench import paper

    if suite_name == "paper":
        for result in results:
            print_table(paper.title(result), paper.HEAD, paper.cells(result), right=paper.HEAD[1:])
        return
    names = [timed.contender for timed in results[0].timed]
    shown = [(result.row.key, *(f"{r:.0f}" if r else "-" for r in result.rates())) for result in results]
    print_table(f"TFLOP/s, {suite_name}", ("row", *names), shown, right=names)


def _command_line(
    module: Path,
    suite_name: str,
    op: OpChoice,
    head_dims: Sequence[int],
    peers: bool,
    counters: bool,
    rounds: int,
) -> str:
    """The command that makes these figures again."""
    words = ["flashgen bench", module.name, f"--suite {suite_name}", f"--rounds {rounds}"]
    words += [f"--op {op}"] if op != "all" else []
    words += [f"--head-dim {head_dim}" for head_dim in head_dims]
    words += (["--no-peers"] if not peers else []) + (["--counters"] if counters else [])
    return " ".join(words)
