from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from compare_tuners import command_of, judge, limit, parser, retime, run_tuner, show, write
from tuners.timeline import Event, Timeline


def tried(s: float, config: str, us: float | None) -> Event:
    return Event(s=s, kind="tried", config=config, us=us)


def measured(us: float) -> dict[str, Any]:
    return {"median_us": us, "low_us": us, "high_us": us, "samples": 96}


def document() -> dict[str, Any]:
    """The exhaustive search's own clock has `b` before `c`; the judge's has them the other way round."""
    whole = Timeline(
        name="exhaustive",
        knows="nothing, and tries all",
        anytime=True,
        wall_s=20.0,
        ended="finished",
        events=(tried(5.0, "a", 120.0), tried(6.0, "b", 99.0), tried(7.0, "c", 100.0), tried(8.0, "d", None)),
    )
    guided = Timeline(
        name="flashgen",
        knows="much",
        anytime=True,
        wall_s=10.0,
        ended="stopped at 10 s",
        events=(
            Event(s=1.5, kind="proof", took_s=0.5),
            tried(2.0, "c", 101.0),
            Event(s=9.0, kind="proof", took_s=1.25),
        ),
    )
    other = Timeline(
        name="Helion",
        knows="a space of its own",
        anytime=False,
        wall_s=30.0,
        ended="finished",
        events=(tried(10.0, "x", 98.0), Event(s=30.0, kind="answer", config="x")),
    )
    failed = Timeline(name="triton.autotune", knows="nothing", anytime=False, wall_s=3.0, ended="ImportError: no")
    return {
        "command": "python benchmarks/compare_tuners.py --out tuners.json",
        "gpu": "nvidia-h200",
        "spec": "forward-bf16-d128-causal",
        "workload": "b4-h16-q4096-k4096",
        "triton": "3.6.0",
        "torch": "2.11.0",
        "times": {"a": measured(120.0), "b": measured(102.0), "c": measured(100.0), "x": measured(90.0)},
        "untimed": "",
        "space": ["a", "b", "c", "d"],
        "timelines": [one.held() for one in (whole, guided, other, failed)],
    }


def test_tuners_are_judged_by_times_that_are_not_their_own() -> None:
    whole, guided, other, failed = judge(document())
    assert (whole["tried"], whole["rejected"], whole["answer"], whole["slower"]) == (4, 1, "b", 0.02)
    assert whole["within 3%"] == {"s": 6.0, "tried": 2, "of_exhaustive": 0.3}
    assert whole["within 1%"] is None
    assert guided["within 1%"] == {"s": 2.0, "tried": 1, "of_exhaustive": 0.1}
    assert (guided["proof_s"], guided["first_s"]) == (1.8, 2.0)
    assert (other["slower"], other["within 1%"]["s"]) == (-0.1, 30.0)
    assert (failed["tried"], failed["answer"], failed["within 3%"]) == (0, None, None)


def test_what_has_no_time_is_not_within_anything() -> None:
    found = document()
    del found["times"]["c"]
    found["times"]["b"] = {"reason": "timing", "detail": "no samples"}
    whole, guided, *_ = judge(found)
    assert whole["slower"] is whole["within 3%"] is guided["slower"] is guided["within 3%"] is None


def test_nothing_that_was_timed_leaves_rows_without_verdicts() -> None:
    rows = judge(document() | {"times": {}})
    assert [row["within 3%"] for row in rows] == [None] * 4


def test_table_and_figure_come_from_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tuners.json"
    show(write(document(), path), path)
    printed = capsys.readouterr().out
    text = path.with_suffix(".md").read_text()
    assert "| exhaustive | 4 | 20.0 | - | 5.0 | 6.0 | 30% | 2 | - | - | - | 2.0% | finished |" in text
    assert "| triton.autotune | 0 | 3.0 | - | - | - | - | - | - | - | - | - | ImportError: no |" in text
    assert "- flashgen knows much." in text
    assert printed.splitlines()[-1] in text
    assert json.loads(path.read_text())["rows"] == judge(document())


def test_arguments() -> None:
    given = parser().parse_args(["--out", "x.json", "--limit", "Helion=100", "--limit", "triton.autotune=80"])
    assert dict(given.limit) == {"Helion": 100.0, "triton.autotune": 80.0}
    assert (given.limit_s, given.total_s, given.only) == (60.0, 240.0, None)
    assert parser().parse_args(["--out", "x.json", "--only", "flashgen, no guesses"]).only == ["flashgen, no guesses"]
    for wrong in (["--out", "x", "--limit", "nobody=3"], ["--out", "x", "--redraw", "y"], []):
        with pytest.raises(SystemExit):
            parser().parse_args(wrong)
    with pytest.raises(argparse.ArgumentTypeError, match="flashgen"):
        limit("nobody=3")


def test_the_command_does_not_say_where_it_wrote_to() -> None:
    written = command_of(
        ["--out", "/somewhere/tuners.json", "--only", "flashgen, no guesses"], Path("/somewhere/tuners.json")
    )
    assert written == "python benchmarks/compare_tuners.py --out tuners.json --only 'flashgen, no guesses'"


def test_a_tuner_for_which_no_time_is_left_is_not_run(tmp_path: Path) -> None:
    one = run_tuner("exhaustive", tmp_path, 2.0, [])
    assert (one.ended, one.wall_s, one.events) == ("not run: no time was left", None, ())


def test_without_a_gpu_tuner_and_judge_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    one = run_tuner("exhaustive", tmp_path, 120.0, [])
    assert one.ended.startswith("NoUsableGpu: ")
    times, why = retime(["a"], ["a"], tmp_path, "restricted")
    assert times == {}
    assert "NoUsableGpu" in why or "next:" in why
