"""The text of a tuned file: short enough to review, and read alike by any YAML library."""

from __future__ import annotations

import re

import yaml

from flashgen.store.codec import Plain, encode_file
from flashgen.store.entry import TunedFile
from flashgen.store.plain import Ambiguous, plain_scalar

HEADER = "# Written by flashgen tune, for flashgen emit. The command below makes this file again.\n"

_PLAIN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")  # text that needs no quotes, unless it is some YAML's keyword
_ONE_LINE = 2**31


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indents the items of a list below its key, which PyYAML would not."""
        super().increase_indent(flow, False)


def render(file: TunedFile) -> str:
    """The file's text: a pure function of `file`, ASCII only, that `strict_yaml` reads back to an equal TunedFile."""
    body: str = yaml.serialize(_node(encode_file(file)), Dumper=_Dumper, width=_ONE_LINE)
    return HEADER + body


def _node(value: Plain) -> yaml.Node:
    if isinstance(value, dict):
        pairs = [(_node(key), _node(member)) for key, member in value.items()]
        return yaml.MappingNode("tag:yaml.org,2002:map", pairs, flow_style=_fits_one_line(value))
    if isinstance(value, list):
        return yaml.SequenceNode("tag:yaml.org,2002:seq", [_node(v) for v in value], flow_style=_fits_one_line(value))
    tag, text = _scalar(value)
    style = '"' if isinstance(value, str) and not _is_plain_text(value) else None
    return yaml.ScalarNode(f"tag:yaml.org,2002:{tag}", text, style=style)


def _fits_one_line(value: Plain) -> bool:
    """Whether nothing in a mapping or list is itself a mapping: a record of scalars and short lists."""
    members = list(value.values()) if isinstance(value, dict) else value
    return isinstance(members, list) and not any(
        isinstance(member, dict) or (isinstance(member, list) and not _fits_one_line(member)) for member in members
    )


def _scalar(value: str | float | bool | None) -> tuple[str, str]:
    match value:
        case None:
            return "null", "null"
        case bool():
            return "bool", "true" if value else "false"
        case int():
            return "int", str(value)
        case float():
            mantissa, e, exponent = repr(value).partition("e")  # YAML 1.1 wants a point in every float
            return "float", f"{mantissa}{'' if '.' in mantissa else '.0'}{e}{exponent}"
        case _:
            return "str", value


def _is_plain_text(text: str) -> bool:
    try:
        return _PLAIN_TEXT.fullmatch(text) is not None and plain_scalar(text) == text
    except Ambiguous:
        return False
