"""YAML as people mean it: the core of YAML 1.2 less all that reads one way here and another way elsewhere.

PyYAML does the syntax. Its guesses about plain words are replaced by `plain_scalar`, which refuses what it would have
to guess; keys that appear twice, tags, anchors, aliases, merge keys, second documents and tabs are refused too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from flashgen.errors import TunedConfigError
from flashgen.spec import Workload
from flashgen.store.plain import Ambiguous, plain_scalar
from flashgen.store.value import Place, Value, shorten

_CORE_TAG = "tag:yaml.org,2002:"
_MAX_DEPTH = 16  # a tuned file needs 6; beyond this only a hostile file goes


class _Composer(yaml.SafeLoader):
    """PyYAML's composer, which here keeps the path of keys it is at, and refuses what has no place in a config."""

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text)
        self.yaml_implicit_resolvers = {}  # plain words stay text until plain_scalar reads them
        self.file = file
        self.trail: list[str] = []
        self.starts: list[Place] = []  # of every node, in the order of the text

    def at(self, line: int) -> Place:
        keys = "".join(self.trail).removeprefix(".")
        return Place(file=self.file, line=line, keys=keys)

    def nearest(self, line: int) -> Place:
        """The last node that starts at or before `line`, as if it were on `line`."""
        keys = next((start.keys for start in reversed(self.starts) if start.line <= line), "")
        return Place(file=self.file, line=line, keys=keys)

    def compose_document(self) -> yaml.Node | None:
        start: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(start, yaml.DocumentStartEvent) and (start.version or start.tags):
            self.at(_line(start.start_mark)).fail("found a % directive; directives are not allowed")
        return super().compose_document()

    def compose_node(self, parent: yaml.Node | None, index: yaml.Node | int | None) -> yaml.Node | None:
        if isinstance(index, int):
            self.trail.append(f"[{index}]")
        else:
            self.trail.append(f".{index.value}" if isinstance(index, yaml.ScalarNode) else "")
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]  # the stub has no types here
        place = self.at(_line(event.start_mark))
        self.starts.append(place)
        _refuse_event(event, place)
        if len(self.trail) > _MAX_DEPTH:
            place.fail(f"found more than {_MAX_DEPTH} levels of nesting; a config needs fewer")
        node: yaml.Node | None = super().compose_node(parent, index)  # type: ignore[arg-type]  # the stub forbids None
        self.trail.pop()
        return node


def _line(mark: Any) -> int:
    """PyYAML's mark as a line counted from 1; its stubs allow for none."""
    return mark.line + 1 if mark else 1


def _refuse_event(event: yaml.Event, place: Place) -> None:
    if isinstance(event, yaml.AliasEvent):
        place.fail(f"found the alias *{event.anchor}; write the value out, aliases are not allowed")
    if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
        place.fail(f"found the anchor &{event.anchor}; anchors are not allowed")
    if isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)) and event.tag is not None:
        place.fail(
            f"found the tag {event.tag.replace(_CORE_TAG, '!!')}; tags are not allowed, the key decides the type"
        )


def _value(node: yaml.Node, place: Place) -> Value:
    """The composed `node` as a Value, its plain scalars resolved. `place` is where its key stands, or itself."""
    if isinstance(node, yaml.MappingNode):
        return Value(data=_mapping(node, place), place=place)
    if isinstance(node, yaml.SequenceNode):
        items = [
            _value(item, Place(file=place.file, line=item.start_mark.line + 1, keys=f"{place.keys}[{i}]"))
            for i, item in enumerate(node.value)
        ]
        return Value(data=items, place=place)
    assert isinstance(node, yaml.ScalarNode)
    text: str = node.value
    if node.style is not None:  # quoted or a block: text, whatever it looks like
        return Value(data=text, place=place, text=text)
    try:
        return Value(data=plain_scalar(text), place=place, text=text)
    except Ambiguous as advice:
        place.fail(f"found {shorten(text) or 'nothing'}; {advice}")


