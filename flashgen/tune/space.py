"""The configs that a search chooses from: what a family enumerates, less what cannot fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flashgen.config import KernelConfig, Knob
from flashgen.families import Family
from flashgen.hardware.target import GpuTarget
from flashgen.outcome import Rejected
from flashgen.resources.sram import exceeds
from flashgen.spec import AttentionSpec, Workload

Knobs = tuple[Knob, ...]


@dataclass(frozen=True, kw_only=True)
class Space:
    """`configs` may fit, by the analytic bound; `rejected` certainly don't. Both are in the family's own order."""

    configs: tuple[KernelConfig, ...]
    rejected: tuple[tuple[KernelConfig, Rejected], ...] = ()
    choices: dict[str, Knobs] = field(init=False)
    _by_knobs: dict[Knobs, KernelConfig] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rows = [config.knobs() for config in self.configs]
        names = list(rows[0]) if rows else []
        # Only values that some config has: a sampler offered others would waste its suggestions.
        choices = {name: tuple(dict.fromkeys(row[name] for row in rows)) for name in names}
        object.__setattr__(self, "choices", choices)
        object.__setattr__(self, "_by_knobs", {tuple(row.values()): c for row, c in zip(rows, self.configs)})

    @property
    def enumerated(self) -> int:
        return len(self.configs) + len(self.rejected)

    def find(self, knobs: dict[str, Knob]) -> KernelConfig | None:
        """The config with these knobs, or None where the space has none."""
        return (
            self._by_knobs.get(tuple(knobs[name] for name in self.choices))
            if self.choices.keys() <= knobs.keys()
            else None
        )


def space_of(family: Family, spec: AttentionSpec, target: GpuTarget, workloads: Sequence[Workload]) -> Space:
    """Every config of `family` for `spec` on `target` that these workloads tell from others, sorted out by the SRAM
    bound."""
    fit: list[KernelConfig] = []
    rejected: list[tuple[KernelConfig, Rejected]] = []
    for config in family.space(spec, target):
        if family.is_idle(config, workloads):
            continue
        if (too_big := exceeds(spec, config, target)) is None:
            fit.append(config)
        else:
            rejected.append((config, too_big))
    return Space(configs=tuple(fit), rejected=tuple(rejected))


def differences(a: KernelConfig, b: dict[str, Knob]) -> int:
    """How many knobs of `a` have another value in `b`."""
    return sum(value != b.get(name) for name, value in a.knobs().items())
