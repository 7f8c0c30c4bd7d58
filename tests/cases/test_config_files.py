"""What people write in YAML and what flashgen makes of it; files that a failure must not spoil."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flashgen.compiler.cache import cache_dir, recall, remember
from flashgen.errors import TunedConfigError
from flashgen.families import TlConfig
from flashgen.outcome import Resources
from flashgen.spec import Workload
from flashgen.store.atomic import replace_file
from flashgen.store.codec import decode_config
from flashgen.store.strict_yaml import load_workloads, parse
from flashgen.store.yaml_text import _node

SIZES = {"batch": "1", "heads_q": "8", "heads_kv": "8", "seqlen_q": "64", "seqlen_k": "64"}


def workloads_text(**changes: str) -> str:
    first, *rest = [f"{name}: {value}" for name, value in (SIZES | changes).items()]
    return "\n".join(["workloads:", f"- {first}", *(f"  {line}" for line in rest)]) + "\n"


@pytest.mark.case("cli-01")
@pytest.mark.parametrize(("text", "number"), [("1e-3", 0.001), ("1e3", 1000.0), ("1.0e3", 1000.0), ("1E-7", 1e-7)])
def test_a_number_with_an_exponent_is_a_number(text: str, number: float) -> None:
    value = parse(f"tolerance: {text}", "f.yaml").members(["tolerance"])["tolerance"]
    assert value.scalar(float) == number
    assert type(value.scalar(float)) is float


@pytest.mark.case("cli-01")
def test_a_number_in_quotes_is_refused_by_name() -> None:
    value = parse('tolerance: "1e-3"', "f.yaml").members(["tolerance"])["tolerance"]
    with pytest.raises(TunedConfigError, match=r"f\.yaml:1: tolerance: found text '1e-3'; allowed: a number"):
        value.scalar(float)


@pytest.mark.case("cli-02")
@pytest.mark.parametrize("word", ["on", "off", "yes", "no", "On", "NO", "y"])
def test_a_word_that_may_be_a_boolean_is_refused_by_name(word: str) -> None:
    with pytest.raises(TunedConfigError, match=rf"f\.yaml:2: causal: found {word}; only true and false"):
        parse(f"a: 1\ncausal: {word}", "f.yaml")


@pytest.mark.case("cli-02")
def test_a_key_that_may_be_a_boolean_is_refused_by_name() -> None:
    with pytest.raises(TunedConfigError, match=r"f\.yaml:2: causal\.on: found on for a key"):
        parse("causal:\n  on: 1", "f.yaml")


@pytest.mark.case("cli-04")
@pytest.mark.parametrize(
    "value", ["64, 128", "064", "1:30", "3.10", "None", "'64'", "[64]", "true", "", "6_4", "64.0", "-64"]
)
@pytest.mark.parametrize("field", ["seqlen_q", "heads_q"])
def test_a_size_of_another_type_is_refused_by_name(field: str, value: str, tmp_path: Path) -> None:
    path = tmp_path / "workloads.yaml"
    path.write_text(workloads_text(**{field: value}))
    with pytest.raises(TunedConfigError, match=field) as caught:
        load_workloads(path)
    assert str(caught.value).startswith(f"{path}:")
    assert caught.value.exit_code == 2


@pytest.mark.case("cli-04")
@pytest.mark.parametrize("value", ["64, 128", "012", "1:30", "3.10", "None", "'64'", "true"])
def test_a_knob_of_another_type_is_refused_by_name(value: str) -> None:
    knobs = {"family": "tl", "BLOCK_M": "64", "BLOCK_N": value, "num_warps": "4", "num_stages": "2"}
    with pytest.raises(TunedConfigError, match=r"f\.yaml:3: BLOCK_N: found"):
        decode_config(parse("".join(f"{name}: {knob}\n" for name, knob in knobs.items()), "f.yaml"))


def test_the_text_that_these_tests_spoil_is_good(tmp_path: Path) -> None:
    (tmp_path / "workloads.yaml").write_text(workloads_text())
    assert load_workloads(tmp_path / "workloads.yaml") == (
        Workload(batch=1, heads_q=8, heads_kv=8, seqlen_q=64, seqlen_k=64),
    )
    config = decode_config(parse("family: tl\nBLOCK_M: 64\nBLOCK_N: 64\nnum_warps: 4\nnum_stages: 2\n", "f.yaml"))
    assert config == TlConfig(BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=2)


@pytest.mark.case("cli-04")
def test_the_command_line_exits_with_2_and_names_the_field(tmp_path: Path) -> None:
    if importlib.util.find_spec("flashgen.cli.main") is None:
        pytest.skip("not offered yet: cli-04 needs the command line")
    path = tmp_path / "workloads.yaml"
    path.write_text(workloads_text(seqlen_q="64, 128"))
    code = "from flashgen.cli.main import main; main()"
    arguments = ["tune", "--gpu", "nvidia-h200", "--workload", str(path), "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr[-2000:]
    assert "seqlen_q" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.case("cli-05")
@pytest.mark.parametrize(
    "name", ["1E6", "25921e05", "1e3", "0x10", "on", "null", "3.10", "1_000", "1:30", "012", ".inf", "~", ""]
)
def test_a_name_that_looks_like_something_else_reads_back_as_text(name: str) -> None:
    import yaml

    text = yaml.serialize(_node({"name": name, "names": [name]}))
    value = parse(text, "f.yaml").members(["name", "names"])
    assert value["name"].scalar(str) == name
    assert value["names"].items()[0].scalar(str) == name
    assert yaml.safe_load(text) == {"name": name, "names": [name]}, "another reader sees something else"


@pytest.mark.case("cli-05")
@pytest.mark.parametrize("number", [1e-7, 0.1 + 0.2, 1e16, 1e22, 123456789, 5e-324, 1e5, 100.0])
def test_a_number_reads_back_as_itself(number: float) -> None:
    import yaml

    text = yaml.serialize(_node({"x": number}))
    for back in (parse(text, "f.yaml").members(["x"])["x"].scalar(type(number)), yaml.safe_load(text)["x"]):
        assert (back, type(back)) == (number, type(number))


KILLED = """
import os, signal, sys
from pathlib import Path
from flashgen.store.atomic import replace_file

def kill_before_the_rename(written):
    assert written.read_bytes() == b"new" * 100000
    os.kill(os.getpid(), signal.SIGKILL)

replace_file(Path(sys.argv[1]), b"new" * 100000, kill_before_the_rename)
"""


@pytest.mark.case("cli-07")
def test_a_killed_run_leaves_the_previous_file(tmp_path: Path) -> None:
    path = tmp_path / "flash_attention.py"
    path.write_bytes(b"previous")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=environment, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    assert path.read_bytes() == b"previous"


@pytest.mark.case("cli-07")
def test_a_failing_run_leaves_the_previous_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "flash_attention.py"
    path.write_bytes(b"previous")

    def fail(written: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_file(path, b"new", fail)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [(path.name, b"previous")]


@pytest.mark.case("tuner-17")
def test_a_truncated_answer_is_asked_for_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    answer = Resources(shared_bytes=163840, registers=168, spill_bytes=0, num_warps=8)
    remember("key", answer)
    assert recall("key") == answer
    (stored,) = cache_dir().glob("compile/*.json")
    whole = stored.read_text()
    for length in range(len(whole)):
        stored.write_text(whole[:length])
        assert recall("key") is None, f"{length} of {len(whole)} characters were taken for an answer"
    remember("key", answer)
    assert recall("key") == answer
