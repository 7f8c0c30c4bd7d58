"""Reading and writing tuned_configs/<gpu>/<op>.yaml."""

from __future__ import annotations

from pathlib import Path

from flashgen.errors import OutputError, TunedConfigError
from flashgen.store.atomic import replace_file
from flashgen.store.codec import decode_file
from flashgen.store.entry import TunedFile, check_place
from flashgen.store.strict_yaml import load
from flashgen.store.value import Value
from flashgen.store.yaml_text import render


def tuned_path(directory: Path, slug: str, op: str) -> Path:
    """`directory`/<slug>/<op>.yaml.

    Raises:
        TunedConfigError: a slug or an op that would leave `directory`.
    """
    check_place(slug, op)
    return directory / slug / f"{op}.yaml"


def read_tuned(path: Path, *, gpu: str | None = None, op: str | None = None) -> TunedFile:
    """The rules that a file holds; `gpu` and `op`, where given, are what it must be for.

    Raises:
        TunedConfigError: `FILE:LINE: key.path: what was found; what is allowed`.
    """
    value = load(path)
    file = decode_file(value)
    for name, wanted in (("gpu", gpu), ("op", op)):
        if wanted is not None and getattr(file, name) != wanted:
            _member(value, name).fail(f"found {getattr(file, name)}; this place is for {wanted}")
    return file


def _member(value: Value, name: str) -> Value:
    return value.members([name], list(value.data) if isinstance(value.data, dict) else [])[name]


def write_tuned(path: Path, file: TunedFile) -> None:
    """Writes `file` as text that is a function of it alone. It is read back and compared before it replaces anything.

    Raises:
        OutputError: `path` cannot be written, or `file` holds what a file cannot; an existing file is as it was.
    """

    def reads_back_equal(written: Path) -> None:
        try:
            same = read_tuned(written) == file
        except TunedConfigError as error:
            raise OutputError(f"{path}: not written, as it would not read back: {error}") from error
        if not same:
            raise OutputError(f"{path}: not written, as it would read back as something else")

    replace_file(path, render(file).encode("ascii"), reads_back_equal)
