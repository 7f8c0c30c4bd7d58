"""What a run tells whoever watches it. The library itself never prints."""

from __future__ import annotations

from typing import Protocol

from flashgen.spec import AttentionSpec
from flashgen.tune.records import TrialRecord
from flashgen.tune.result import TuneResult


class Progress(Protocol):
    """Called from the tuning thread, in order."""

    def started(self, spec: AttentionSpec, enumerated: int, fit: int, trials: int) -> None:
        """A search begins: of `enumerated` configs `fit` may fit, and at most `trials` are to be tried."""

    def tried(self, spec: AttentionSpec, record: TrialRecord) -> None:
        """A candidate came through or fell."""

    def step(self, spec: AttentionSpec, text: str) -> None:
        """Something longer than a trial begins, such as the timing of the finalists."""

    def ended(self, result: TuneResult) -> None:
        """A spec is done. Whoever stores results stores this one now: what follows may fail."""


class Silent:
    """A Progress that nobody watches."""

    def started(self, spec: AttentionSpec, enumerated: int, fit: int, trials: int) -> None:
        pass

    def tried(self, spec: AttentionSpec, record: TrialRecord) -> None:
        pass

    def step(self, spec: AttentionSpec, text: str) -> None:
        pass

    def ended(self, result: TuneResult) -> None:
        pass
