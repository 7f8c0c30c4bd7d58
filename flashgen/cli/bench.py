"""`flashgen bench`: an emitted module beside its peers."""

from __future__ import annotations

from pathlib import Path

import click

from flashgen.cli import options
from flashgen.cli.output import note, print_json, print_table


@click.command("bench")
@click.argument("module", type=options.READABLE_FILE)
@click.option("--suite", "suite_name", default="anchors", show_default=True, help="Which rows are timed.")
@click.option("--peers/--no-peers", default=True, show_default=True, help="Also time the attention of others.")
@click.option("--rounds", type=click.IntRange(1, 100), default=5, show_default=True, help="Rounds of 7 samples each.")
@click.option("--out", type=options.DIRECTORY, help="Write SUITE.json (every sample) and SUITE.md here.")
@options.as_json
def command(module: Path, suite_name: str, peers: bool, rounds: int, out: Path | None, as_json: bool) -> None:
    """Time MODULE, an emitted file, on this machine's first GPU, interleaved with SDPA's FA2 and cuDNN, FlexAttention
    and, where it is installed, FA4. Every answer is compared before it is timed."""
    from flashgen.bench.contenders import PEERS, flashgen_contender
    from flashgen.bench.run import bench
    from flashgen.bench.suites import suite
    from flashgen.bench.table import as_json as json_text
    from flashgen.bench.table import as_markdown, facts_of, summary
    from flashgen.compiler.load import load_file
    from flashgen.hardware.resolve import resolve
    from flashgen.store.atomic import replace_file

    rows = suite(suite_name)
    found = resolve("auto", require_gpu=True)
    index = found.index or 0
    contenders = (flashgen_contender(load_file(module, "flashgen_benched")), *(PEERS if peers else ()))
    results = []
    for result in bench(rows, contenders, index, found.target.l2_bytes, rounds):
        results.append(result)
        note(f"{len(results)}/{len(rows)} {summary(result)}")
    facts = facts_of(index, f"flashgen bench {module.name} --suite {suite_name} --rounds {rounds}")
    document = json_text(results, facts)
    if out is not None:
        replace_file(out / f"{suite_name}.json", document.encode(), lambda path: None)
        replace_file(out / f"{suite_name}.md", as_markdown(results, facts).encode(), lambda path: None)
    if as_json:
        print_json({"facts": facts, "rows": [summary(result) for result in results]})
        return
    names = [timed.contender for timed in results[0].timed]
    table = [(result.row.key, *(f"{r:.0f}" if r else "-" for r in result.rates())) for result in results]
    print_table(f"TFLOP/s, {suite_name}", ("row", *names), table, right=names)
