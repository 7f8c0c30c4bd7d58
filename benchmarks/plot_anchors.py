"""Draws TFLOP/s by row and contender from the samples that `flashgen bench` wrote, a panel for each pass and mask.

python benchmarks/plot_anchors.py benchmarks/h200/anchors-{forward,backward}.json benchmarks/h200-anchors.png
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

COLOURS = {
    "flashgen": "#d62728",
    "FlexAttention": "#1f77b4",
    "FA2 (SDPA)": "#aec7e8",
    "cuDNN (SDPA)": "#2ca02c",
    "FA4": "#ff7f0e",
}
MASKS = ("full", "causal")


def tflops(row: dict[str, Any], contender: str) -> float:
    """By the median of all samples; 0 where the contender was not timed."""
    rounds = next(timed["rounds"] for timed in row["timed"] if timed["contender"] == contender)
    samples = [us for taken in rounds for us in taken]
    return float(row["flops"]) / statistics.median(samples) * 1e-6 if samples else 0.0


def label(row: dict[str, Any]) -> str:
    """Such as `d128` over `q4096`."""
    return "\n".join((row["spec"].split("-")[2], row["workload"].split("-")[2]))


def passes_of(documents: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]], dict[str, str]]]:
    """(pass, its rows, facts of the run) for every pass of every run."""
    return [
        (name, [row for row in document["rows"] if row["pass"] == name], document["facts"])
        for document in documents
        for name in dict.fromkeys(row["pass"] for row in document["rows"])
    ]


def draw_panel(axes: Any, rows: list[dict[str, Any]]) -> None:
    timed = [each["contender"] for each in rows[0]["timed"]]
    names = [name for name in timed if any(tflops(row, name) for row in rows)]
    for number, name in enumerate(names):
        width = 0.8 / len(names)
        places = [index + (number - len(names) / 2) * width for index in range(len(rows))]
        axes.bar(places, [tflops(row, name) for row in rows], width, label=name, color=COLOURS.get(name))
    axes.set_xticks(range(len(rows)), [label(row) for row in rows], fontsize=7)


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    parser = argparse.ArgumentParser()
    parser.add_argument("samples", type=Path, nargs="+", help="one file a run")
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    runs = passes_of([json.loads(path.read_text()) for path in arguments.samples])
    figure, grid = plt.subplots(len(runs), 2, figsize=(13, 4.2 * len(runs)), dpi=110, sharey="row", squeeze=False)
    for panels, (name, rows, facts) in zip(grid, runs):
        for axes, mask in zip(panels, MASKS):
            draw_panel(axes, [row for row in rows if row["spec"].endswith(mask)])
            axes.set_title(f"{name}, {mask}, bf16, {facts['GPU']}, triton {facts['triton']}", fontsize=9)
        panels[0].set_ylabel("TFLOP/s")
        panels[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(arguments.picture)


if __name__ == "__main__":
    main()
