"""The kernel families, by name."""

from flashgen.families.base import Family, SharedTile
from flashgen.families.tl import TL, TlConfig

FAMILIES: dict[str, Family] = {family.name: family for family in (TL,)}

__all__ = ["FAMILIES", "TL", "Family", "SharedTile", "TlConfig"]
