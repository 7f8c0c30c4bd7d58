"""A public case as data, read from cases.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

CASES_FILE = Path(__file__).with_name("cases.yaml")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of cases.yaml; shapes are None for cases that compute no attention. `window` bounds are inclusive."""

    id: str
    kind: str
    source: str
    op: str
    batch: int | None
    seqlen_q: int | None
    seqlen_k: int | None
    heads_q: int | None
    heads_kv: int | None
    head_dim: int | None
    dtype: str | None
    causal: bool | None
    window: tuple[int, int] | None
    softcap: float | None
    notes: str
    expect: str
    where: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    def but(self, changes: Mapping[str, Any]) -> Case:
        """This case with other fields: `seqlen` is both lengths, what is no field goes to `extra`, None removes it."""
        changes = dict(changes)
        if (seqlen := changes.pop("seqlen", None)) is not None:
            changes |= {"seqlen_q": seqlen, "seqlen_k": seqlen}
        known = {name: value for name, value in changes.items() if name in self.__dataclass_fields__}
        extra = {**self.extra, **{name: value for name, value in changes.items() if name not in known}}
        return replace(self, **known, extra={name: value for name, value in extra.items() if value is not None})

    def given(self, name: str) -> Any:
        """A field that cases of attention have and others do not."""
        value = getattr(self, name)
        assert value is not None, f"{self.id} computes no attention: it has no {name}"
        return value

    @property
    def features(self) -> tuple[str, ...]:
        """What else changes scores or probabilities, in the words of a kernel's variant."""
        keys = {"bias": {"bias", "bias_row"}, "dropout": {"dropout"}}
        return tuple(feature for feature in keys if not keys[feature].isdisjoint(self.extra))

    @property
    def tokens(self) -> tuple[str, ...]:
        """What is expected, first token first: the parts of `expect` between semicolons."""
        return tuple(part.strip() for part in self.expect.split(";"))


@cache
def load_cases() -> tuple[Case, ...]:
    rows = yaml.safe_load(CASES_FILE.read_text(encoding="utf-8"))
    return tuple(Case(**row | {"window": row["window"] and tuple(row["window"])}) for row in rows)


def case_of(case_id: str) -> Case:
    (found,) = (case for case in load_cases() if case.id == case_id)
    return found
