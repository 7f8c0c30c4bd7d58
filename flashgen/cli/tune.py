"""`flashgen tune`: the funnel, and its rules in tuned_configs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from flashgen.cli import options
from flashgen.cli.output import print_json, warn
from flashgen.errors import NoFeasibleConfig, SpecError
from flashgen.families import FAMILIES, Family, serving
from flashgen.spec import OPS, Dtype, Op
from flashgen.store.directory import PORTABLE
from flashgen.tune.workloads import TRIALS, Preset
from flashgen.variants import PLAIN, SOFTCAP, FeatureSet, variants_of

if TYPE_CHECKING:
    from flashgen.cli.tune_watch import TuneWatch
    from flashgen.hardware.resolve import Resolution
    from flashgen.spec import AttentionSpec
    from flashgen.store.entry import TunedEntry
    from flashgen.tune.result import TuneResult

INTERRUPTED = 130
_FIXED = ("family", "workload", "preset", "trials", "timeout")
_NOT_FOR_PORTABLE = (*_FIXED, "storage", "study", "force", "workers", "require_gpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """The command's options."""

    gpu: str
    op: Literal["forward", "backward", "all"]
    dtypes: tuple[Dtype, ...]
    head_dims: tuple[int, ...]
    causal: bool | None
    window: bool | None
    features: tuple[FeatureSet, ...]
    family: tuple[str, ...]
    workload: Path | None
    preset: Preset
    trials: int | None
    timeout: float | None
    storage: str | None
    study: str
    force: bool
    workers: int | None
    seed: int
    jobs: int
    out: Path
    require_gpu: bool
    as_json: bool

    @property
    def ops(self) -> tuple[Op, ...]:
        return OPS if self.op == "all" else (self.op,)

    def specs(self, held: Sequence[TunedEntry]) -> tuple[AttentionSpec, ...]:
        """What to tune; beside features, of the plain kernels those that no rule of `held` is for."""
        from flashgen.tune.request import unserved

        masks = {None: ("full", "causal"), True: ("causal",), False: ("full",)}[self.causal]
        # The kernels for windows take over the finalists of the causal search, so that they cost little beside it.
        windows = self.causal is not False if self.window is None else self.window
        masks = (*masks, "window") if windows else masks
        plain = self._specs_of(variants_of(masks, (PLAIN, SOFTCAP) if windows else (PLAIN,)))
        if not self.features:
            return plain
        return (*unserved(plain, held), *self._specs_of(variants_of(masks, self.features)))

    def _specs_of(self, variants: Sequence[str]) -> tuple[AttentionSpec, ...]:
        from flashgen.tune.request import USUAL_HEAD_DIMS, specs_of

        return specs_of(self.head_dims or USUAL_HEAD_DIMS, self.dtypes or ("bf16", "fp16"), variants, self.ops)

    def chosen_families(self) -> dict[str, Family]:
        """Those of --family, or all.

        Raises:
            SpecError: an op that none of them writes.
        """
        chosen = {name: FAMILIES[name] for name in self.family or FAMILIES}
        if missing := [op for op in self.ops if not serving(op, chosen)]:
            able = ", ".join(serving(missing[0]))
            raise SpecError(
                f"--family {' --family '.join(chosen)}: none writes {missing[0]} kernels; next: add one of {able}, "
                f"or tune the other pass alone with --op"
            )
        return chosen

    def held(self, slug: str, *, present: bool) -> tuple[TunedEntry, ...]:
        """The rules for a GPU that are in --out or shipped, and as good as those that this run makes."""
        from flashgen.codegen.sources import joined, rule_sources
        from flashgen.tune.request import lending

        rules = [entry for op in self.ops for entry in joined(rule_sources(self.out, slug, op))]
        return lending(rules, present=present)

    def command(self, gpu: str) -> str:
        """What makes the same rules again; without what only says where, how fast and in how many goes."""
        parts = [f"flashgen tune --gpu {gpu}"]
        parts += [f"--op {self.op}"] if self.op != "all" else []
        parts += [f"--head-dim {head_dim}" for head_dim in self.head_dims]
        parts += [f"--dtype {dtype}" for dtype in self.dtypes]
        parts += [] if self.causal is None else ["--causal" if self.causal else "--no-causal"]
        parts += [] if self.window is None else ["--window" if self.window else "--no-window"]
        parts += [f"--feature {'+'.join(features)}" for features in self.features]
        parts += [f"--family {family}" for family in self.family]
        parts += [f"--workload {self.workload.name}"] if self.workload else []
        parts += [f"--preset {self.preset}"] if self.preset != "quick" else []
        parts += [f"--trials {self.trials}"] if self.trials else []
        parts += [f"--seed {self.seed}"] if self.seed else []
        return " ".join(parts)


