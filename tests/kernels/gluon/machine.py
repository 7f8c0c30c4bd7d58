"""A small model of what Gluon kernels ask of Hopper: warp groups, barriers, rings filled by TMA, asynchronous matmuls.

Gluon has no interpreter. This one runs a kernel's Python with torch tensors for values, each warp group in a thread of
which one runs at a time, and lets everything asynchronous happen as late and in as random an order as the hardware may:
a copy lands some time after it was issued, a matmul reads shared memory until it is waited for. What it shows is that
the numbers are right and that no barrier is missing, too early or waited for in the wrong phase; layouts, registers and
speed it knows nothing of.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from tests.kernels.gluon.tensor_core import short_sum


class Fault(AssertionError):
    """What the hardware would answer with wrong numbers, or never."""


class Machine:
    """Runs the warp groups of one program in turn; `seed` decides the order of all that may happen in any."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.landing: list[Callable[[], None]] = []  # copies under way
        self._turn = threading.Condition()
        self._now: int | None = None
        self._blocked: dict[int, Callable[[], bool]] = {}  # by warp group: what it waits for
        self._alive: set[int] = set()
        self._fault: BaseException | None = None
        self._preferred = 0

    def run(self, groups: Sequence[Callable[[], None]]) -> None:
        """Runs all groups to their end.

        Raises:
            Fault: they wait for each other, or one of them found a fault.
        """
        self._alive = set(range(len(groups)))
        self._blocked = {group: lambda: True for group in self._alive}
        threads = [threading.Thread(target=self._group, args=(i, run), daemon=True) for i, run in enumerate(groups)]
        for thread in threads:
            thread.start()
        with self._turn:
            self._next()
            self._turn.wait_for(lambda: not self._alive or self._fault is not None)
        for thread in threads:
            thread.join()
        while self.landing and self._fault is None:
            self._land()
        if self._fault is not None:
            raise self._fault

    def pause(self, until: Callable[[], bool] = lambda: True) -> None:
        """Gives the others a turn; comes back once `until` holds."""
        me = int(threading.current_thread().name)
        with self._turn:
            self._blocked[me] = until
            self._next()
            self._turn.wait_for(lambda: self._now == me or self._fault is not None)
            if self._fault is not None:
                raise SystemExit

    def _group(self, index: int, run: Callable[[], None]) -> None:
        threading.current_thread().name = str(index)
        try:
            with self._turn:
                self._turn.wait_for(lambda: self._now == index or self._fault is not None)
            if self._fault is None:
                run()
        except SystemExit:
            pass
        except BaseException as error:
            self._fault = error
        with self._turn:
            self._alive.discard(index)
            self._blocked.pop(index, None)
            if self._fault is None and self._alive:
                self._next()
            self._turn.notify_all()

    def _next(self) -> None:
        """Picks who runs: one of the groups that can, after some copies have landed."""
        while True:
            ready = [group for group, until in sorted(self._blocked.items()) if group in self._alive and until()]
            if self.landing and (not ready or self.random.random() < 0.3):
                self._land()
                continue
            if ready:
                self._now = self._first_of(ready)
            else:
                self._fault = Fault(f"warp groups {sorted(self._alive)} wait for barriers that nobody completes")
            self._turn.notify_all()
            return

    def _first_of(self, ready: list[int]) -> int:
        """One group stays ahead of the others for a while, then another: what is missing between them shows."""
        if self.random.random() < 0.1:
            self._preferred = self.random.choice(sorted(self._alive))
        return self._preferred if self._preferred in ready else self.random.choice(ready)

    def _land(self) -> None:
        self.landing.pop(self.random.randrange(len(self.landing)))()


@dataclass
class Barrier:
    """An mbarrier: a phase ends when `arrivals` have come and no byte is under way (PTX ISA, mbarrier)."""

    arrivals: int = 0
    missing: int = 0
    bytes_under_way: int = 0
    phase: int = 0

    def init(self, arrivals: int) -> None:
        self.arrivals = self.missing = arrivals

    def arrive(self, nbytes: int = 0) -> None:
        if not self.arrivals:
            raise Fault("a barrier is used that was not initialised")
        if not self.missing:
            raise Fault("more arrivals at a barrier than it counts in a phase")
        self.missing -= 1
        self.bytes_under_way += nbytes
        self._settle()

    def landed(self, nbytes: int) -> None:
        self.bytes_under_way -= nbytes
        if self.bytes_under_way < 0:
            raise Fault("more bytes landed than the barrier expects")
        self._settle()

    def is_over(self, parity: int) -> bool:
        return self.phase % 2 != parity

    def _settle(self) -> None:
        if not self.missing and not self.bytes_under_way:
            self.phase, self.missing = self.phase + 1, self.arrivals


@dataclass
class Tile:
    """A tile in shared memory. `writers` are the warp groups that stored to it, until a fence shows that to TMA."""

    data: torch.Tensor
    writers: set[str] = field(default_factory=set)

    @property
    def type(self) -> SimpleNamespace:
        return SimpleNamespace(shape=list(self.data.shape))

    def permute(self, order: tuple[int, ...]) -> Tile:
        return Tile(self.data.permute(order), self.writers)

    def reshape(self, shape: list[Any]) -> Tile:
        return Tile(self.data.view([int(each) for each in shape]), self.writers)

    def slice(self, start: int, length: int, dim: int = 0) -> Tile:
        return Tile(self.data.narrow(dim, start, length), self.writers)

    def store(self, value: torch.Tensor) -> None:
        if value.dtype != self.data.dtype:
            raise Fault(f"{value.dtype} is stored to shared memory of {self.data.dtype}")
        self.data.copy_(value)
        self.writers.add(threading.current_thread().name)

    def load(self, layout: object = None) -> torch.Tensor:
        return self.data.clone()


@dataclass
class Matmul:
    """A matmul under way: `a` from registers or shared memory, `b` from shared memory, read until it is waited for."""

    a: Any
    b: Tile
    acc: Any
    use_acc: bool
    seen: list[torch.Tensor] = field(init=False)
    result: torch.Tensor | None = None

    def __post_init__(self) -> None:
        self.seen = [x.data.clone() for x in self._shared()]

    def _shared(self) -> list[Tile]:
        return [x for x in (self.a, self.b) if isinstance(x, Tile)]

    def finish(self) -> None:
        for tile, seen in zip(self._shared(), self.seen):
            if not same_bits(tile.data, seen):
                raise Fault("shared memory changed under a matmul that reads it")
        a = self.a.data if isinstance(self.a, Tile) else self.a
        if a.dtype != self.b.data.dtype:
            raise Fault(f"operands of a matmul are {a.dtype} and {self.b.data.dtype}")
        acc = self.acc.result if isinstance(self.acc, Matmul) else self.acc
        self.result = _multiplied(a, self.b.data, acc if self.use_acc else None)


def _multiplied(a: torch.Tensor, b: torch.Tensor, acc: torch.Tensor | None) -> torch.Tensor:
    """In fp32, but for a sum of 8-bit products that goes on, and so may grow long: one of a single block loses little,
    and is not worth the time."""
    if acc is None:
        return a.float() @ b.float()
    return short_sum(a, b, acc) if a.dtype.itemsize == 1 else a.float() @ b.float() + acc


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
