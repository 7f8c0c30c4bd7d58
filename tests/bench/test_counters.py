"""Counting with a stand-in for ncu: what it is asked, and what becomes of its answer."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flashgen.bench.counters import Counted, count
from flashgen.bench.suites import suite
from tests.bench.test_ncu import listing

ROW = suite("paper")[0]
Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts an `ncu` on PATH that notes its arguments, one JSON list a call, and answers as it is told to."""

    def installed(out: str, err: str = "", code: int = 0) -> Path:
        asked, script = tmp_path / "asked", tmp_path / "ncu"
        program = (
            f"import json, sys\nopen({str(asked)!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')\n"
            f"print({out!r})\nprint({err!r}, file=sys.stderr)\nsys.exit({code})\n"
        )
        (tmp_path / "program.py").write_text(program)
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {tmp_path / "program.py"} "$@"\n')
        script.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        return asked

    return installed


def test_the_kernels_of_a_call_are_summed(install: Install) -> None:
    asked = install(listing("Gbyte", "Mbyte", ("1.5", "250"), ("0.5", "0")))
    (counted,) = count(Path("module.py"), "paper", ROW, ["flashgen"], "cuda:0")
    assert counted == Counted(contender="flashgen", bytes_read=2 * 10**9, bytes_written=25 * 10**7, kernels=2)
    assert counted.total == 2_250_000_000
    arguments = json.loads(asked.read_text())
    for option, value in (
        ("--metrics", "dram__bytes_read.sum,dram__bytes_write.sum"),
        ("--clock-control", "none"),
        ("--cache-control", "none"),
        ("--profile-from-start", "off"),
        ("--page", "raw"),
        ("--suite", "paper"),
        ("--row", ROW.key),
        ("--contender", "flashgen"),
        ("--device", "cuda:0"),
    ):
        assert arguments[arguments.index(option) + 1] == value
    child = arguments.index(sys.executable)
    assert arguments[child + 1 : child + 4] == ["-m", "flashgen.bench.counted", "module.py"]


def test_without_ncu_all_are_missing_for_one_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("flashgen.bench.ncu.find_ncu.__defaults__", ([(str(tmp_path), "ncu")],))
    counted = count(Path("module.py"), "paper", ROW, ["flashgen", "standard"], "cuda:0")
    assert [each.contender for each in counted] == ["flashgen", "standard"]
    assert all("no ncu on PATH" in each.missing and not each.kernels for each in counted)


def test_a_refusal_is_asked_for_once(install: Install) -> None:
    asked = install("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", code=1)
    counted = count(Path("module.py"), "paper", ROW, ["flashgen", "standard", "FA4"], "cuda:0")
    assert [each.missing[:16] for each in counted] == ["ERR_NVGPUCTRPERM"] * 3
    assert len(asked.read_text().splitlines()) == 1


def test_a_call_that_fails_is_the_only_one_missing(install: Install) -> None:
    asked = install("==WARNING== No kernels were profiled.", "Traceback:\nRuntimeError: out of memory\n", code=1)
    counted = count(Path("module.py"), "paper", ROW, ["flashgen", "standard"], "cuda:0")
    assert {each.missing for each in counted} == {"exit code 1 under ncu: RuntimeError: out of memory"}
    assert len(asked.read_text().splitlines()) == 2


def test_a_call_that_does_not_end_is_given_up_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, child = tmp_path / "ncu", tmp_path / "child"
    script.write_text(f"#!/bin/sh\n/bin/sleep 60 & echo $! > {child}\nwait\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("flashgen.bench.counters._TIMEOUT_S", 1)
    (counted,) = count(Path("module.py"), "paper", ROW, ["flashgen"], "cuda:0")
    assert counted.missing == "no answer under ncu in 1 s"
    deadline = time.monotonic() + 10
    while _runs(int(child.read_text())):
        assert time.monotonic() < deadline, "what ncu started still runs"
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False
