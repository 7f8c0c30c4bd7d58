"""A directory of tuned configs as a whole: <gpu>/<op>.yaml for every GPU and op it has."""

from __future__ import annotations

from pathlib import Path

from flashgen.errors import TunedConfigError, UnknownGpu
from flashgen.hardware.lookup import find_gpu, slugify
from flashgen.resources.portable import PORTABLE as PORTABLE
from flashgen.store.entry import TunedFile
from flashgen.store.files import read_tuned


def slug_in(directory: Path, name: str) -> str:
    """The slug that a user's `name` of a GPU means: a known GPU's, `portable`, or that of rules in `directory`.

    Raises:
        UnknownGpu: none of these.
    """
    slug = slugify(name)
    if slug == PORTABLE:
        return slug
    try:
        return find_gpu(name).slug
    except UnknownGpu:
        if slug and (directory / slug).is_dir():
            return slug
        raise


def rule_paths(directory: Path, gpu: str | None = None) -> tuple[Path, ...]:
    """The files of every GPU, or of the one whose slug is `gpu`, sorted.

    Raises:
        TunedConfigError: there is no such directory, or it has no file for `gpu`.
    """
    if not directory.is_dir():
        raise TunedConfigError(f"{directory}: is no directory; tuned configs are DIR/<gpu>/<op>.yaml")
    paths = tuple(sorted(directory.glob(f"{gpu or '*'}/*.yaml")))
    if gpu is not None and not paths:
        has = ", ".join(sorted({path.parent.name for path in directory.glob("*/*.yaml")})) or "none"
        raise TunedConfigError(f"{directory}: has no rules for {gpu}; it has those of: {has}")
    return paths


def read_rules(path: Path) -> TunedFile:
    """The file at `path`, which must be for the GPU and op that its place says; raises TunedConfigError."""
    return read_tuned(path, gpu=path.parent.name, op=path.stem)


def read_directory(directory: Path, gpu: str | None = None) -> dict[Path, TunedFile]:
    """Every file of `rule_paths`; the first that is malformed raises TunedConfigError."""
    return {path: read_rules(path) for path in rule_paths(directory, gpu)}
