"""Which stored trials may be mixed: those of one space, one toolchain and the same workloads, all in a study's name."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from flashgen.outcome import Toolchain
from flashgen.spec import AttentionSpec, Workload
from flashgen.store.evidence import EvidenceKind
from flashgen.tune.fleet import Fleet
from flashgen.tune.space import Space
from flashgen.tune.storage import open_storage
from flashgen.tune.study import Study

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

# User attributes of a study: what its name's digest is over, and what whoever joins it must know besides.
_FACTS, _IDENTITY, _BUDGET = "facts", "identity", "budget"


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """What the trials of one study have in common. `label` is the user's name for it, or ''."""

    label: str
    spec: AttentionSpec
    family: str
    gpu: str
    kind: EvidenceKind
    workloads: tuple[Workload, ...]
    toolchain: Toolchain

    @property
    def prefix(self) -> str:
        """Such as `forward-bf16-d128-causal tl nvidia-h200 measured`."""
        return " ".join(part for part in (self.label, self.spec.key, self.family, self.gpu, self.kind) if part)

    def facts(self, space: Space) -> dict[str, Any]:
        """What may change between two runs that look alike."""
        facts = {f"knob {name}": list(values) for name, values in space.choices.items()}
        return facts | {"workloads": [each.key for each in self.workloads]} | asdict(self.toolchain)

    @classmethod
    def of(cls, held: dict[str, Any]) -> Identity:
        """The identity that `held` was made of, by `asdict` and through JSON."""
        parts = {
            "spec": AttentionSpec(**held["spec"]),
            "workloads": tuple(Workload(**sizes) for sizes in held["workloads"]),
            "toolchain": Toolchain(**held["toolchain"]),
        }
        return cls(**(held | parts))

    def name(self, space: Space) -> str:
        text = json.dumps(self.facts(space), sort_keys=True)
        return f"{self.prefix} {hashlib.sha256(text.encode()).hexdigest()[:10]}"


def open_study(
    identity: Identity, space: Space, fleet: Fleet, seed: int, budget: int, *, fresh: bool = False
) -> tuple[Study, tuple[str, ...]]:
    """The study of `space`, resumed if the fleet's storage holds it, and notes about what was found there. `budget` is
    the number of configs that whoever joins it is to try, all in all. A `fresh` one begins without stored trials.

    Raises:
        OutputError: the storage cannot be written.
    """
    name, facts = identity.name(space), identity.facts(space)
    notes = _left_aside(identity.prefix, name, facts, fleet.storage.optuna)
    if fresh:
        fleet.storage.drop(name)
    optuna_study = fleet.storage.study(name)
    for key, value in ((_FACTS, facts), (_IDENTITY, asdict(identity)), (_BUDGET, budget)):
        optuna_study.set_user_attr(key, value)
    study = Study(identity.spec, space, optuna_study, seed, fleet)
    reaped = study.reap()
    if tried := len(study.records()):
        notes += (f"resumed {name}: {tried} trials are reused; --force tries them again",)
    if reaped:
        notes += (f"{reaped} trials of a process that was killed are free to be tried again",)
    return study, notes


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """What `open_study` left for those who join. `held` can be read once `facts` say that it is of this flashgen.

    `id` is the storage's: a study that was begun afresh has another.
    """

    id: int
    facts: dict[str, Any]
    budget: int
    held: dict[str, Any]

    @property
    def identity(self) -> Identity:
        return Identity.of(self.held)


def stored(name: str, storage: BaseStorage) -> Stored:
    """What the study `name` says of itself."""
    study_id = storage.get_study_id_from_name(name)
    attributes = storage.get_study_user_attrs(study_id)
    return Stored(id=study_id, facts=attributes[_FACTS], budget=attributes[_BUDGET], held=attributes[_IDENTITY])


def new_study(spec: AttentionSpec, space: Space, seed: int) -> Study:
    """A study of its own in memory."""
    with open_storage(None) as storage:
        return Study(spec, space, storage.study(spec.key), seed, Fleet(storage))


def _left_aside(prefix: str, name: str, facts: dict[str, Any], storage: BaseStorage) -> tuple[str, ...]:
    """A note for each stored study that looks like this one and may not be mixed with it, and which facts differ."""
    notes = []
    for other in storage.get_all_studies():
        if other.study_name == name or other.study_name.rpartition(" ")[0] != prefix:
            continue
        changes = "; ".join(differing(other.user_attrs.get(_FACTS, {}), facts))
        notes.append(f"a new study begins: the trials of {other.study_name!r} don't apply ({changes})")
    return tuple(notes)


def differing(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Each fact that differs, with both values."""
    return [f"{key} {old.get(key)} -> {new.get(key)}" for key in {**old, **new} if old.get(key) != new.get(key)]
