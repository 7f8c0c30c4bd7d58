"""Mutant: a fault that kernels have had, as one replacement in a template. Setting: what its kernel is rendered for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flashgen.codegen.candidate import candidate_source
from flashgen.families import FAMILIES
from flashgen.spec import AttentionSpec, Dtype, Op

_KNOBS: dict[Op, tuple[str, dict[str, int]]] = {
    "forward": ("tl", {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1}),
    "backward": (
        "tl_backward",
        {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1}
        | {"BLOCK_M_DQ": 32, "BLOCK_N_DQ": 32, "num_warps_dq": 4, "num_stages_dq": 1},
    ),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a kernel is rendered for."""

    op: Op = "forward"
    variant: str = "full"
    dtype: Dtype = "fp16"
    head_dim: int = 32
    knobs: Mapping[str, int | bool] = field(default_factory=dict)

    @property
    def spec(self) -> AttentionSpec:
        return AttentionSpec.of_variant(self.variant, dtype=self.dtype, head_dim=self.head_dim, op=self.op)

    def source(self) -> str:
        """The module that holds the kernel alone, rendered from the templates as they are now."""
        family, knobs = _KNOBS[self.op]
        return candidate_source(self.spec, FAMILIES[family].config(knobs | dict(self.knobs)))

    def __str__(self) -> str:
        return "-".join([self.op, self.variant, self.dtype, f"d{self.head_dim}", *self.knobs])


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """`old` stands in `template` exactly once; with `new` for it the kernel is wrong, or reads what it must not."""

    name: str
    template: str
    old: str
    new: str
    setting: Setting
    crashes: bool = False

    def plant(self, templates: Path) -> None:
        path = templates / self.template
        text = path.read_text()
        assert text.count(self.old) == 1, f"{self.template} holds {self.old!r} {text.count(self.old)} times, not once"
        path.write_text(text.replace(self.old, self.new))

    def __str__(self) -> str:
        return f"{self.setting.op} {self.setting.variant}: {self.name}"


def mutant(setting: Setting, name: str, template: str, old: str, new: str, crashes: bool = False) -> Mutant:
    return Mutant(name=name, template=template, old=old, new=new, setting=setting, crashes=crashes)
