"""Options that several commands have, spelled alike everywhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from flashgen.errors import OutputError, SpecError
from flashgen.spec import DTYPES, FEATURES, MAX_HEAD_DIM
from flashgen.variants import FeatureSet, feature_set

F = TypeVar("F", bound=Callable[..., Any])

FILE = click.Path(dir_okay=False, path_type=Path)
READABLE_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
DIRECTORY = click.Path(file_okay=False, path_type=Path)
HEAD_DIM = click.IntRange(1, MAX_HEAD_DIM)


as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout instead of text.")
head_dims = click.option(
    "--head-dim", "head_dims", type=HEAD_DIM, multiple=True, metavar="N", help="Head dim; may be repeated."
)
dtypes = click.option(
    "--dtype",
    "dtypes",
    type=click.Choice(DTYPES),
    multiple=True,
    help="Dtype of q, k, v and out (of fp8: bf16); may be repeated.",
)


def _feature_sets(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[FeatureSet, ...]:
    try:
        return tuple(dict.fromkeys(feature_set(value) for value in values))
    except SpecError as error:
        raise click.BadParameter(str(error)) from None


features = click.option(
    "--feature",
    "features",
    multiple=True,
    callback=_feature_sets,
    metavar="SET",
    help=f"Every mask with features too, such as alibi+dropout; may be repeated. Of: {', '.join(FEATURES)}.",
)


def _storage(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    from flashgen.tune.storage import check_scheme

    try:
        check_scheme(value or "")
    except OutputError as error:
        raise click.BadParameter(str(error)) from None
    return value


def storage(text: str, *, required: bool = False, envvar: str | None = None) -> Callable[[F], F]:
    """A place for studies: a file, or a URL."""
    text = f"{text} A file, postgresql://..., or grpc://host:port."
    return click.option(
        "--storage", callback=_storage, metavar="WHERE", help=text, required=required, envvar=envvar, show_envvar=True
    )


def timeout(text: str) -> Callable[[F], F]:
    return click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help=text)


def op(*choices: str, default: str) -> Callable[[F], F]:
    return click.option("--op", type=click.Choice(choices), default=default, show_default=True, help="Which pass.")


def gpu(default: str, text: str) -> Callable[[F], F]:
    return click.option("--gpu", default=default, show_default=True, metavar="NAME", help=text)


def configs(text: str) -> Callable[[F], F]:
    return click.option("--configs", type=DIRECTORY, metavar="DIR", help=f"{text} [default: those that flashgen ships]")


def core_count() -> int:
    return os.cpu_count() or 1


jobs = click.option(
    "--jobs", type=click.IntRange(min=1), default=core_count, help="Compilers at once  [default: cores]"
)
