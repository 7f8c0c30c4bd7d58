"""What a tuner did and when, and how soon it held a config that is good enough by times that are not its own."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["tried", "answer", "proof", "ended"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """At `s` seconds (None: replayed, so nobody waited) `config` was tried, in `us` microseconds by the tuner's own
    clock (None: rejected), or became its answer. Or a proof that `took_s` was over, or the tuner, saying `text`."""

    kind: Kind
    s: float | None = None
    config: str | None = None
    us: float | None = None
    took_s: float | None = None
    text: str | None = None

    def held(self) -> dict[str, object]:
        """Plain data for JSON, of which Event(**held) makes it again."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class Recorder:
    """Writes events to a file as they happen, so that a tuner that is stopped leaves what it did so far.

    Their seconds are time.monotonic()'s, which processes of one machine share.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1)

    def tried(self, config: str, us: float | None, at: float | None = None) -> None:
        self._write(Event(s=time.monotonic() if at is None else at, kind="tried", config=config, us=us))

    def answer(self, config: str) -> None:
        self._write(Event(s=time.monotonic(), kind="answer", config=config))

    def proof(self, took_s: float) -> None:
        self._write(Event(s=time.monotonic(), kind="proof", took_s=round(took_s, 3)))

    def ended(self, text: str) -> None:
        self._write(Event(s=time.monotonic(), kind="ended", text=text))

    def _write(self, event: Event) -> None:
        self._file.write(json.dumps(event.held()) + "\n")


def read_events(path: Path, began: float) -> tuple[Event, ...]:
    """Those of a file in which the last line may be cut off, in seconds since `began` (time.monotonic())."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return tuple(Event(**(held | {"s": round(held["s"] - began, 3)})) for held in map(json.loads, lines))


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """One tuner's events. `anytime`: whoever stops it early has the best config that it tried so far; of the others the
    work is lost. `knows` is what it was told before it began, and `wall_s` ends when it did, or was stopped."""

    name: str
    knows: str
    anytime: bool
    wall_s: float | None
    ended: str
    events: tuple[Event, ...] = ()

    @property
    def tried(self) -> tuple[Event, ...]:
        return tuple(event for event in self.events if event.kind == "tried")

    def held(self) -> dict[str, Any]:
        """Plain data for JSON, of which `of` makes it again."""
        return asdict(self) | {"events": [event.held() for event in self.events]}

    @classmethod
    def of(cls, held: Mapping[str, Any]) -> Timeline:
        return cls(**{**held, "events": tuple(Event(**event) for event in held["events"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The config that a tuner would hand out from `s` on, when it had tried so many."""

    s: float | None
    tried: int
    config: str


def answers(timeline: Timeline) -> tuple[Answer, ...]:
    """Each answer that differs from the one before."""
    found: list[Answer] = []
    tried, best_us = 0, math.inf
    for event in timeline.events:
        tried += event.kind == "tried"
        better = timeline.anytime and event.kind == "tried" and event.us is not None and event.us < best_us
        if event.config is None or not (better or event.kind == "answer"):
            continue
        best_us = event.us if better and event.us is not None else best_us
        if not found or found[-1].config != event.config:
            found.append(Answer(s=event.s, tried=tried, config=event.config))
    return tuple(found)


def held_within(given: Sequence[Answer], us: Mapping[str, float], limit_us: float) -> Answer | None:
    """The first answer from which on none takes more than `limit_us`; None if the last one does, or there is none."""
    held = None
    for answer in given:
        if us[answer.config] > limit_us:
            held = None
        elif held is None:
            held = answer
    return held


def replayed(timeline: Timeline, seed: int) -> Timeline:
    """The tuner that tries `timeline`'s configs in random order and sees the same times."""
    order = list(timeline.tried)
    random.Random(seed).shuffle(order)
    events = tuple(Event(s=None, kind="tried", config=event.config, us=event.us) for event in order)
    return Timeline(
        name=f"random, order {seed} (replayed)",
        knows=f"nothing; {timeline.name}'s times in another order",
        anytime=True,
        wall_s=None,
        ended="replayed",
        events=events,
    )


def worth_timing(timelines: Sequence[Timeline], near: float) -> list[str]:
    """What the judge must time: every answer, and what an anytime tuner tried within `near` of its best."""
    wanted = [answer.config for timeline in timelines for answer in answers(timeline)]
    for timeline in filter(lambda one: one.anytime, timelines):
        seen = {event.config: event.us for event in timeline.tried if event.config is not None and event.us is not None}
        wanted += [config for config, us in seen.items() if us <= (1 + near) * min(seen.values())]
    return list(dict.fromkeys(wanted))
