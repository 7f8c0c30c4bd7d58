"""How a kernel is tiled and launched: the knobs that every family has. A family's own knobs are in its subclass."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields

from flashgen.errors import SpecError

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

    def require_flags(self, *names: str) -> None:
        """Raises SpecError for the first of these knobs that is no bool."""
        for name in names:
            if not isinstance(getattr(self, name), bool):
                raise SpecError(f"{name} {getattr(self, name)!r} is neither true nor false")

    def require_positive(self, *names: str) -> None:
        """Raises SpecError for the first of these knobs that is no positive integer."""
        for name in names:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SpecError(f"{name} {value!r} is not a positive integer")

    def require_one_of(self, choices: Mapping[str, tuple[Knob, ...]]) -> None:
        """Raises SpecError for the first of these knobs that has none of its values; True is not 1."""
        for name, values in choices.items():
            value = getattr(self, name)
            if isinstance(value, bool) or value not in values:
                raise SpecError(f"{name} {value!r} is not one of {values}")

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
