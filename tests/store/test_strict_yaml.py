"""Every way in which a YAML file says something else than its author meant is refused, with file, line and key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.errors import TunedConfigError
from flashgen.spec import Workload
from flashgen.store.strict_yaml import load, load_workloads, parse

REFUSED = [
    # text, line, key path, part of the message
    pytest.param("x: 1\na: on", 2, "a", "found on; only true and false are booleans", id="on"),
    pytest.param("a: yes", 1, "a", "found yes; only true and false are booleans", id="yes"),
    pytest.param("a: no", 1, "a", "found no; only true and false are booleans", id="no"),
    pytest.param("a: Off", 1, "a", "found Off; only true and false are booleans", id="off"),
    pytest.param("a: y", 1, "a", "found y; only true", id="y"),
    pytest.param("a: True", 1, "a", "found True; only true", id="capital-true"),
    pytest.param("a:\n  on: 1", 2, "a.on", "found on for a key; only true and false", id="key-on"),
    pytest.param("a:\n  null: 1", 2, "a.null", "found null for a key; allowed: a name", id="key-null"),
    pytest.param("a: {b: 64, 128}", 1, "a.128", "found 128 for a key; allowed: a name (a list", id="list-in-mapping"),
    pytest.param("? [1]\n: 2", 1, "top level", "found a key that is a list", id="key-list"),
    pytest.param("a: 012", 1, "a", "found 012; a number has no leading zero", id="octal"),
    pytest.param("a: 0x10", 1, "a", "found 0x10; numbers are decimal", id="hex"),
    pytest.param("a: 1_000", 1, "a", "found 1_000; a number has no underscores", id="underscore"),
    pytest.param("a: [1:30]", 1, "a[0]", "found 1:30; YAML 1.1 reads base 60", id="sexagesimal"),
    pytest.param("a: 2026-01-02", 1, "a", "found 2026-01-02; YAML 1.1 reads a date", id="date"),
    pytest.param("a: None", 1, "a", "found None; write null", id="None"),
    pytest.param("a: ~", 1, "a", "found ~; write null", id="tilde"),
    pytest.param("a:\nb: 1", 1, "a", "found nothing; write null", id="empty-value"),
    pytest.param("a: .inf", 1, "a", "found .inf; numbers are finite", id="inf"),
    pytest.param("a: -.Inf", 1, "a", "found -.Inf; numbers are finite", id="minus-inf"),
    pytest.param("a: .NaN", 1, "a", "found .NaN; numbers are finite", id="nan"),
    pytest.param("a: 1e999", 1, "a", "found 1e999; it is larger than any number", id="overflow"),
    pytest.param("a: " + "9" * 5000, 1, "a", "it is larger than any number", id="too-many-digits"),
    pytest.param("a: 1\nb: 2\na: 3", 3, "a", "found a second time, first on line 1", id="duplicate"),
    pytest.param("a:\n- b: 1\n  'b': 2", 3, "a[0].b", "found a second time, first on line 2", id="duplicate-quoted"),
    pytest.param("a:\n- !!int '3'", 2, "a[0]", "found the tag !!int", id="tag"),
    pytest.param("a: ! x", 1, "a", "found the tag !;", id="bare-tag"),
    pytest.param("a: !!python/name:os.system x", 1, "a", "found the tag !!python/name:os.system", id="python-tag"),
    pytest.param("a: &x 1\nb: *x", 1, "a", "found the anchor &x", id="anchor"),
    pytest.param("a: 1\nb: {c: *x}", 2, "b.c", "found the alias *x", id="alias"),
    pytest.param("a:\n  <<: {b: 1}", 2, "a.<<", "found << for a key", id="merge-key"),
    pytest.param("a: 1\n---\nb: 2", 2, "top level", "found a second document", id="two-documents"),
    pytest.param("%YAML 1.1\n---\na: 1", 1, "top level", "found a % directive", id="directive"),
    pytest.param("", 1, "top level", "found an empty file", id="empty"),
    pytest.param("# only a comment\n", 1, "top level", "found an empty file", id="only-comment"),
    pytest.param("\n- 1", 2, "top level", "found a list; allowed: a mapping", id="top-list"),
    pytest.param("word", 1, "top level", "found text 'word'; allowed: a mapping", id="top-scalar"),
    pytest.param("a:\n\tb: 1", 2, "top level", "found a tab; indent with spaces", id="tab-indent"),
    pytest.param("a:\n  b: 1\n  c: x\ty", 3, "a.c", "found a tab", id="tab-inside"),
    pytest.param("a:\n  b: [1, 2", 2, "a.b[1]", "not YAML: while parsing a flow sequence", id="unclosed-list"),
    pytest.param("a: 'x", 1, "top level", 'in "a: \'x"', id="unclosed-quote"),
    pytest.param("a: b: c", 1, "a", "mapping values are not allowed here, in 'a: b: c'", id="colon-in-text"),
    pytest.param("a: 1\r b: @x", 2, "a", "not YAML", id="old-mac-line-ends"),
    pytest.param("a: 1\nb: \x01", 2, "top level", "found the character U+0001", id="control-character"),
    pytest.param("[" * 2000, 1, "[0]" * 16, "more than 16 levels", id="deep"),
]


@pytest.mark.parametrize(("text", "line", "keys", "message"), REFUSED)
def test_refused_with_file_line_and_key(text: str, line: int, keys: str, message: str) -> None:
    with pytest.raises(TunedConfigError) as caught:
        parse(text, "some/file.yaml")
    assert str(caught.value).startswith(f"some/file.yaml:{line}: {keys}: ")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="ab01.e:-[]{},#&*!|>'\"%@?~<=\\ \t\n\r\u2028\x85", max_size=40) | st.text(max_size=20))
def test_any_text_is_a_mapping_or_a_located_error(text: str) -> None:
    located = ""
    try:
        value = parse(text, "f.yaml")
    except TunedConfigError as error:
        located = str(error)
    assert re.match(r"f\.yaml:[1-9][0-9]*: ", located) if located else isinstance(value.data, dict)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-3", 0.001),
        ("1e3", 1000.0),
        ("1.0e3", 1000.0),
        ("1E6", 1e6),
        (".5", 0.5),
        ("5.", 5.0),
        ("0", 0),
        ("-7", -7),
        ("true", True),
        ("false", False),
        ("null", None),
        ("'on'", "on"),
        ('"3.10"', "3.10"),
        ("'012'", "012"),
        ("3.9.0", "3.9.0"),
        ("64, 128", "64, 128"),
        ("|\n  64\n", "64\n"),
        ("nvidia-h200", "nvidia-h200"),
    ],
)
def test_plain_and_quoted_scalars(text: str, expected: object) -> None:
    data = parse(f"a: {text}", "f.yaml").members(["a"])["a"].data
    assert (data, type(data)) == (expected, type(expected))


def test_line_numbers_count_the_comments_and_the_quoted_lines() -> None:
    value = parse("# one\n# two\na: |\n  x\n  y\nb:\n  - 1\n  - c: 2\n", "f.yaml")
    assert isinstance(value.data, dict)
    second = value.data["b"].items()[1]
    assert (value.data["b"].place.line, second.place.line, second.place.keys) == (6, 8, "b[1]")
    assert second.members(["c"])["c"].place.keys == "b[1].c"


def test_windows_line_ends_and_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert {key: value.data for key, value in load(path).members(["a", "b"]).items()} == {"a": 1, "b": 2}


def test_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(TunedConfigError, match=rf"^{path}:2: top level: found the byte 0xff, which is not UTF-8$"):
        load(path)


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    with pytest.raises(TunedConfigError, match=r"absent.yaml: cannot be read: No such file"):
        load(tmp_path / "absent.yaml")
    with pytest.raises(TunedConfigError, match=r"cannot be read: Is a directory"):
        load(tmp_path)


def workloads_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "w.yaml"
    path.write_text(text)
    return path


def test_workloads_are_read_in_order(tmp_path: Path) -> None:
    path = workloads_file(
        tmp_path,
        "workloads:\n"
        "  - {batch: 4, heads_q: 32, heads_kv: 8, seqlen_q: 4096, seqlen_k: 4096}\n"
        "  - {batch: 1, heads_q: 8, heads_kv: 8, seqlen_q: 1, seqlen_k: 9}\n",
    )
    assert load_workloads(path) == (
        Workload(batch=4, heads_q=32, heads_kv=8, seqlen_q=4096, seqlen_k=4096),
        Workload(batch=1, heads_q=8, heads_kv=8, seqlen_q=1, seqlen_k=9),
    )


GOOD = "{batch: 4, heads_q: 32, heads_kv: 8, seqlen_q: 64, seqlen_k: 64}"


@pytest.mark.parametrize(
    ("text", "line", "keys", "message"),
    [
        ("workloads: []", 1, "workloads", "found an empty list"),
        ("workload: []", 1, "workload", "found an unknown key (did you mean workloads?)"),
        ("workloads: 4", 1, "workloads", "found number 4; allowed: a list"),
        ("workloads: [4]", 1, "workloads[0]", "found number 4; allowed: a mapping with batch, heads_q"),
        (f"workloads:\n- {GOOD}\n- {GOOD}", 3, "workloads[1]", "b4-h32x8-q64-k64 a second time, first on line 2"),
        (f"workloads:\n- {GOOD.replace('8', '5')}", 2, "workloads[0]", "heads_q 32 is not a multiple of heads_kv 5"),
        (f"workloads:\n- {GOOD.replace('4,', '0,', 1)}", 2, "workloads[0]", "batch 0 is not a positive integer"),
        (f"workloads:\n- {GOOD.replace('8', '8.0')}", 2, "workloads[0].heads_kv", "number 8.0; allowed: an integer"),
        (f"workloads:\n- {GOOD.replace('8', 'true')}", 2, "workloads[0].heads_kv", "found true; allowed: an integer"),
        (f"workloads:\n- {GOOD.replace('batch: 4, ', '')}", 2, "workloads[0].batch", "found nothing; the key is"),
    ],
)
def test_bad_workloads_are_refused(tmp_path: Path, text: str, line: int, keys: str, message: str) -> None:
    path = workloads_file(tmp_path, text)
    with pytest.raises(TunedConfigError) as caught:
        load_workloads(path)
    assert str(caught.value).startswith(f"{path}:{line}: {keys}: ")
    assert message in str(caught.value)
