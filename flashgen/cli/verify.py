"""`flashgen verify`: the proof of exactness again, on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from flashgen.cli import options
from flashgen.cli.output import note, print_json, print_line, print_table
from flashgen.errors import NotExact
from flashgen.outcome import Proof, Rejected

Proven = tuple[str, str, Proof | Rejected]  # rule, dtype that was run, outcome

_COLUMNS = ("rule", "dtype", "where", "probes", "error/allowed", "verdict")


@click.command("verify")
@click.argument("module", type=options.READABLE_FILE, required=False)
@click.option(
    "--configs", type=options.DIRECTORY, metavar="DIR", help="Prove the rules of these tuned configs instead."
)
@click.option("--gpu", metavar="NAME", help="Of --configs, those of this GPU (or `portable`) only.")
@click.option("--full", is_flag=True, help="Every rule, those of other GPUs and other tile sizes too.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the probes' values.")
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    module: Path | None,
    configs: Path | None,
    gpu: str | None,
    full: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Prove MODULE, an emitted file, or the rules of tuned configs: exits 5 if one is not shown to be exact.

    On a GPU every rule that it runs, by the full suite of probes; elsewhere in Triton's interpreter, by the quick one,
    one rule for each kernel and head dim. The interpreter shows bf16 kernels in fp16.
    """
    if (module is None) == (configs is None):
        raise click.UsageError("give MODULE or --configs DIR, and not both")
    if gpu is not None and configs is None:
        raise click.UsageError("--gpu chooses among --configs; a MODULE is proven for the GPU that is here")
    proven = []
    for one in _of_module(module, full, seed) if configs is None else _of_configs(configs, gpu, full, seed):
        proven.append(one)
        note(f"{len(proven)}: {one[0]}, {one[1]}: {_verdict(one[2])}")
    failed = sum(isinstance(outcome, Rejected) for _, _, outcome in proven)
    if as_json:
        print_json({"exact": not failed and bool(proven), "rules": [_document(*one) for one in proven]})
    else:
        _print(proven, failed)
    ctx.exit(NotExact.exit_code if failed or not proven else 0)


def _of_module(module: Path | None, full: bool, seed: int) -> Iterator[Proven]:
    from flashgen.verify.worker import prove_module_rules

    assert module is not None
    for text, outcome in prove_module_rules(module, full, seed):
        rule, _, dtype = text.rpartition(", ")
        yield rule, dtype, outcome


def _of_configs(configs: Path, gpu: str | None, full: bool, seed: int) -> Iterator[Proven]:
    from flashgen.store.directory import read_directory, slug_in
    from flashgen.verify.entries import prove_entries

    slug = None if gpu is None else slug_in(configs, gpu)
    yield from prove_entries(read_directory(configs, slug).values(), full, seed)


def _print(proven: list[Proven], failed: int) -> None:
    print_table("", _COLUMNS, [_row(*one) for one in proven], right=_COLUMNS[3:5])
    for rule, dtype, outcome in proven:
        if isinstance(outcome, Rejected):
            print_line(f"{rule}, {dtype}: {outcome.detail}")
    if not proven:
        print_line("nothing was proven: there is no rule to prove")
    else:
        print_line(f"{failed} of {len(proven)} are NOT shown to be exact" if failed else f"all {len(proven)} are exact")


def _verdict(outcome: Proof | Rejected) -> str:
    return "exact" if isinstance(outcome, Proof) else outcome.reason.upper()


def _row(rule: str, dtype: str, outcome: Proof | Rejected) -> tuple[object, ...]:
    if isinstance(outcome, Rejected):
        return rule, dtype, "", "", "", _verdict(outcome)
    return rule, dtype, outcome.where, outcome.probes, f"{outcome.worst_ratio:.3f}", _verdict(outcome)


def _document(rule: str, dtype: str, outcome: Proof | Rejected) -> dict[str, object]:
    exact = isinstance(outcome, Proof)
    return {"rule": rule, "dtype": dtype, "exact": exact, "proof" if exact else "rejected": asdict(outcome)}
