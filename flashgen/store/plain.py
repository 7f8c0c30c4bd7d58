"""What an unquoted word of YAML is, and which words are refused because it depends on whom one asks."""

from __future__ import annotations

import math
import re

from flashgen.store.value import Scalar

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, Scalar] = {"true": True, "false": False, "null": None}

# Plain words that YAML 1.1, YAML 1.2 and people read differently, each with what to write instead.
_AMBIGUOUS = tuple(
    (re.compile(pattern), advice)
    for pattern, advice in (
        (r"(?i:true|false|yes|no|on|off|y|n)", "only true and false are booleans; quote it if it is text"),
        (r"(?i:~|null|none|)", "write null if nothing is meant; quote it if it is text"),
        (r"[-+]?\.?(?i:inf|infinity|nan)", "numbers are finite; quote it if it is text"),
        (r"[-+]?0[0-9_]+(\.[0-9_]*)?", "a number has no leading zero (YAML 1.1 reads octal); quote it if it is text"),
        (r"[-+]?0[xob][0-9a-fA-F_]+", "numbers are decimal; quote it if it is text"),
        (r"[-+]?[0-9][0-9_]*_[0-9_.]*", "a number has no underscores; quote it if it is text"),
        (r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?", "YAML 1.1 reads base 60; quote it if it is text"),
        (r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*", "YAML 1.1 reads a date; quote it if it is text"),
        (r"=|<<", "YAML 1.1 gives it a meaning of its own; quote it if it is text"),
    )
)


class Ambiguous(ValueError):
    """A plain word that has no one meaning; the message says what to write instead."""


def plain_scalar(text: str) -> Scalar:
    """What an unquoted `text` is: true, false, null, an integer, a finite number, or else itself.

    Raises:
        Ambiguous: it looks like two of these.
    """
    if text in _WORDS:
        return _WORDS[text]
    for pattern, advice in _AMBIGUOUS:
        if pattern.fullmatch(text):
            raise Ambiguous(advice)
    if not _FLOAT.fullmatch(text):
        return text
    number = float(text)
    if math.isinf(number):
        raise Ambiguous("it is larger than any number; quote it if it is text")
    return int(text) if _INT.fullmatch(text) else number
