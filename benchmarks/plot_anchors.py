"""Draws TFLOP/s by row and contender from the samples that `flashgen bench` wrote.

python benchmarks/plot_anchors.py benchmarks/h200/anchors.json benchmarks/h200-forward.png
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

COLOURS = {"flashgen": "#d62728", "FlexAttention": "#1f77b4", "FA2 (SDPA)": "#aec7e8", "cuDNN (SDPA)": "#2ca02c"}


def _flops(row: dict[str, Any]) -> float:
    head_dim = int(row["spec"].split("-")[2][1:])
    sizes = {part[0]: part[1:] for part in row["workload"].split("-")}
    heads, seqlen = int(sizes["h"].split("x")[0]), int(sizes["q"])
    full = 4.0 * int(sizes["b"]) * heads * seqlen * seqlen * head_dim
    return full / 2 if row["spec"].endswith("causal") else full


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    parser = argparse.ArgumentParser()
    parser.add_argument("samples", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    document = json.loads(arguments.samples.read_text())
    figure, panels = plt.subplots(1, 2, figsize=(13, 4.2), dpi=130, sharey=True)
    for axes, mask in zip(panels, ("full", "causal")):
        rows = [row for row in document["rows"] if row["spec"].endswith(mask)]
        names = [
            t["contender"]
            for t in rows[0]["timed"]
            if any(c["rounds"] for r in rows for c in r["timed"] if c["contender"] == t["contender"])
        ]
        for offset, name in enumerate(names):
            rates = []
            for row in rows:
                rounds = next(t["rounds"] for t in row["timed"] if t["contender"] == name)
                samples = [us for taken in rounds for us in taken]
                rates.append(_flops(row) / statistics.median(samples) * 1e-6 if samples else 0.0)
            places = [index + (offset - len(names) / 2) * 0.8 / len(names) for index in range(len(rows))]
            axes.bar(places, rates, 0.8 / len(names), label=name, color=COLOURS.get(name))
        labels = [f"d{r['spec'].split('-')[2][1:]}\n{r['workload'].split('-')[2][1:]}" for r in rows]
        axes.set_xticks(range(len(rows)), labels, fontsize=7)
        axes.set_title(f"{mask}, bf16, {document['facts']['GPU']}, triton {document['facts']['triton']}", fontsize=9)
    panels[0].set_ylabel("TFLOP/s")
    panels[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(arguments.picture)


if __name__ == "__main__":
    main()
