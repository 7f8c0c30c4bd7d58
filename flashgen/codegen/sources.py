"""The files of rules that a module is made from: the user's own, else those that flashgen ships."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flashgen.assets import tuned_configs_dir
from flashgen.codegen.device_names import short_name
from flashgen.errors import TunedConfigError
from flashgen.spec import Op
from flashgen.store.entry import TunedEntry, TunedFile
from flashgen.store.files import read_tuned, tuned_path
from flashgen.store.lookup import merge


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A file of rules and where it was read. `note` is what its user should know about that, or ''."""

    path: Path
    file: TunedFile
    note: str = ""


def rule_sources(configs: Path, slug: str, op: Op) -> tuple[Source, ...]:
    """Every file of rules for `slug`: the shipped one, and that of `configs`, which comes before it (see `joined`).

    Raises:
        TunedConfigError: one of them is malformed.
    """
    paths = dict.fromkeys(tuned_path(root, slug, op) for root in (tuned_configs_dir(), configs))
    return tuple(Source(path=path, file=read_tuned(path, gpu=slug, op=op)) for path in paths if path.exists())


def gpu_source(configs: Path, slug: str, op: Op) -> Source | None:
    """The rules of one GPU: those of `configs`, else the shipped ones, else None.

    Raises:
        TunedConfigError: the file is malformed.
    """
    asked, shipped = tuned_path(configs, slug, op), tuned_path(tuned_configs_dir(), slug, op)
    if asked.exists():
        return Source(path=asked, file=read_tuned(asked, gpu=slug, op=op))
    if shipped.exists():
        note = f"{asked} does not exist: the rules for {slug} come from {shipped}"
        return Source(path=shipped, file=read_tuned(shipped, gpu=slug, op=op), note=note)
    return None


def required_gpu_source(configs: Path, slug: str, op: Op) -> Source:
    """`gpu_source` of a GPU that must have rules.

    Raises:
        TunedConfigError: neither `configs` nor the shipped configs have a file for it, or the file is malformed.
    """
    if (found := gpu_source(configs, slug, op)) is not None:
        return found
    asked, shipped = tuned_path(configs, slug, op), tuned_path(tuned_configs_dir(), slug, op)
    looked = f"{asked} does not exist" if asked == shipped else f"neither {asked} nor {shipped} exists"
    raise TunedConfigError(
        f"no tuned configs for {slug}: {looked}\n  next: flashgen tune --gpu {short_name(slug)} --out {configs}"
    )


def joined(sources: tuple[Source, ...]) -> tuple[TunedEntry, ...]:
    """All rules of the sources, which are of one GPU and op; a later source's come before an earlier one's."""
    if not sources:
        return ()
    first, *others = (source.file for source in sources)
    for other in others:
        first = merge(first, other, predicted_over_measured=True)
    return first.entries
