"""What a user asks of an emitted module."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flashgen.codegen.device_names import short_name
from flashgen.spec import MASKS, OPS, Dtype, Op
from flashgen.store.directory import PORTABLE
from flashgen.variants import PLAIN, SOFTCAP, FeatureSet, variants_of

EmitOp = Literal["forward", "all"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EmitRequest:
    """A module for `gpus` (slugs; none: portable rules only), from the rules in `configs`, else from the shipped ones.

    `op` is `forward`, or `all` for gradients too. `head_dims` and `dtypes` are those to serve; empty, all that the
    GPUs' forward rules do. Every mask is served as it is and with each set of `features`. The softcap kernel masks by
    window bounds, so that it comes with the window kernel only.
    """

    gpus: tuple[str, ...]
    configs: Path
    op: EmitOp = "all"
    head_dims: tuple[int, ...] = ()
    dtypes: tuple[Dtype, ...] = ()
    window: bool = True
    softcap: bool = True
    features: tuple[FeatureSet, ...] = ()

    @property
    def ops(self) -> tuple[Op, ...]:
        return OPS if self.op == "all" else (self.op,)

    @property
    def variants(self) -> tuple[str, ...]:
        """Raises SpecError for a set of features that no mask here is written with."""
        masks = MASKS if self.window else ("full", "causal")
        softcap = (SOFTCAP,) if self.window and self.softcap else ()
        return variants_of(masks, (PLAIN, *softcap, *self.features))

    @property
    def command(self) -> str:
        """What makes the module again, but for the paths, which differ from one checkout to another."""
        parts = ["flashgen emit"]
        parts += [f"--gpu {short_name(slug)}" for slug in sorted(set(self.gpus)) or [PORTABLE]]
        parts += [f"--op {self.op}"] if self.op != "all" else []
        parts += [f"--head-dim {head_dim}" for head_dim in sorted(set(self.head_dims))]
        parts += [f"--dtype {dtype}" for dtype in sorted(set(self.dtypes))]
        parts += ["--no-window"] if not self.window else [] if self.softcap else ["--no-softcap"]
        parts += [f"--feature {'+'.join(features)}" for features in sorted(set(self.features))]
        return " ".join(parts)
