"""Family: one way to write the kernel. It declares its knobs, its constraints, its architectures and its template."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, ClassVar

from flashgen.config import KernelConfig, Knob
from flashgen.errors import SpecError
from flashgen.hardware.target import GpuTarget
from flashgen.spec import AttentionSpec, Op, Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedTile:
    """One tile that a kernel keeps in shared memory: `copies` of rows x columns elements of `element_bytes`."""

    name: str
    rows: int
    columns: int
    element_bytes: int
    copies: int = 1

    @property
    def total_bytes(self) -> int:
        return self.rows * self.columns * self.element_bytes * self.copies


@dataclass(frozen=True, kw_only=True, slots=True)
class PassShape:
    """One kernel's tiles: a program keeps `kept` rows (keys, or queries) and steps over `step` rows of the other side.

    A step multiplies kept x step scores with `matmul_columns` columns in all, into `accumulator_columns` fp32 columns a
    kept row beside the scores.
    """

    name: str
    kept: int
    step: int
    keeps_keys: bool
    num_warps: int
    num_stages: int
    matmul_columns: int
    accumulator_columns: int


class Family(ABC):
    """The interface that enumeration, fitting, rendering and launching go through; one instance a family."""

    name: ClassVar[str]
    op: ClassVar[Op]
    config_type: ClassVar[type[KernelConfig]]
    interpreted: ClassVar[bool] = True  # whether Triton's interpreter runs its kernels
    unordered: ClassVar[bool] = False  # whether terms of a sum come in any order, so that two runs may differ in bits

    @abstractmethod
    def unsupported(self, spec: AttentionSpec, target: GpuTarget) -> str | None:
        """Why this family cannot write `spec` for `target`, or None."""

    @abstractmethod
    def choices(self, spec: AttentionSpec, target: GpuTarget) -> dict[str, tuple[Knob, ...]]:
        """The values that each knob may take, in the order they are searched."""

    @abstractmethod
    def excluded(self, spec: AttentionSpec, config: KernelConfig, target: GpuTarget) -> str | None:
        """Why a combination of knobs makes no sense here (never for lack of memory), or None."""

    def is_idle(self, config: KernelConfig, workloads: Sequence[Workload]) -> bool:
        """Whether on these workloads a knob of `config` changes nothing, so that its default does as well."""
        return False

    @abstractmethod
    def shared_tiles(self, spec: AttentionSpec, config: KernelConfig, target: GpuTarget) -> tuple[SharedTile, ...]:
        """The tiles that must sit in shared memory at once: a lower bound, so that no config that fits is lost."""

    @abstractmethod
    def passes(self, spec: AttentionSpec, config: KernelConfig) -> tuple[PassShape, ...]:
        """The kernels that take the time, in the order they run."""

    @abstractmethod
    def kernel_templates(self, spec: AttentionSpec, config: KernelConfig) -> dict[str, str]:
        """Path of each kernel's skeleton, relative to templates/, by the kernel's role (`fwd`, `bwd_dq` ...)."""

    @abstractmethod
    def structure(self, spec: AttentionSpec, config: KernelConfig) -> str:
        """What tells two kernels of one variant apart by their lines: the suffix of the kernel's name, or ''."""

    @abstractmethod
    def likely_good(self, spec: AttentionSpec, target: GpuTarget) -> tuple[KernelConfig, ...]:
        """Configs worth trying first, best guess first."""

    def space(self, spec: AttentionSpec, target: GpuTarget) -> Iterator[KernelConfig]:
        """Every config that `excluded` lets through, in a fixed order."""
        if self.unsupported(spec, target) is not None:
            return
        choices = self.choices(spec, target)
        for values in product(*choices.values()):
            config = self.config(dict(zip(choices, values, strict=True)))
            if self.excluded(spec, config, target) is None:
                yield config

    def config(self, knobs: Mapping[str, Any]) -> KernelConfig:
        """The family's config from its knobs by name.

        Raises:
            SpecError: a knob that the family does not have, one that is missing, or one of the wrong type.
        """
        known = {f.name: f for f in fields(self.config_type) if f.name != "family"}
        if unknown := sorted(set(knobs) - set(known)):
            raise SpecError(f"family {self.name!r} has no knob {unknown[0]!r}; it has {', '.join(known)}")
        try:
            return self.config_type(family=self.name, **knobs)
        except TypeError as error:
            raise SpecError(f"family {self.name!r}: {error}") from None
