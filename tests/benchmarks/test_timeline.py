from __future__ import annotations

import json
from pathlib import Path

import pytest
from tuners.timeline import (
    Answer,
    Event,
    Recorder,
    Timeline,
    answers,
    held_within,
    read_events,
    replayed,
    worth_timing,
)


def timeline(*events: Event, anytime: bool = True) -> Timeline:
    return Timeline(name="one", knows="nothing", anytime=anytime, wall_s=9.0, ended="finished", events=events)


def tried(s: float, config: str, us: float | None) -> Event:
    return Event(s=s, kind="tried", config=config, us=us)


SEARCH = (
    tried(1.0, "a", 120.0),
    tried(2.0, "b", None),
    tried(3.0, "c", 100.0),
    tried(4.0, "d", 110.0),
    tried(5.0, "e", 99.0),
)


def test_an_anytime_tuner_answers_with_the_best_it_has_tried() -> None:
    assert answers(timeline(*SEARCH)) == (
        Answer(s=1.0, tried=1, config="a"),
        Answer(s=3.0, tried=3, config="c"),
        Answer(s=5.0, tried=5, config="e"),
    )


def test_what_it_says_itself_comes_after_that() -> None:
    ended = answers(timeline(*SEARCH, Event(s=8.0, kind="answer", config="c")))
    assert ended[-1] == Answer(s=8.0, tried=5, config="c")
    assert answers(timeline(*SEARCH, Event(s=8.0, kind="answer", config="e")))[-1].s == 5.0


def test_one_that_is_not_anytime_answers_only_then() -> None:
    answer = Event(s=8.0, kind="answer", config="e")
    assert answers(timeline(*SEARCH, answer, anytime=False)) == (Answer(s=8.0, tried=5, config="e"),)
    assert answers(timeline(*SEARCH, anytime=False)) == ()


def test_held_within_counts_from_the_last_time_that_it_was_not() -> None:
    given = [Answer(s=float(n), tried=n, config=config) for n, config in enumerate("abcd", 1)]
    us = {"a": 101.0, "b": 104.0, "c": 102.0, "d": 100.5}
    assert held_within(given, us, 103.0) == given[2]
    assert held_within(given, us, 105.0) == given[0]
    assert held_within(given, us, 101.0) == given[3]
    assert held_within(given, us, 100.0) is None
    assert held_within(given[:2], us, 103.0) is None
    assert held_within([], us, 103.0) is None


def test_a_replay_is_another_order_of_the_same_times_without_seconds() -> None:
    again = replayed(timeline(*SEARCH), 1)
    assert {(event.config, event.us) for event in again.tried} == {(event.config, event.us) for event in SEARCH}
    assert all(event.s is None for event in again.tried)
    assert again == replayed(timeline(*SEARCH), 1) != replayed(timeline(*SEARCH), 2)
    assert answers(again)[-1].config == "e"


def test_worth_timing_are_answers_and_what_is_near_the_best() -> None:
    assert worth_timing([timeline(*SEARCH)], 0.03) == ["a", "c", "e"]
    assert worth_timing([timeline(*SEARCH)], 0.15) == ["a", "c", "e", "d"]
    answer = Event(s=8.0, kind="answer", config="d")
    assert worth_timing([timeline(*SEARCH, answer, anytime=False)], 0.03) == ["d"]


def test_events_come_back_from_their_file_but_for_a_line_that_is_cut_off(tmp_path: Path) -> None:
    record = Recorder(tmp_path / "events")
    record.tried("a", 100.0, at=12.5)
    record.tried("b", None, at=13.0)
    record.proof(0.25)
    with (tmp_path / "events").open("a") as file:
        file.write('{"kind": "tri')
    first, second, proof = read_events(tmp_path / "events", 10.0)
    assert (first, second) == (tried(2.5, "a", 100.0), tried(3.0, "b", None))
    assert proof.took_s == 0.25
    assert read_events(tmp_path / "none", 0.0) == ()


@pytest.mark.parametrize("anytime", [True, False])
def test_a_timeline_comes_back_from_json(anytime: bool) -> None:
    one = timeline(*SEARCH, anytime=anytime)
    assert Timeline.of(json.loads(json.dumps(one.held()))) == one
