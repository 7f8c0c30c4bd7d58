"""How a kernel is tiled and launched: the knobs that every family has. A family's own knobs are in its subclass."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields

Knob = int | bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelConfig:
    """The common knobs. `family` names the module in families/ whose subclass this is.

    BLOCK_M rows of Q and BLOCK_N rows of K and V make a tile; `num_warps` and `num_stages` are launch options.
    """

    family: str
    BLOCK_M: int
    BLOCK_N: int
    num_warps: int
    num_stages: int

    def knobs(self) -> dict[str, Knob]:
        """Every knob but the family, in declaration order: what the search varies and the YAML holds."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "family"}

    @property
    def key(self) -> str:
        """Readable and stable, such as `tl:BLOCK_M=128,BLOCK_N=64,num_warps=8`; unset knobs are left out."""
        shown = (f"{name}={int(value)}" for name, value in self.knobs().items() if value not in (None, False))
        return f"{self.family}:{','.join(shown)}"

    @property
    def digest(self) -> str:
        """Twelve hex digits over every knob, for file names and caches."""
        text = json.dumps([self.family, self.knobs()])
        return hashlib.sha256(text.encode()).hexdigest()[:12]