@click.command("tune")
@options.gpu("auto", "GPU to tune for: `auto` is this machine's, `portable` stands for all; see `flashgen gpus`.")
@options.op(*OPS, "all", default="all")
@options.dtypes
@options.head_dims
@click.option("--causal/--no-causal", default=None, help="Only the causal mask, or only no mask  [default: both]")
@click.option("--window/--no-window", default=None, help="Windows and softcap too  [default: unless --no-causal]")
@options.features
@click.option(
    "--family",
    multiple=True,
    type=click.Choice(tuple(FAMILIES)),
    help="Only these kernels; may be repeated  [default: all that the GPU runs]",
)
@click.option("--workload", type=options.READABLE_FILE, metavar="FILE", help="YAML file of the sizes to tune on.")
@click.option(
    "--preset",
    type=click.Choice(tuple(TRIALS)),
    default="quick",
    show_default=True,
    help="Sizes, budget.",
)
@click.option(
    "--trials", type=click.IntRange(min=1), metavar="N", help="Configs to try a kernel  [default: the preset's]"
)
@options.timeout("Seconds for the whole run.")
@options.storage("Keep the studies here: an interrupted run goes on, and workers may join.")
@click.option("--study", default="", metavar="NAME", help="Name of the studies in --storage.")
@click.option("--force", is_flag=True, help="Try again what --storage holds, and what is known to crash or hang.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Searching processes  [default: one a GPU of the model]",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the sampler and the proofs.")
@options.jobs
@click.option("--out", type=options.DIRECTORY, default="tuned_configs", show_default=True, help="Where the rules go.")
@click.option("--require-gpu", is_flag=True, help="Exit 3 rather than predict where the GPU cannot be used.")
@options.as_json
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Find the fastest exact attention kernels for a GPU, and write them to DIR/<gpu>/forward.yaml and backward.yaml.

    Without the GPU everything but the clock is real: kernels are compiled for it and proven in Triton's interpreter;
    times are predicted, and the file says so. Rules that DIR holds for other cases are kept. Kernels with features, and
    those for windows, take over the configs of the kernels without: this run's, else those of DIR or the shipped ones.
    With --feature, kernels without features that have rules there already are not tuned again.

    Each further GPU of the model in this machine gets a process that tries configs too; `flashgen worker` brings those
    of other machines to a shared --storage.
    """
    asked = Asked(**given)
    results, watch = _tune_portable(ctx, asked) if asked.gpu == PORTABLE else _tune_gpu(asked)
    watch.warn_of_failures(results)
    if asked.as_json:
        print_json(watch.document(results))
    else:
        watch.print_summary(results)
    if any(result.interrupted for result in results):
        ctx.exit(INTERRUPTED)
    ctx.exit(NoFeasibleConfig.exit_code if not all(result.entries for result in results) else 0)


def _tune_gpu(asked: Asked) -> tuple[tuple[TuneResult, ...], TuneWatch]:
    from flashgen.cli.local_workers import local_workers, other_gpus
    from flashgen.codegen.device_names import short_name
    from flashgen.compiler.crosscompile import start_compilers
    from flashgen.hardware.resolve import resolve
    from flashgen.store.strict_yaml import load_workloads
    from flashgen.tune.request import TuneRequest
    from flashgen.tune.run import tune

    workloads = load_workloads(asked.workload) if asked.workload else ()
    start_compilers()  # they import torch while this process does, to look for the GPU
    resolution = resolve(asked.gpu, asked.require_gpu)
    slug = resolution.target.slug
    watch = _watch(asked, slug, short_name(slug), resolution)
    held = asked.held(slug, present=resolution.present)
    others = other_gpus(resolution, asked.workers)
    jobs = max(1, asked.jobs // (1 + len(others)))
    request = TuneRequest(
        target=resolution.target,
        present=resolution.present,
        index=resolution.index or 0,
        specs=asked.specs(held),
        families=asked.chosen_families(),
        workloads=workloads,
        preset=asked.preset,
        trials=asked.trials,
        timeout_s=asked.timeout,
        study=asked.study,
        force=asked.force,
        seed=asked.seed,
        held=held,
        jobs=jobs,
    )
    with watch, local_workers(others, asked.storage, asked.study, jobs) as storage:
        return tune(replace(request, storage=storage), watch), watch


def _tune_portable(ctx: click.Context, asked: Asked) -> tuple[tuple[TuneResult, ...], TuneWatch]:
    from flashgen.tune.portable import tune_portable

    for name in _NOT_FOR_PORTABLE:
        if ctx.get_parameter_source(name) not in (click.core.ParameterSource.DEFAULT, None):
            option = name.replace("_", "-")
            raise click.UsageError(f"--{option} is not for --gpu portable, whose kernels, sizes and budget are fixed")
    watch = _watch(asked, PORTABLE, PORTABLE)
    held = asked.held(PORTABLE, present=False)
    with watch:
        specs = asked.specs(held)
        return tune_portable(specs, jobs=asked.jobs, seed=asked.seed, held=held, progress=watch), watch


def _watch(asked: Asked, slug: str, name: str, resolution: Resolution | None = None) -> TuneWatch:
    from flashgen.cli.tune_watch import TuneWatch
    from flashgen.store.record import RuleFile

    files = {op: RuleFile(directory=asked.out, gpu=slug, op=op, command=asked.command(name)) for op in asked.ops}
    for file in files.values():
        file.check()
    warning = resolution.warning if resolution else None
    if warning:
        warn(warning)
    measured = resolution is not None and resolution.present
    return TuneWatch(files=files, measured=measured, warning=warning, quiet=asked.as_json)
