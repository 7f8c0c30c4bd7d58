"""Where the templates and the committed configs are: in the checkout that is being worked on, else in the package."""

from __future__ import annotations

from pathlib import Path

from flashgen.errors import FlashgenError

_PACKAGE = Path(__file__).parent


def templates_dir() -> Path:
    """The directory of Jinja templates: templates/ of the checkout, `_templates` of an installed wheel."""
    return _asset("templates")


def tuned_configs_dir() -> Path:
    """The directory of committed configs: tuned_configs/ of the checkout, `_tuned_configs` of an installed wheel."""
    return _asset("tuned_configs")


def _asset(name: str) -> Path:
    # An editable install imports the checkout's package, but the wheel's copies would lie elsewhere and go stale.
    in_checkout, in_package = _PACKAGE.parent / name, _PACKAGE / f"_{name}"
    if (_PACKAGE.parent / "pyproject.toml").is_file() and in_checkout.is_dir():
        return in_checkout
    if not in_package.is_dir():
        raise FlashgenError(f"this installation has no {name}: {in_package} is missing; install flashgen again")
    return in_package
