"""The one Jinja environment. Templates decide which lines exist; tl.constexpr decides how big they are."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from flashgen.assets import templates_dir
from flashgen.errors import TemplateError


def _as_source(value: Any) -> Any:
    """What a template prints must be Python source: floats round-trip, None and objects are refused."""
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    if not isinstance(value, (str, int)):
        raise TemplateError(
            f"a template prints {type(value).__name__} {value!r}; only str, bool, int and float are source"
        )
    return value


def _reindent(text: str, width: int) -> str:
    """Indents every line that is not blank, by a negative width to the left; empty text stays empty."""
    pad = " " * width
    return "".join(pad + line[max(0, -width) :] if line.strip() else line for line in text.splitlines(keepends=True))


def make_environment(root: Path) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(root),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        finalize=_as_source,
    )
    environment.filters["reindent"] = _reindent
    return environment


@lru_cache(maxsize=4)
def _environment(root: Path) -> jinja2.Environment:
    return make_environment(root)


def render(template: str, **context: Any) -> str:
    """The text of `template` (a path relative to templates/).

    Raises:
        TemplateError: a missing template, an undefined name, a syntax error, or a value that is no source text.
    """
    try:
        return _environment(templates_dir()).get_template(template).render(**context)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"{error.filename or template}:{error.lineno}: {error.message}") from error
    except jinja2.TemplateNotFound as error:
        raise TemplateError(f"no template {error.name!r} under {templates_dir()}") from error
    except jinja2.UndefinedError as error:
        raise TemplateError(f"{template}: {error.message}") from error
