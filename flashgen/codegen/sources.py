"""The files of rules that a module is made from: the user's own, else those that flashgen ships."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flashgen.assets import tuned_configs_dir
from flashgen.codegen.device_names import short_name
from flashgen.errors import TunedConfigError
from flashgen.spec import Op
from flashgen.store.directory import PORTABLE
from flashgen.store.entry import TunedFile
from flashgen.store.files import read_tuned, tuned_path
from flashgen.store.lookup import merge


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A file of rules and where it was read. `note` is what its user should know about that, or ''."""

    path: Path
    file: TunedFile
    note: str = ""


def gpu_source(configs: Path, slug: str, op: Op) -> Source:
    """The rules of one GPU.

    Raises:
        TunedConfigError: neither `configs` nor the shipped configs have a file for it, or the file is malformed.
    """
    asked, shipped = tuned_path(configs, slug, op), tuned_path(tuned_configs_dir(), slug, op)
    if asked.exists():
        return Source(path=asked, file=read_tuned(asked, gpu=slug, op=op))
    if shipped.exists():
        note = f"{asked} does not exist: the rules for {slug} come from {shipped}"
        return Source(path=shipped, file=read_tuned(shipped, gpu=slug, op=op), note=note)
    looked = f"{asked} does not exist" if asked == shipped else f"neither {asked} nor {shipped} exists"
    raise TunedConfigError(
        f"no tuned configs for {slug}: {looked}\n  next: flashgen tune --gpu {short_name(slug)} --out {configs}"
    )


def portable_sources(configs: Path, op: Op) -> tuple[Source, ...]:
    """The rules that fit any GPU: the shipped ones, and those of `configs`, which come before them (see `joined`).

    Raises:
        TunedConfigError: there is no such file at all, or one is malformed.
    """
    paths = dict.fromkeys(tuned_path(root, PORTABLE, op) for root in (tuned_configs_dir(), configs))
    found = tuple(Source(path=p, file=read_tuned(p, gpu=PORTABLE, op=op)) for p in paths if p.exists())
    if not found:
        looked = " nor ".join(map(str, paths))
        raise TunedConfigError(
            f"no portable rules, which every module needs for tensors and GPUs that the tuned ones don't serve: "
            f"there is no {looked}\n  next: flashgen tune --gpu portable --out {configs}"
        )
    return found


def joined(sources: tuple[Source, ...]) -> TunedFile:
    """All rules of the sources (at least one), where a later source's come before an earlier one's."""
    first, *others = (source.file for source in sources)
    for other in others:
        first = merge(first, other, predicted_over_measured=True)
    return first
