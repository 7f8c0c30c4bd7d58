"""Adding rules to the file of their GPU and op, as soon as they are found: what comes after them may fail."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flashgen.errors import OutputError
from flashgen.spec import Op
from flashgen.store.entry import TunedEntry, TunedFile
from flashgen.store.files import read_tuned, tuned_path, write_tuned
from flashgen.store.lookup import merge


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleFile:
    """`directory`/<gpu>/<op>.yaml, and the command that makes its new rules again."""

    directory: Path
    gpu: str
    op: Op
    command: str

    @property
    def path(self) -> Path:
        return tuned_path(self.directory, self.gpu, self.op)

    def check(self) -> None:
        """Finds out before hours of work whether their results could be written.

        Raises:
            OutputError: the directory cannot be written to.
            TunedConfigError: the file that is there is malformed.
        """
        if self.path.exists():
            read_tuned(self.path, gpu=self.gpu, op=self.op)
        place = next(parent for parent in self.path.absolute().parents if parent.exists())
        if not place.is_dir():
            raise OutputError(f"{self.directory}: cannot be written to: {place} is not a directory")
        if not os.access(place, os.W_OK | os.X_OK) or (self.path.exists() and not os.access(self.path, os.W_OK)):
            raise OutputError(f"{self.directory}: cannot be written to: no permission for {place}")

    def add(self, entries: Sequence[TunedEntry]) -> tuple[TunedEntry, ...]:
        """Merges the rules into the file; those that it has now, less any that a measured one holds against.

        Raises:
            OutputError: the file cannot be written.
            TunedConfigError: the file that is there is malformed.
        """
        new = TunedFile(gpu=self.gpu, op=self.op, command=self.command, entries=tuple(entries))
        file = merge(read_tuned(self.path, gpu=self.gpu, op=self.op), new) if self.path.exists() else new
        added = tuple(entry for entry in entries if entry in file.entries)
        if added:
            write_tuned(self.path, file)
        return added
