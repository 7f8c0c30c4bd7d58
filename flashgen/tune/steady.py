"""A storage that outlasts short failures of what it is kept in, and turns lasting ones into an OutputError."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from flashgen.errors import OutputError

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


def _never(error: Exception) -> bool:
    return False


@dataclass(frozen=True, kw_only=True, slots=True)
class Medium:
    """What a storage is kept in, named `where`, fails with OSError or `failures`. Those that `passes` is true of may
    pass: they are worth `patience_s` seconds of trying again."""

    where: str
    failures: tuple[type[Exception], ...] = ()
    passes: Callable[[Exception], bool] = _never
    patience_s: float = 0.0

    def error(self, cause: Exception) -> OutputError:
        kept = "what was recorded before is kept"
        if isinstance(cause, OSError):
            text, remedy = f"cannot be written: {cause.strerror or cause}", "make room, or see who may write there"
        else:
            text, remedy = f"cannot be used: {_reason(cause)}", "see that it runs and may be written"
            if self.patience_s and self.passes(cause):
                text += f" (tried again for {self.patience_s:g} s)"
        return OutputError(f"storage {self.where}: {text}; {kept}\n  next: {remedy}, then run the same command again")


class Steady:
    """An Optuna storage, or whatever else fails as `medium` does; all its methods raise OutputError in place of that.

    Every method of a storage may be called again. One whose answer was lost after it was done leaves at worst a trial
    that nobody owns, which others take for one of a process that was killed.
    """

    def __init__(self, kept: Any, medium: Medium) -> None:
        self._kept, self._medium = kept, medium
        self._is_lost = False  # once patience was in vain, cleaning up shall not wait as long again

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._kept, name)
        return partial(self._call, found) if callable(found) else found

    def _call(self, operation: Callable[..., Any], *given: Any, **named: Any) -> Any:
        patience_s = 0.0 if self._is_lost else self._medium.patience_s
        failures: tuple[type[Exception], ...] = (OSError, *self._medium.failures)
        end, pause_s = time.monotonic() + patience_s, _FIRST_PAUSE_S
        while True:
            try:
                done = operation(*given, **named)
            except failures as error:
                if not self._medium.passes(error) or time.monotonic() + pause_s > end:
                    self._is_lost = True
                    raise self._medium.error(error) from error
            else:
                self._is_lost = False
                return done
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _reason(error: BaseException) -> str:
    """The first line of what lies below the wrappers."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = getattr(error, "details", None)  # gRPC's errors keep theirs in a method
    lines = str(text() if callable(text) else error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
