"""`flashgen worker`: help for the tuning runs of a shared storage, from this or another host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from flashgen.cli import options
from flashgen.cli.output import note, print_json, print_line, warn
from flashgen.spec import AttentionSpec

if TYPE_CHECKING:
    from flashgen.tune.records import TrialRecord
    from flashgen.tune.result import TuneResult

INTERRUPTED = 130
STORAGE = "FLASHGEN_STORAGE"  # the option's variable: a process' arguments, and a password in them, are for all to see


@dataclass
class Tally:
    """A tune.Progress that counts what this worker tried, by spec, and says on stderr what it goes on to."""

    tried_by_spec: dict[str, int] = field(default_factory=dict)

    def started(self, spec: AttentionSpec, enumerated: int, fit: int, trials: int) -> None:
        note(f"{spec.key}: {enumerated} enumerated, {fit} may fit, {trials} to try together")

    def tried(self, spec: AttentionSpec, record: TrialRecord) -> None:
        self.tried_by_spec[spec.key] = self.tried_by_spec.get(spec.key, 0) + 1

    def step(self, spec: AttentionSpec, text: str) -> None:
        """A worker takes no further steps: those are the run's."""

    def ended(self, result: TuneResult) -> None:
        """A worker has no results: those are the run's."""


@click.command("worker")
@options.storage("Where the run keeps its studies.", required=True, envvar=STORAGE)
@click.option("--study", default="", metavar="NAME", help="The --study of the run.")
@options.gpu("auto", "`auto` is this machine's first GPU; or its index, or a name as in `flashgen gpus`.")
@options.timeout("Seconds until it ends in any case.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds for a run to come.",
)
@options.jobs
@click.option("--leader", default="", hidden=True, help="The process whose run it is for: tune's own workers have one.")
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    storage: str,
    study: str,
    gpu: str,
    timeout: float | None,
    wait_s: float,
    jobs: int,
    leader: str,
    as_json: bool,
) -> None:
    """Help `flashgen tune --storage URL --study NAME` from any host that reaches the storage: try configs of the
    kernels that it searches, one after the other, until it is done.

    The worker's GPU, versions and kernels must be the run's: with another GPU it exits 3, with others of the rest 6.
    For a run that predicts, --gpu names the GPU that the run is for; none need be here.
    """
    from flashgen.hardware.resolve import resolve
    from flashgen.tune import worker

    resolution = resolve(gpu, require_gpu=False)
    if resolution.warning:
        warn(resolution.warning)
    tally = Tally()
    request = worker.WorkRequest(
        storage=storage,
        study=study,
        target=resolution.target,
        present=resolution.present,
        index=resolution.index or 0,
        leader=leader,
        timeout_s=timeout,
        wait_s=wait_s,
        jobs=jobs,
    )
    ended = worker.work(request, tally)
    if as_json:
        print_json({"gpu": resolution.target.slug, "ended": ended.name.lower(), "tried": tally.tried_by_spec})
    else:
        for spec, count in tally.tried_by_spec.items():
            print_line(f"{spec}: {count} tried here")
        print_line(f"{sum(tally.tried_by_spec.values())} configs tried; {ended}")
    if ended is worker.Ended.INTERRUPTED:
        ctx.exit(INTERRUPTED)