def _mapping(node: yaml.MappingNode, place: Place) -> dict[str, Value]:
    members: dict[str, Value] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = _key(key_node, Place(file=place.file, line=line, keys=place.keys))
        here = Place(file=place.file, line=line, keys=f"{place.keys}.{key}".removeprefix("."))
        if key in members:
            here.fail(f"found a second time, first on line {members[key].place.line}; a key may appear once")
        members[key] = _value(value_node, here)
    return members


def _key(node: yaml.Node, place: Place) -> str:
    if not isinstance(node, yaml.ScalarNode):
        place.fail("found a key that is a list or a mapping; allowed: a name")
    text: str = node.value
    here = Place(file=place.file, line=place.line, keys=f"{place.keys}.{text}".removeprefix("."))
    try:
        if node.style is None and not isinstance(plain_scalar(text), str):
            here.fail(f"found {text} for a key; allowed: a name (a list is written in brackets: [64, 128])")
    except Ambiguous as advice:
        here.fail(f"found {text or 'nothing'} for a key; {advice}")
    return text


def parse(text: str, file: str) -> Value:
    """The one mapping that `text` holds; `file` is its name in errors.

    Raises:
        TunedConfigError: `FILE:LINE: key.path: what was found, what is allowed`.
    """
    try:
        composer = _Composer(text, file)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        Place(file=file, line=line).fail(f"found the character U+{ord(text[error.position]):04X}, which YAML forbids")
    with _syntax_errors_located(composer, text):
        node = composer.get_single_node()
    if node is None:
        Place(file=file, line=1).fail("found an empty file; allowed: a mapping")
    place = Place(file=file, line=node.start_mark.line + 1)
    value = _value(node, place)
    if not isinstance(value.data, dict):
        value.fail(f"found {value.found}; allowed: a mapping")
    return value


@contextmanager
def _syntax_errors_located(composer: _Composer, text: str) -> Iterator[None]:
    """Turns PyYAML's errors into ours; a tab is one wherever it stands, as PyYAML lets some pass."""
    before_tab, tab, _ = text.partition("\t")
    problems = (
        [(before_tab.count("\n") + 1, "found a tab; indent with spaces, and write \\t in quoted text")] if tab else []
    )
    try:
        yield
    except yaml.composer.ComposerError as error:  # the only one left: anchors and aliases were refused before
        composer.at(_line(error.problem_mark)).fail("found a second document; a file holds one")
    except yaml.MarkedYAMLError as error:
        message = ", ".join(part for part in (error.context, error.problem) if part)
        problems.append((_line(error.problem_mark or error.context_mark), f"not YAML: {message}"))
    if problems:
        line, message = min(problems, key=lambda problem: problem[0])
        written = "".join(text.split("\n")[line - 1 : line]).strip()
        composer.nearest(line).fail(f"{message}, in {shorten(written)!r}" if written else message)


def read_text(path: Path) -> str:
    """The text of a UTF-8 file.

    Raises:
        TunedConfigError: it cannot be read, or is not UTF-8.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TunedConfigError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        Place(file=str(path), line=line).fail(f"found the byte {data[error.start]:#04x}, which is not UTF-8")


def load(path: Path) -> Value:
    """The mapping in a YAML file; raises TunedConfigError as `parse` and `read_text` do."""
    return parse(read_text(path), str(path))


def load_workloads(path: Path) -> tuple[Workload, ...]:
    """The sizes to tune for: a list under `workloads:`, each with batch, heads_q, heads_kv, seqlen_q and seqlen_k.

    Raises:
        TunedConfigError: the file says something else, nothing, or one workload twice.
    """
    names = ("batch", "heads_q", "heads_kv", "seqlen_q", "seqlen_k")
    listed = load(path).members(["workloads"])["workloads"]
    workloads: dict[Workload, Place] = {}
    for item in listed.items():
        sizes = {name: value.scalar(int) for name, value in item.members(names).items()}
        workload = item.build(Workload, **sizes)
        if workload in workloads:
            item.fail(f"found {workload.key} a second time, first on line {workloads[workload].line}")
        workloads[workload] = item.place
    if not workloads:
        listed.fail("found an empty list; allowed: at least one workload")
    return tuple(workloads)
