"""What a module holds must fit the GPUs that it may run on: found out before it is written, not by its user."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flashgen.codegen.device_names import short_name
from flashgen.errors import NoFeasibleConfig
from flashgen.hardware.known import KNOWN
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Reason, Rejected
from flashgen.resources.limits import over_limit
from flashgen.resources.portable import PORTABLE, SUPPORTED
from flashgen.resources.sram import exceeds
from flashgen.store.entry import TunedEntry


def require_fit(entries: Iterable[TunedEntry], slug: str, configs: Path) -> None:
    """Every rule of `slug` must fit that GPU; every portable one must fit all known GPUs that a family writes for.

    Nothing is compiled: a file says what its rules need, and the bound sees where a config was changed since.

    Raises:
        NoFeasibleConfig: names the rule, its bytes, the GPU and its limit, and the command that finds another.
    """
    targets = _smallest_first(slug)
    for entry in entries:
        if (over := next(filter(None, (_over(entry, target) for target in targets)), None)) is not None:
            raise NoFeasibleConfig(
                f"the {slug} rule {entry.label} ({entry.config.key}) does not fit: it {over.detail}\n"
                f"  next: {_tune_again(entry, slug)} --out {configs}"
            )


def _smallest_first(slug: str) -> list[GpuTarget]:
    """Those that rules of `slug` must fit. Of a GPU that is not known its own driver gave the limit to `tune`."""
    if slug == PORTABLE:
        return sorted(SUPPORTED, key=lambda target: target.smem_per_block)
    return [KNOWN[slug].target] if slug in KNOWN else []


def _over(entry: TunedEntry, target: GpuTarget) -> Rejected | None:
    recorded = over_limit(entry.resources, target)
    return recorded if recorded and recorded.reason is Reason.SRAM else exceeds(entry.spec, entry.config, target)


def _tune_again(entry: TunedEntry, slug: str) -> str:
    spec, dtypes = entry.spec, " ".join(f"--dtype {dtype}" for dtype in entry.dtypes)
    features = f" --feature {'+'.join(spec.features)}" if set(spec.features) - {"softcap"} else ""
    return f"flashgen tune --gpu {short_name(slug)} --op {spec.op} --head-dim {spec.head_dim} {dtypes}{features}"
