"""Names of GPUs in an emitted module: for people, for commands, and as the pattern that finds a device's rules."""

from __future__ import annotations

import re

from flashgen.hardware.known import KNOWN

_MIG = "-mig-"
_BETWEEN_WORDS = "[^a-zA-Z0-9]+"


def device_name(slug: str) -> str:
    """The GPU's name for people: its first known one, else the slug."""
    return KNOWN[slug].device_names[0] if slug in KNOWN else slug


def short_name(slug: str) -> str:
    """What a user would type: the first alias, else the slug."""
    return KNOWN[slug].aliases[0] if slug in KNOWN else slug


def device_pattern(slug: str) -> str:
    """A regular expression over the whole name that a driver reports: the known names, else all that have this slug.

    A MIG slice has a slug of its own, and a whole GPU's pattern does not match its slices.
    """
    whole, is_slice, profile = slug.partition(_MIG)
    names = "|".join(map(_escaped, KNOWN[whole].device_names)) if whole in KNOWN else _spellings(whole)
    return f"(?:{names}) MIG {_spellings(profile)}" if is_slice else names


def _escaped(name: str) -> str:
    """`re.escape` without the backslashes that only a verbose expression needs."""
    return re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", name)


def _spellings(slug: str) -> str:
    """The names that hardware.lookup.slugify turns into `slug`. Older drivers leave the vendor out."""
    vendor, _, rest = slug.partition("-")
    if vendor not in ("nvidia", "amd") or not rest:
        return f"(?i:{slug.replace('-', _BETWEEN_WORDS)})"
    return f"(?i:(?:{vendor}{_BETWEEN_WORDS})?{rest.replace('-', _BETWEEN_WORDS)})"
