"""What a check of the doctor finds, and how one is run: a check that crashes is a finding as well."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one check found: `fail` stops flashgen from working, `warn` makes its results worse or fewer."""

    status: Status
    detail: str
    next_step: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A named finding, as `flashgen doctor` prints it. `next_step` is empty when all is well."""

    name: str
    status: Status
    detail: str
    next_step: str = ""


def ok(detail: str) -> Finding:
    return Finding(status="ok", detail=detail)


def warn(detail: str, next_step: str) -> Finding:
    return Finding(status="warn", detail=detail, next_step=next_step)


def fail(detail: str, next_step: str) -> Finding:
    return Finding(status="fail", detail=detail, next_step=next_step)


def run_check(name: str, look: Callable[[], Finding]) -> Check:
    """`look`'s finding under `name`; whatever it raises becomes a failure with the exception's text."""
    try:
        found = look()
    except ImportError as error:
        package = error.name or "a package"
        found = fail(f"{package} cannot be imported: {error}", f"install {package} into this environment")
    except Exception as error:
        text = f"the check itself failed: {type(error).__name__}: {error}"
        found = fail(text, "fix that cause and run `flashgen doctor` again")
    return Check(name=name, status=found.status, detail=found.detail, next_step=found.next_step)


@dataclass(frozen=True, kw_only=True, slots=True)
class Supported:
    """The releases of a package that flashgen is tested with, both ends included, as (major, minor)."""

    package: str
    oldest: tuple[int, int]
    newest: tuple[int, int]

    def judge(self, version: str, detail: str) -> Finding:
        """Older than tested fails; newer may work, so it warns."""
        found = release(version)
        span = f"{_dotted(self.oldest)} to {_dotted(self.newest)}"
        install = f"install {self.package} {span}"
        if found < self.oldest:
            return fail(f"{detail}: too old, flashgen needs {self.package} {span}", install)
        if found > self.newest:
            return warn(f"{detail}: newer than flashgen is tested with ({span})", f"{install} if kernels misbehave")
        return ok(detail)


def release(version: str) -> tuple[int, int]:
    """(major, minor) of a version such as `2.11.0+cu130`.

    Raises:
        ValueError: text that doesn't start with two numbers.
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise ValueError(f"version {version!r} doesn't start with MAJOR.MINOR")
    return int(match[1]), int(match[2])


def _dotted(found: tuple[int, int]) -> str:
    return f"{found[0]}.{found[1]}"
