"""How much of the exhaustive best a search at 10% of its trials finds: flashgen's study beside random order.

    python benchmarks/search_honesty.py benchmarks/data/exhaustive-nvidia-h200-d128-causal.json

Replays the recorded table, so it needs no GPU; writes search-honesty.json and .png to benchmarks/. The family's first
guesses and the cost model's constants were chosen with measurements from the same GPU model in view, so the curves with
guesses say what a user of that GPU gets; the one without says what the sampler does on a GPU that nobody has measured.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flashgen.families import TL
from flashgen.hardware.lookup import find_gpu
from flashgen.spec import AttentionSpec, Workload
from flashgen.tune.honesty import Regret, random_curve, regret_curve
from flashgen.tune.predicted import promising

SEEDS = range(20)
WORKLOAD = Workload(batch=4, heads_q=16, heads_kv=16, seqlen_q=4096, seqlen_k=4096)
HERE = Path(__file__).parent


def plot(curves: dict[str, tuple[Regret, ...]], tenth: int, document: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), dpi=150)
    for (name, curve), colour in zip(curves.items(), ("#d62728", "#1f77b4", "#2ca02c", "#999999")):
        trials = [point.trials for point in curve]
        axes.plot(trials, [100 * point.median for point in curve], color=colour, label=f"{name}, median of 20 seeds")
        axes.plot(trials, [100 * point.worst for point in curve], color=colour, ls=":", label=f"{name}, worst seed")
    axes.axvline(tenth, color="black", lw=0.8)
    axes.text(tenth + 0.3, 37, f"10% of {10 * tenth} configs", va="top", fontsize=8)
    axes.set(xlabel="configs tried", ylabel="slower than the exhaustive best, %", ylim=(-1, 40))
    axes.set_title(f"{document['spec']}, {document['workload']}, measured on {document['gpu']}", fontsize=9)
    axes.legend(fontsize=6, loc="center right")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("table", type=Path)
    source = parser.parse_args().table
    document = json.loads(source.read_text())
    mask = document["spec"].rsplit("-", 1)[1]
    head_dim = int(document["spec"].split("-")[2][1:])
    spec = AttentionSpec(dtype="bf16", head_dim=head_dim, head_dim_v=head_dim, causal=mask == "causal")
    target = find_gpu(document["gpu"])
    every = {TL.config(row["config"]): row["us"] for row in document["rows"]}
    table = {config: us for config, us in every.items() if TL.excluded(spec, config, target) is None}
    tenth = len(table) // 10
    trials = list(range(1, 2 * tenth + 1))
    known = TL.likely_good(spec, target)
    modelled = tuple(promising(list(table), spec, target, (WORKLOAD,), 8))
    curves = {
        "flashgen": regret_curve(table, spec, trials, SEEDS, known + modelled),
        "cost model's guesses only": regret_curve(table, spec, trials, SEEDS, modelled),
        "no guesses": regret_curve(table, spec, trials, SEEDS),
        "random order": random_curve(table, trials, SEEDS),
    }
    result = {
        "command": f"python benchmarks/search_honesty.py {source.name}",
        "configs": len(table),
        "tenth": tenth,
        "curves": {
            name: [asdict(point) for point in curve if point.trials in (tenth, 2 * tenth)]
            for name, curve in curves.items()
        },
    }
    (HERE / "search-honesty.json").write_text(json.dumps(result, indent=1) + "\n")
    plot(curves, tenth, document, HERE / "search-honesty.png")
    for name, curve in curves.items():
        at = curve[tenth - 1]
        print(
            f"{name}: after {tenth} of {len(table)} trials median {at.median:.1%}, worst {at.worst:.1%} from the best"
        )


if __name__ == "__main__":
    main()
