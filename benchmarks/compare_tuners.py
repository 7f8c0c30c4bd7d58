"""How soon each of several tuners has a config within 3% and 1% of the best: flashgen's search beside exhaustive and
random search, triton.autotune over the same configs, and Helion's autotuner on an attention of its own.

    python benchmarks/compare_tuners.py --out benchmarks/h200/tuners.json
    python benchmarks/compare_tuners.py --redraw benchmarks/h200/tuners.json

The first needs a GPU, to itself: one tuner after another, each in a process of its own with cold caches and a limit on
its wall time; then all of their answers are timed together on one clock, and by these times they are judged. It writes
a table (.md) and a figure (.png) beside the JSON, from whose times the second judges and draws again. The figure needs
matplotlib.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import Any

from exhaustive import SPACES, SPEC, WORKLOAD
from tuners.methods import METHODS
from tuners.process import caches_of, events_of, last_lines, run
from tuners.retime import median_us
from tuners.timeline import Timeline, answers, held_within, replayed, worth_timing

from flashgen.compiler.toolchain import toolchain
from flashgen.hardware.resolve import resolve

Json = dict[str, Any]

WITHIN = (0.03, 0.01)
ORDERS = (1, 2, 3)  # of the replayed random searches
EXHAUSTIVE = "exhaustive"
JUDGE_S = 45  # kept for the judge: a process's start, some twenty kernels, a few hundred samples of each
LEAST_S = 10  # below it no tuner gets to its first config


def run_tuners(arguments: argparse.Namespace, folder: Path) -> list[Timeline]:
    end = time.monotonic() + arguments.total_s - JUDGE_S
    limits = dict(arguments.limit)
    timelines = []
    for name in arguments.only or METHODS:
        limit_s = min(limits.get(name, arguments.limit_s), end - time.monotonic())
        timelines.append(
            run_tuner(name, folder / slug(name), limit_s, ["--seed", str(arguments.seed), "--space", arguments.space])
        )
        print(f"{name}: {timelines[-1].ended}, {len(timelines[-1].tried)} tried", flush=True)
        if timelines[-1].ended != "finished":
            print(last_lines(folder / slug(name)), flush=True)
    return timelines


def run_tuner(name: str, folder: Path, limit_s: float, more: Sequence[str]) -> Timeline:
    method = METHODS[name]
    facts: Json = {"name": name, "knows": method.knows, "anytime": method.anytime}
    if limit_s < LEAST_S:
        return Timeline(**facts, wall_s=None, ended="not run: no time was left")
    options = ["--events", str(events_of(folder)), "--limit-s", f"{limit_s:.0f}", *more]
    ran = run([sys.executable, "-m", "tuners.methods", name, *options], folder, limit_s)
    return Timeline(**facts, wall_s=ran.wall_s, ended=ran.ended, events=ran.events)


def slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower())


def retime(wanted: Sequence[str], ours: Sequence[str], folder: Path, space: str) -> tuple[dict[str, Json], str]:
    """(times of `wanted` by name, why some have none): if it fails with all of them, of those that are `ours`."""
    failure = ""
    for number, names in enumerate((wanted, [name for name in wanted if name in ours])):
        configs, out = folder / "configs.json", folder / "times.json"
        configs.write_text(json.dumps(names))
        command = [sys.executable, "-m", "tuners.retime", str(configs), str(out), "--space", space]
        compiled = caches_of(folder / slug(EXHAUSTIVE))  # if that ran, it has compiled all of ours
        ran = run(command, folder / f"judge-{number}", 2 * JUDGE_S, compiled)
        if out.exists():
            return json.loads(out.read_text()), failure
        failure = ran.ended
        print(f"judge: {failure}\n{last_lines(folder / f'judge-{number}')}", flush=True)
    return {}, failure


def judge(document: Json) -> list[Json]:
    """A row for each tuner. The best is the fastest config of the space that was searched exhaustively; what has no
    time counts as infinitely slow."""
    timelines = list(map(Timeline.of, document["timelines"]))
    us, best_us = judged_by(document)
    whole = next((one.wall_s for one in timelines if one.name == EXHAUSTIVE and one.ended == "finished"), None)
    return [row_of(one, us, best_us, whole) for one in timelines]


def judged_by(document: Json) -> tuple[dict[str, float], float]:
    """(microseconds by config, those of the best)."""
    us = {name: median_us(held) for name, held in document["times"].items()}
    return us, min((us[name] for name in document["space"] if name in us), default=float("inf"))


def row_of(timeline: Timeline, us: Mapping[str, float], best_us: float, exhaustive_s: float | None) -> Json:
    given = answers(timeline)
    known = {answer.config: us.get(answer.config, float("inf")) for answer in given}
    last = known[given[-1].config] if given else float("inf")
    tried = timeline.tried
    row: Json = {
        "tuner": timeline.name,
        "knows": timeline.knows,
        "ended": timeline.ended,
        "wall_s": timeline.wall_s,
        "tried": len(tried),
        "rejected": sum(event.us is None for event in tried),
        "first_s": tried[0].s if tried else None,
        "proof_s": round(sum(event.took_s or 0.0 for event in timeline.events), 1),
        "answer": given[-1].config if given else None,
        "slower": round(last / best_us - 1, 4) if last < float("inf") else None,
    }
    for within in WITHIN:
        held = held_within(given, known, (1 + within) * best_us) if best_us < float("inf") else None
        share = held.s / exhaustive_s if held and held.s is not None and exhaustive_s else None
        row[f"within {within:.0%}"] = held and {
            "s": held.s,
            "tried": held.tried,
            "of_exhaustive": share and round(share, 3),
        }
    return row


def table(rows: Sequence[Json]) -> list[str]:
    heads = ["tuner", "tried", "wall, s", "of it proofs, s", "first time after, s"]
    for within in WITHIN:
        heads += [f"within {within:.0%} after, s", "of exhaustive", "configs"]
    heads += ["answer slower by", "ended"]
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        cells = [row["tuner"], row["tried"], number(row["wall_s"]), number(row["proof_s"] or None)]
        cells.append(number(row["first_s"]))
        for within in WITHIN:
            held = row[f"within {within:.0%}"] or {"s": None, "of_exhaustive": None, "tried": None}
            cells += [number(held["s"]), percent(held["of_exhaustive"], 0), number(held["tried"], 0)]
        lines.append([*cells, percent(row["slower"], 1), row["ended"]])
    return [f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |" for line in lines]


def number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def percent(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}%}"


def markdown(document: Json) -> str:
    rows = document["rows"]
    facts = f"{document['spec']}, {document['workload']}, {len(document['space'])} configs, {document['gpu']}"
    text = (
        f"{facts}; torch {document['torch']}, triton {document['triton']}. Seconds count from the start of a tuner's "
        "process, with cold caches. A tuner is within 3% or 1% from the first answer on after which every answer is, "
        "by times that were taken of all answers together after all tuners had ended, against the fastest of them. "
        "Exhaustive and random search answer with the best that they have tried so far, and so does flashgen until it "
        "has timed its finalists; triton.autotune and Helion answer when they are done. Of a tuner that was stopped, "
        "what it had tried counts. Only flashgen shows that what it chooses is exact: what is near the best by a few "
        "probes, and the winner thoroughly. Replayed orders have no seconds."
    )
    knows = [f"- {row['tuner']} knows {row['knows']}." for row in rows]
    notes = [f"Not all could be timed: {document['untimed']}", ""] if document["untimed"] else []
    head = ["# How soon tuners find the best", "", f"    {document['command']}", "", *wrap(text, 120), ""]
    return "\n".join([*head, *table(rows), "", *notes, *knows]) + "\n"


def draw(document: Json, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    us, best_us = judged_by(document)
    figure, axes = plt.subplots(figsize=(8, 4.5), dpi=150)
    for timeline in map(Timeline.of, document["timelines"]):
        points = [(one.s, 100 * (us[one.config] / best_us - 1)) for one in answers(timeline) if one.config in us]
        if not points or timeline.wall_s is None:
            continue
        points.append((timeline.wall_s, points[-1][1]))
        axes.step(*zip(*points), where="post", marker="o", markersize=3, lw=1.2, label=timeline.name)
    for within in WITHIN:
        axes.axhline(100 * within, color="black", lw=0.5, ls=":")
    axes.set(xscale="log", xlabel="seconds since the tuner began", ylabel="its answer: slower than the best, %")
    axes.set_ylim(-1, 40)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.set_title(f"{document['spec']}, {document['workload']}, {document['gpu']}", fontsize=9)
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)


def race(arguments: argparse.Namespace, folder: Path) -> Json:
    """All that the tuners did, not judged yet."""
    target = resolve("auto", require_gpu=True).target
    timelines = run_tuners(arguments, folder)
    whole = [one for one in timelines if one.name == EXHAUSTIVE and one.ended == "finished"]
    timelines += [replayed(one, seed) for one in whole for seed in ORDERS]
    versions = toolchain()
    return {
        "command": command_of(sys.argv[1:], arguments.out),
        "gpu": target.slug,
        "spec": SPEC.key,
        "workload": WORKLOAD.key,
        "triton": versions.triton,
        "torch": versions.torch,
        "times": {},
        "untimed": "",
        "space": [config.key for config in SPACES[arguments.space].space(SPEC, target)],
        "timelines": [one.held() for one in timelines],
    }


def command_of(arguments: Sequence[str], out: Path) -> str:
    """The command to run again, wherever it wrote to."""
    named = [argument.replace(str(out), out.name) for argument in arguments]
    return shlex.join(["python", "benchmarks/compare_tuners.py", *named])


def write(document: Json, path: Path) -> Json:
    """The document with its rows, as it is in the file now."""
    judged = document | {"rows": judge(document)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(judged, indent=1) + "\n")
    return judged


def show(document: Json, path: Path) -> None:
    """Writes the table and the figure beside `path`, and prints the table."""
    path.with_suffix(".md").write_text(markdown(document))
    try:
        draw(document, path.with_suffix(".png"))
    except ImportError as error:
        print(f"no figure ({error}); to draw it elsewhere: --redraw {path.name}")
    print("\n".join(table(document["rows"])))


def limit(text: str) -> tuple[str, float]:
    name, _, seconds = text.rpartition("=")
    if name not in METHODS:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SECONDS with a name of {', '.join(METHODS)}")
    return name, float(seconds)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    what = made.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="the JSON to write")
    what.add_argument("--redraw", type=Path, help="a JSON to write table and figure of again")
    made.add_argument("--only", action="append", choices=METHODS, help="a tuner to run; all unless given")
    made.add_argument("--limit-s", type=float, default=60.0, help="wall time of a tuner")
    made.add_argument("--limit", type=limit, action="append", default=[], metavar="NAME=SECONDS", help="of one of them")
    made.add_argument("--total-s", type=float, default=240.0, help="wall time of all, the judge included")
    made.add_argument("--space", choices=SPACES, default="restricted", help="what they search (default: %(default)s)")
    made.add_argument("--seed", type=int, default=0)
    return made


def main() -> None:
    arguments = parser().parse_args()
    if arguments.redraw:
        show(write(json.loads(arguments.redraw.read_text()), arguments.redraw), arguments.redraw)
        return
    with TemporaryDirectory() as name:
        folder = Path(name)
        document = write(race(arguments, folder), arguments.out)  # kept, whatever becomes of the judge
        wanted = worth_timing([Timeline.of(held) for held in document["timelines"]], max(WITHIN))
        times, untimed = (
            retime(wanted, document["space"], folder, arguments.space) if wanted else ({}, "there are no answers")
        )
    show(write(document | {"times": times, "untimed": untimed}, arguments.out), arguments.out)


if __name__ == "__main__":
    main()
