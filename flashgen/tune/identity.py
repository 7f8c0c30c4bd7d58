"""Which stored trials may be mixed: those of one space, one toolchain and the same workloads, all in a study's name."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashgen.outcome import Toolchain
from flashgen.spec import AttentionSpec, Workload
from flashgen.store.evidence import EvidenceKind
from flashgen.tune.space import Space
from flashgen.tune.storage import open_storage
from flashgen.tune.study import Study

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

_FACTS = "facts"  # user attribute of a study: what its name's digest is over


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

    def name(self, space: Space) -> str:
        text = json.dumps(self.facts(space), sort_keys=True)
        return f"{self.prefix} {hashlib.sha256(text.encode()).hexdigest()[:10]}"


def open_study(identity: Identity, space: Space, storage: Path | None, seed: int) -> tuple[Study, tuple[str, ...]]:
    """The study of `space`, resumed if `storage` holds it, and notes about what was found there.

    Raises:
        OutputError: `storage` cannot be written, or is a file of another kind.
    """
    kept, notes = open_storage(storage)
    name, facts = identity.name(space), identity.facts(space)
    notes += _left_aside(identity.prefix, name, facts, kept)
    optuna_study = _create(name, kept)
    optuna_study.set_user_attr(_FACTS, facts)
    study = Study(identity.spec, space, optuna_study, seed)
    reaped = study.reap()
    if tried := len(study.records()):
        notes += (f"resumed {name}: {tried} trials are kept",)
    if reaped:
        notes += (f"{reaped} trials of a process that was killed are free to be tried again",)
    return study, notes


def new_study(spec: AttentionSpec, space: Space, seed: int) -> Study:
    """A study of its own in memory."""
    kept, _ = open_storage(None)
    return Study(spec, space, _create(spec.key, kept), seed)


def _create(name: str, storage: BaseStorage) -> Any:
    import optuna

    # Optuna announces each study on stderr; what a user should see is in the notes.
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(study_name=name, storage=storage, load_if_exists=True, direction="minimize")
    finally:
        optuna.logging.set_verbosity(level)


def _left_aside(prefix: str, name: str, facts: dict[str, Any], storage: BaseStorage) -> tuple[str, ...]:
    """A note for each stored study that looks like this one and may not be mixed with it, and which facts differ."""
    notes = []
    for other in storage.get_all_studies():
        if other.study_name == name or other.study_name.rpartition(" ")[0] != prefix:
            continue
        old = other.user_attrs.get(_FACTS, {})
        changes = [
            f"{key} {old.get(key)} -> {facts.get(key)}" for key in {**old, **facts} if old.get(key) != facts.get(key)
        ]
        notes.append(f"a new study begins: the trials of {other.study_name!r} don't apply ({'; '.join(changes)})")
    return tuple(notes)
