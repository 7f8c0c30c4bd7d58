"""`flashgen emit`: the module from tuned configs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from flashgen.cli import options
from flashgen.cli.output import note, print_json, print_line, warn
from flashgen.spec import Dtype

if TYPE_CHECKING:
    from flashgen.codegen.emit import Emission
    from flashgen.codegen.request import EmitOp
    from flashgen.variants import FeatureSet


@click.command("emit")
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    default=("auto",),
    metavar="NAME",
    help="GPU to serve; may be repeated. `auto` is this machine's, `portable` none in particular.  [default: auto]",
)
@options.op("forward", "all", default="all")
@options.configs("Directory of tuned configs; GPUs that it lacks come from those that flashgen ships.")
@click.option("--out", type=options.FILE, metavar="FILE", help="Where to write the module  [default: stdout]")
@click.option("--check", is_flag=True, help="Write nothing; exit 6 and show the difference if FILE is out of date.")
@click.option("--force", is_flag=True, help="Overwrite FILE even if flashgen did not emit it.")
@options.head_dims
@options.dtypes
@click.option("--window/--no-window", default=True, show_default=True, help="Whether sliding windows are served.")
@click.option("--softcap/--no-softcap", default=None, help="Whether softcap is served  [default: as --window]")
@options.features
@options.as_json
def command(
    gpus: tuple[str, ...],
    op: EmitOp,
    configs: Path | None,
    out: Path | None,
    check: bool,
    force: bool,
    head_dims: tuple[int, ...],
    dtypes: tuple[Dtype, ...],
    window: bool,
    softcap: bool | None,
    features: tuple[FeatureSet, ...],
    as_json: bool,
) -> None:
    """Write the emitted module: one Python file that needs torch and triton only.

    It holds the rules of each GPU that is named and portable ones for all others, forward and backward, every mask and
    all head dims and dtypes that the GPUs' rules serve, unless the options say less; fp8, which is not exact, only with
    `--dtype fp8`. Equal configs give equal bytes.
    """
    from flashgen.assets import tuned_configs_dir
    from flashgen.codegen.emit import emit
    from flashgen.codegen.request import EmitRequest
    from flashgen.codegen.write import check_module, write_module

    if check and out is None:
        raise click.UsageError("--check compares a FILE: give it with --out")
    if softcap and not window:
        raise click.UsageError("--softcap needs the window kernel, which masks for it: leave out --no-window")
    configs = configs or tuned_configs_dir()
    request = EmitRequest(
        gpus=_slugs(gpus, configs),
        configs=configs,
        op=op,
        head_dims=head_dims,
        dtypes=dtypes,
        window=window,
        softcap=window if softcap is None else softcap,
        features=features,
    )
    emission = emit(request)
    for text in (*emission.notes, *_stale(emission)):
        note(text)
    if out is not None and check:
        check_module(out, emission.text)
    changed = out is not None and not check and write_module(out, emission.text, force=force)
    _report(emission, out, changed=changed, as_json=as_json)


def _slugs(names: tuple[str, ...], configs: Path) -> tuple[str, ...]:
    from flashgen.hardware.resolve import resolve
    from flashgen.store.directory import PORTABLE, slug_in

    slugs = []
    for name in names:
        if name == "auto":
            resolution = resolve(name, require_gpu=False)
            slugs.append(resolution.target.slug)
            if not resolution.present:
                warn(f"{resolution.warning}; emitting for {resolution.target.slug}")
        else:
            slugs.append(slug_in(configs, name))
    return tuple(slug for slug in slugs if slug != PORTABLE)


def _stale(emission: Emission) -> list[str]:
    """A note for each file that holds rules whose kernels would be written otherwise today."""
    from flashgen.compiler.toolchain import toolchain_of

    notes = []
    for source in emission.sources:
        old = {entry.label for entry in source.file.entries if entry.toolchain.kernels != toolchain_of(entry).kernels}
        if old:
            notes.append(
                f"{source.path}: {len(old)} of {len(source.file.entries)} rules were proven with other kernels than "
                "today's templates write; `flashgen verify FILE` proves the module itself"
            )
    return notes


def _report(emission: Emission, out: Path | None, *, changed: bool, as_json: bool) -> None:
    if as_json:
        print_json(_document(emission, out, changed=changed))
    elif out is None:
        click.echo(emission.text, nl=False)
    else:
        content = emission.content
        rules = len(content.portable) + sum(len(table.rows) for table in content.gpus)
        gpus = ", ".join(table.slug for table in content.gpus) or "any GPU"
        print_line(f"{out}: {'written' if changed else 'up to date'}; {rules} rules for {gpus}")


def _document(emission: Emission, out: Path | None, *, changed: bool) -> dict[str, object]:
    content = emission.content
    document: dict[str, object] = {
        "out": None if out is None else str(out),
        "changed": changed,
        "gpus": {table.slug: {"pattern": table.pattern, "rules": len(table.rows)} for table in content.gpus},
        "portable_rules": len(content.portable),
        "portable_shared_bytes": content.portable_shared_bytes,
        "command": content.command,
        "sources": [str(source.path) for source in emission.sources],
        "notes": list(emission.notes),
    }
    return document if out is not None else document | {"text": emission.text}
