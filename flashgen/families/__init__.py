"""The kernel families, by name."""

from collections.abc import Mapping

from flashgen.families.base import Family, PassShape, SharedTile
from flashgen.families.gluon_sm90 import GLUON_SM90, GLUON_TRITONS, GluonSm90Config
from flashgen.families.gluon_sm90_backward import GLUON_SM90_BACKWARD, GluonSm90BackwardConfig
from flashgen.families.tl import TL, TlConfig
from flashgen.families.tl_backward import TL_BACKWARD, TlBackwardConfig
from flashgen.spec import Op

FAMILIES: dict[str, Family] = {family.name: family for family in (TL, GLUON_SM90, TL_BACKWARD, GLUON_SM90_BACKWARD)}


def serving(op: Op, families: Mapping[str, Family] = FAMILIES) -> dict[str, Family]:
    """Those of `families` that write `op`, by name."""
    return {name: family for name, family in families.items() if family.op == op}


__all__ = [
    "FAMILIES",
    "GLUON_SM90",
    "GLUON_SM90_BACKWARD",
    "GLUON_TRITONS",
    "TL",
    "TL_BACKWARD",
    "Family",
    "GluonSm90BackwardConfig",
    "GluonSm90Config",
    "PassShape",
    "SharedTile",
    "TlBackwardConfig",
    "TlConfig",
    "serving",
]
