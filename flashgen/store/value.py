"""Value: a parsed value that knows where it was written, and says so in every error about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NoReturn, TypeVar

from flashgen.errors import SpecError, TunedConfigError

T = TypeVar("T")
Scalar = str | int | float | bool | None

ALLOWED = {
    str: "text (in quotes if it looks like a number)",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def shorten(text: str, limit: int = 60) -> str:
    """`text` as far as it fits into a message."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where something was written: file, line (from 1) and path of keys, such as `entries[0].spec.causal`."""

    file: str
    line: int
    keys: str = ""

    def fail(self, message: str) -> NoReturn:
        """Raises TunedConfigError with `message` after the place."""
        raise TunedConfigError(f"{self.file}:{self.line}: {self.keys or 'top level'}: {message}") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """A scalar, a list or a mapping of Values. `text` is a scalar as it was written."""

    data: Scalar | list[Value] | dict[str, Value]
    place: Place
    text: str = ""

    @property
    def found(self) -> str:
        """The value in words, for messages: `text '64, 128'`, `number 3.10`, `a list`."""
        match self.data:
            case dict():
                return "a mapping"
            case list():
                return "a list"
            case str():
                return f"text {shorten(self.data)!r}"
            case bool() | None:
                return self.text
            case _:
                return f"number {shorten(self.text)}"

    def fail(self, message: str) -> NoReturn:
        self.place.fail(message)

    def scalar(self, *kinds: type) -> Scalar:
        """The data as one of `kinds`: str, int, float, bool, NoneType. An integer also passes for a float."""
        data = self.data
        if isinstance(data, (list, dict)) or (type(data) not in kinds and not (type(data) is int and float in kinds)):
            self.fail(f"found {self.found}; allowed: {' or '.join(ALLOWED[kind] for kind in kinds)}")
        return float(data) if type(data) is int and int not in kinds else data

    def choice(self, allowed: Sequence[Scalar]) -> Scalar:
        if isinstance(self.data, (dict, list)) or not any(
            type(self.data) is type(a) and self.data == a for a in allowed
        ):
            self.fail(f"found {self.found}; allowed: {', '.join(map(str, allowed))}")
        return self.data

    def items(self) -> list[Value]:
        """The elements of a list."""
        if not isinstance(self.data, list):
            self.fail(f"found {self.found}; allowed: a list")
        return self.data

    def members(self, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Value]:
        """The members of a mapping that has every `required` key and no key but those and the `optional` ones."""
        if not isinstance(self.data, dict):
            self.fail(f"found {self.found}; allowed: a mapping with {', '.join(required)}")
        known = [*required, *optional]
        for name, value in self.data.items():
            if name not in known:
                close = get_close_matches(name, known, n=1)
                hint = f" (did you mean {close[0]}?)" if close else ""
                value.fail(f"found an unknown key{hint}; allowed: {', '.join(known)}")
        for name in required:
            if name not in self.data:
                self.member_place(name).fail(f"found nothing; the key is required, as are {', '.join(required)}")
        return self.data

    def member_place(self, name: str) -> Place:
        keys = f"{self.place.keys}.{name}" if self.place.keys else name
        return Place(file=self.place.file, line=self.place.line, keys=keys)

    def build(self, make: Callable[..., T], **arguments: object) -> T:
        """`make(**arguments)`, whose complaint about the arguments becomes one about this place."""
        try:
            return make(**arguments)
        except (SpecError, TunedConfigError) as error:
            self.fail(str(error))
