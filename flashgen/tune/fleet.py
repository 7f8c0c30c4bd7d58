"""Who works on the studies of one name, on however many hosts: a register of processes, each with a lease it renews."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

from flashgen.errors import OutputError
from flashgen.tune.owner import has_ended, this_process
from flashgen.tune.storage import Storage

Role = Literal["tune", "worker"]
_MISSING = object()


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Seconds. A process renews its lease every `beat_s`, from a thread that works while it compiles; one that has not
    for `lease_s` is taken for dead. `claim_s`: a live process says within milliseconds that a new trial is its own.
    `look_s`: between looks at the register, and at whether there is something to do."""

    beat_s: float = 10.0
    lease_s: float = 60.0
    claim_s: float = 10.0
    look_s: float = 0.5


class Still:
    """For how long values have stood still, by this process's own clock: those of two hosts are never compared.

    Of the time between two looks at most `gap_s` counts: while the storage was away, nobody could renew anything.
    """

    def __init__(self, gap_s: float) -> None:
        self._gap_s = gap_s
        self._seen: dict[str, tuple[Any, float, float]] = {}  # value, seconds it stood still, when it was looked at

    def seconds(self, name: str, value: Any) -> float:
        now = time.monotonic()
        old, still_s, looked = self._seen.get(name, (_MISSING, 0.0, now))
        still_s = still_s + min(now - looked, self._gap_s) if old == value else 0.0
        self._seen[name] = (value, still_s, now)
        return still_s


class Fleet:
    """The processes that search the studies named `label` in `storage`. `owner` is this one's name.

    The register is a study without trials. It holds of every process `role`, the `beat` that it counts up, and the
    `study` for which it wants help; None of one that has left.
    """

    def __init__(self, storage: Storage, label: str = "", pace: Pace | None = None, owner: str | None = None) -> None:
        self.storage, self.label, self.pace = storage, label, pace or Pace()
        self.owner = owner or this_process()
        self._register = storage.study(" ".join(filter(None, (label, "fleet"))))
        self._still = Still(2 * self.pace.beat_s)
        self._held: dict[str, Any] = {}
        self._looked = -float("inf")
        self._mine: dict[str, Any] | None = None  # what the register holds of this process, once it has joined
        self._lock = threading.Lock()  # of what is written: the beat's thread writes too

    @contextmanager
    def joined(self, role: Role) -> Iterator[Fleet]:
        """Holds a lease for this process until the end of the block.

        Raises:
            OutputError: the storage cannot be written.
        """
        self._mine = {"role": role, "beat": 0, "study": None}
        self._write()
        stop = threading.Event()
        thread = threading.Thread(target=self._beat, args=(stop,), daemon=True)
        if self.storage.is_shared:
            thread.start()
        try:
            yield self
        finally:
            stop.set()
            with suppress(OutputError):  # what failed before it says more; a lease that nobody renews ends by itself
                self._leave()

    @contextmanager
    def announced(self, study: str) -> Iterator[None]:
        """Asks workers to help with `study` until the end of the block."""
        self._write(study=study)
        try:
            yield
        finally:
            with suppress(OutputError):
                self._write(study=None)

    def runs(self, leader: str = "") -> tuple[str | None, ...]:
        """Of each run that lives, or only of the process `leader`'s, the study for which it wants help, if any."""
        return tuple(
            held["study"]
            for owner, held in self._members().items()
            if held is not None and held["role"] == "tune" and leader in ("", owner) and not self.is_gone(owner)
        )

    def is_gone(self, owner: str) -> bool:
        """Whether a process has ended, or its lease has run out."""
        ended = has_ended(owner)
        if ended is None and owner != self.owner:
            held = self._members().get(owner, _MISSING)
            ended = held is None or self._still.seconds(owner, held) > self.pace.lease_s
        return bool(ended)

    def is_unclaimed(self, trial: str) -> bool:
        """Whether a trial that nobody has called his own has been so for too long, first seen by this very call."""
        return self._still.seconds(trial, None) > self.pace.claim_s

    def batch(self, trials: int, jobs: int) -> int:
        """Configs to ask for at once, which `jobs` compilers keep busy with: of `trials` not what others could try, and
        few enough that the sampler sees results before most of them are asked for."""
        living = self._living()
        return min(2 * jobs, max(2, trials // 4)) if living < 2 else max(1, min(2 * jobs, trials // (2 * living)))

    def ahead(self, jobs: int) -> int:
        """Queued configs that `jobs` compilers may begin on before they are asked for: none that others may take."""
        return 2 * jobs if self._living() < 2 else 0

    def _living(self) -> int:
        return sum(held is not None and not self.is_gone(owner) for owner, held in self._members().items())

    def _members(self) -> dict[str, Any]:
        if time.monotonic() - self._looked > self.pace.look_s:
            self._held, self._looked = dict(self._register.user_attrs), time.monotonic()
        return self._held

    def _beat(self, stop: threading.Event) -> None:
        while not stop.wait(self.pace.beat_s):
            with suppress(OutputError):  # the thread that works meets it too, and ends if it lasts
                self._write(beat=True)

    def _write(self, *, beat: bool = False, **values: Any) -> None:
        with self._lock:
            if self._mine is not None:
                self._mine = {**self._mine, "beat": self._mine["beat"] + beat, **values}
                self._register.set_user_attr(self.owner, self._mine)

    def _leave(self) -> None:
        with self._lock:
            self._mine = None
            self._register.set_user_attr(self.owner, None)
