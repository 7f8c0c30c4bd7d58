"""`flashgen explain`: one config's bytes, registers and time, term by term."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flashgen.cli import options
from flashgen.cli.output import note, print_json, print_line, print_table, warn
from flashgen.errors import NoFeasibleConfig
from flashgen.outcome import Resources
from flashgen.resources.fit import HELD_OUT
from flashgen.spec import DTYPES, OPS, AttentionSpec, Dtype, Op

if TYPE_CHECKING:
    from flashgen.compiler.explanation import Explanation


@click.command("explain")
@options.gpu("auto", "GPU to explain for; it need not be here.")
@options.op(*OPS, default="forward")
@click.option("--head-dim", type=options.HEAD_DIM, default=128, show_default=True, metavar="N", help="Head dim.")
@click.option("--dtype", type=click.Choice(DTYPES), default="bf16", show_default=True, help="Dtype of q, k and v.")
@click.option("--causal/--no-causal", default=True, show_default=True, help="Whether the mask is causal.")
@click.option(
    "--config",
    metavar="FILE|KNOBS",
    help="A YAML file, or knobs such as BLOCK_M=128,BLOCK_N=64,num_warps=8,num_stages=2.  [default: the tuned config]",
)
@options.configs("Where tuned configs are looked for.")
@click.option("--workload", type=options.READABLE_FILE, metavar="FILE", help="YAML file of sizes; its first is taken.")
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    gpu: str,
    op: Op,
    head_dim: int,
    dtype: Dtype,
    causal: bool,
    config: str | None,
    configs: Path | None,
    workload: Path | None,
    as_json: bool,
) -> None:
    """Show where one config's shared memory, registers and time go, on a GPU that need not be here.

    The bound is arithmetic, the resources are the compiler's for that GPU, the time is a cost model's prediction, whose
    constants were fitted to the forward. Exits 4 if the config cannot run there.
    """
    from flashgen.assets import tuned_configs_dir
    from flashgen.cli.config_argument import config_for
    from flashgen.compiler.explanation import explain
    from flashgen.hardware.resolve import resolve
    from flashgen.store.strict_yaml import load_workloads
    from flashgen.tune.workloads import default_workloads

    spec = AttentionSpec(op=op, dtype=dtype, head_dim=head_dim, head_dim_v=head_dim, causal=causal)
    resolution = resolve(gpu, require_gpu=False)
    if gpu == "auto" and not resolution.present:
        warn(f"{resolution.warning}; explaining for {resolution.target.slug}")
    sizes = load_workloads(workload)[0] if workload else default_workloads(spec, "quick")[0]
    chosen = config_for(config, spec, resolution.target, sizes, configs or tuned_configs_dir())
    found = explain(spec, chosen, resolution.target, sizes)
    if as_json:
        print_json(_document(found))
    else:
        _print(found)
    if found.obstacle:
        note(f"this config cannot run on {found.target.slug}")
        ctx.exit(NoFeasibleConfig.exit_code)


def _print(found: Explanation) -> None:
    print_line(f"{found.spec.key} on {found.target.slug} ({found.target.arch}): {found.config.key}")
    rows = [(t.name, f"{t.rows} x {t.columns}", t.element_bytes, t.copies, t.total_bytes) for t in found.tiles]
    columns = ("tile", "elements", "bytes each", "copies", "bytes")
    title = "Shared memory, at least" if found.spec.op == "forward" else "Shared memory of the larger pass, at least"
    print_table(title, columns, [*rows, ("total", "", "", "", found.bound_bytes)], right=columns[1:])
    print_line(f"limit: {found.target.smem_per_block} bytes a block")
    print_line(found.obstacle if found.obstacle else _compiled_text(found))
    print_table("Time", ("term", "value"), _time_rows(found), right=("value",))
    if found.prediction is not None:
        print_line(str(HELD_OUT))


def _compiled_text(found: Explanation) -> str:
    assert isinstance(found.compiled, Resources)
    needs, over = found.compiled, found.compiled.shared_bytes - found.bound_bytes
    return (
        f"compiled: {needs.shared_bytes} bytes of shared memory ({over:+} against the bound), "
        f"{needs.registers} registers a thread, {needs.spill_bytes} bytes spilled\n"
        f"occupancy: {found.blocks_per_sm} blocks an SM, {(found.blocks_per_sm or 0) * needs.num_warps} warps"
    )


def _time_rows(found: Explanation) -> list[tuple[str, str]]:
    rows = [
        ("workload", found.workload.key),
        ("FLOPs", f"{found.flops:.4g}"),
        ("at the dense 16-bit peak", f"{found.mma_floor_us:.1f} us"),
        ("HBM bytes, at least", f"{found.hbm_bytes:.4g}"),
        ("at the peak of HBM", f"{found.hbm_floor_us:.1f} us"),
    ]
    if found.prediction is not None:
        for name, step in found.steps.items():
            for unit, cycles in asdict(step).items():
                rows.append((f"a tile step of {name}: {unit}", f"{cycles:.0f} cycles"))
        rows.append(("predicted", f"{found.prediction.us:.1f} us, bound by {found.prediction.bound}"))
        rows.append(("", f"{found.tflops:.1f} TFLOP/s"))
    return rows


def _document(found: Explanation) -> dict[str, Any]:
    compiled = "resources" if isinstance(found.compiled, Resources) else "rejected"
    return {
        "spec": found.spec.key,
        "op": found.spec.op,
        "gpu": found.target.slug,
        "config": {"family": found.config.family, **found.config.knobs()},
        "workload": asdict(found.workload),
        "tiles": [asdict(tile) | {"total_bytes": tile.total_bytes} for tile in found.tiles],
        "bound_bytes": found.bound_bytes,
        "limit_bytes": found.target.smem_per_block,
        "obstacle": found.obstacle,
        compiled: asdict(found.compiled),
        "blocks_per_sm": found.blocks_per_sm,
        "flops": found.flops,
        "hbm_bytes": found.hbm_bytes,
        "hbm_floor_us": found.hbm_floor_us,
        "mma_floor_us": found.mma_floor_us,
        "step_cycles": {name: asdict(step) for name, step in found.steps.items()},
        "prediction": asdict(found.prediction) if found.prediction else None,
        "tflops": found.tflops,
        "model": asdict(HELD_OUT),
    }
