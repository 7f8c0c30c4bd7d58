"""Several hosts on one study: leases, and a real PostgreSQL whose workers are killed, and that is killed itself."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from flashgen.errors import OutputError
from flashgen.tune.evaluate import Evaluated
from flashgen.tune.fleet import Fleet, Still
from flashgen.tune.records import TrialRecord
from flashgen.tune.search import Limits
from flashgen.tune.space import Space
from flashgen.tune.storage import open_storage
from flashgen.tune.together import search_together
from tests.tune.postgres import REQUIRED, Postgres, binaries, postgres
from tests.tune.replay import H200, Replay, config
from tests.tune.studies import FAST, SMALLER, Said, Work, opened, outcome_of

ALL = sorted(config.key for config in SMALLER.configs)
_names = count()


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    if (bin := binaries()) is None:
        assert REQUIRED not in os.environ, "no initdb and pg_ctl in /usr/lib/postgresql/*/bin or on PATH"
        pytest.skip("needs PostgreSQL's server: apt-get install postgresql")
    with postgres(bin) as running:
        yield running


@pytest.fixture
def database(server: Postgres) -> str:
    """An empty database."""
    return server.create(f"study{next(_names)}")


def records_at(where: str | Path) -> list[TrialRecord]:
    """Those of the study that workers with `smaller` share."""
    with opened(where, SMALLER) as (study, _):
        return study.records()


def keys_of(records: list[TrialRecord]) -> list[str]:
    return sorted(record.config.key for record in records)


def best_of(records: list[TrialRecord]) -> float:
    return min(record.outcome.us for record in records if isinstance(record.outcome, Evaluated))


class Listened:
    """A worker's process, and what it has said until now."""

    def __init__(self, work: Work) -> None:
        self.process = work.start()
        self.said: list[str] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.strip())

    def await_words(self, words: int, timeout_s: float = 60.0) -> bool:
        """Whether it said so many before it ended."""
        end = time.monotonic() + timeout_s
        while len(self.said) < words and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        return len(self.said) >= words

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def wait(self) -> str:
        """What it said on stderr, once it has ended."""
        self.process.wait(60)
        self._thread.join(10)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        with self.process.stdout, self.process.stderr:
            return self.process.stderr.read()


def survivors_of_kills(where: str, *, kills: int, seed: int) -> list[str]:
    """What four workers of different hosts said, killed and replaced at random until all configs were tried."""
    rng, hosts = random.Random(seed), count()

    def begin() -> Listened:
        return Listened(Work(where, trial_s=0.3, smaller=True, host=f"host{next(hosts)}", seed=next(hosts)))

    workers, killed = [begin() for _ in range(4)], []
    for _ in range(kills):
        victim = workers.pop(rng.randrange(4))
        victim.await_words(1)
        time.sleep(rng.uniform(0.0, 0.3))
        victim.kill()
        killed.append(victim)
        workers.append(begin())
    for worker in workers:
        error = worker.wait()
        assert (worker.process.returncode, error) == (0, "")
    return [key for worker in workers + killed for key in worker.said]


@pytest.mark.slow
@pytest.mark.case("optuna-01")
def test_workers_that_are_killed_at_random_lose_and_repeat_nothing(database: str) -> None:
    said = survivors_of_kills(database, kills=4, seed=1)
    records = records_at(database)
    assert keys_of(records) == ALL
    assert not [key for key, times in Counter(said).items() if times > 1]
    assert best_of(records) == pytest.approx(100.0)  # as one process finds alone


@pytest.mark.slow
def test_a_database_that_is_killed_and_comes_back_costs_no_trial(server: Postgres, database: str) -> None:
    workers = [Listened(Work(database, trial_s=0.2, smaller=True, seed=seed)) for seed in range(2)]
    assert all(worker.await_words(3) for worker in workers)
    server.kill()
    time.sleep(1.0)
    server.start()
    for worker in workers:
        assert (worker.wait(), worker.process.returncode) == ("", 0)
    said = [key for worker in workers for key in worker.said]
    assert keys_of(records_at(database)) == ALL
    assert len(set(said)) == len(said)


@pytest.mark.slow
def test_a_database_that_stays_away_ends_the_search_and_a_resumed_one_goes_on(server: Postgres, database: str) -> None:
    worker = Listened(Work(database, trial_s=0.2, smaller=True, patience_s=0.5))
    assert worker.await_words(5)
    server.kill()
    try:
        error = worker.wait()
    finally:
        server.start()
    shown = database.replace("secret", "***")
    assert worker.process.returncode == 1
    assert error.startswith(f"OutputError: storage {shown}: cannot be used: ")
    assert "(tried again for 0.5 s); what was recorded before is kept\n  next: see that it runs" in error
    assert set(worker.said) <= set(keys_of(records_at(database)))
    resumed = Listened(Work(database, smaller=True))
    assert (resumed.wait(), resumed.process.returncode) == ("", 0)
    assert keys_of(records_at(database)) == ALL


def test_a_database_that_may_only_be_read_is_named_at_once(server: Postgres, database: str) -> None:
    with opened(database, SMALLER) as (study, _):
        asked = study.ask()
        assert asked is not None
        study.tell(*asked, outcome_of(asked[1]))
    server.execute(f"ALTER DATABASE {database.rpartition('/')[2]} SET default_transaction_read_only = on")
    message = r"flashgen:\*\*\*@.*: cannot be used: cannot execute .* in a read-only transaction; what was recorded"
    with pytest.raises(OutputError, match=message), opened(database, SMALLER):
        pass
    server.execute(f"ALTER DATABASE {database.rpartition('/')[2]} SET default_transaction_read_only = off")
    assert len(records_at(database)) == 1


@pytest.mark.slow
def test_workers_share_a_study_behind_the_grpc_proxy(database: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve = (
        "import sys; from optuna.storages import get_storage, run_grpc_proxy_server\n"
        "run_grpc_proxy_server(get_storage(sys.argv[1]), host='127.0.0.1', port=int(sys.argv[2]))"
    )
    url = database.replace("postgresql://", "postgresql+psycopg://")
    with ExitStack() as stack:
        server = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", serve, url, str(port)], stderr=subprocess.DEVNULL
        )
        stack.enter_context(server)
        stack.callback(server.kill)
        workers = [Listened(Work(f"grpc://127.0.0.1:{port}", trials=10, smaller=True, seed=seed)) for seed in range(2)]
        assert [(worker.wait(), worker.process.returncode) for worker in workers] == [("", 0)] * 2
    said = [key for worker in workers for key in worker.said]
    assert keys_of(records_at(database)) == sorted(said)
    assert len(set(said)) in (10, 11)


def test_a_process_of_another_host_is_dead_when_its_lease_stands_still(tmp_path: Path) -> None:
    with open_storage(tmp_path / "study.journal") as storage:
        here = Fleet(storage, pace=FAST)
        with Fleet(storage, pace=FAST, owner="elsewhere/1/1").joined("worker"):
            end = time.monotonic() + 2 * FAST.lease_s
            while time.monotonic() < end:
                assert not here.is_gone("elsewhere/1/1")
                time.sleep(FAST.beat_s)
        time.sleep(2 * FAST.look_s)
        assert here.is_gone("elsewhere/1/1")  # it has left
        assert not here.is_gone("elsewhere/2/2")  # it may only just have come
        began = time.monotonic()
        while not here.is_gone("elsewhere/2/2"):
            time.sleep(FAST.beat_s)
        assert time.monotonic() - began >= FAST.lease_s


def test_a_storage_that_was_away_makes_no_lease_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    still, seconds = Still(gap_s=20.0), []
    for gap_s, beat in ((0, 1), (10, 1), (3600, 1), (10, 1), (10, 2), (10, 2)):
        now += gap_s
        seconds.append(still.seconds("elsewhere/1/1", beat))
    assert seconds == [0, 10, 30, 40, 0, 10]


def test_what_a_process_says_that_was_taken_for_dead_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    with opened(path, owner="elsewhere/1/1") as (cut_off, _):
        asked = cut_off.ask()
        assert asked is not None
        with opened(path, pace=FAST) as (study, _):
            cut_off.fleet._leave()
            time.sleep(2 * FAST.look_s)
            again = None
            while again is None or again[1] != asked[1]:
                again = study.ask()  # the config is free again
                assert again is not None
            study.tell(*again, outcome_of(again[1]))
        cut_off.tell(*asked, outcome_of(asked[1], Replay(us=lambda candidate: 1.0)))
        cut_off.release([asked[0]])
    with opened(path) as (study, _):
        (record,) = study.records()
    assert record.config == asked[1]
    assert best_of([record]) > 1.0


def test_a_process_that_was_taken_for_dead_while_it_chose_asks_again(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    with opened(path) as (study, _), opened(path, owner="elsewhere/1/1", seed=1) as (other, _):
        claim = other._claim

        def reaped_first(trial):  # type: ignore[no-untyped-def]
            other._claim = claim  # type: ignore[method-assign]
            study._end(trial.number, "FAIL")
            return claim(trial)

        other._claim = reaped_first  # type: ignore[method-assign]
        asked = other.ask()
        assert asked is not None
        assert asked[0].number == 1


def test_a_dead_process_of_another_host_is_waited_for_no_longer_than_its_lease(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    with opened(path, pace=FAST) as (study, _):
        study._study.ask().set_user_attr("owner", "elsewhere/1/1")  # as far as it came before it lost its power
        began = time.monotonic()
        assert study.ask() is not None
        assert FAST.lease_s <= time.monotonic() - began < 10 * FAST.lease_s


def test_a_search_tries_again_what_a_process_of_another_host_had_begun(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    space = Space(configs=(config(), config(64, 32, 4, 1)))
    with opened(path, space, pace=FAST) as (study, _), opened(path, space, owner="elsewhere/1/1") as (other, _):
        assert other.ask() is not None
        other.fleet._leave()  # its lease ends while the search waits for it
        assert not search_together(study, Replay(), H200, Limits(trials=2), Said())
        assert len(study.records()) == 2


def test_only_runs_that_live_want_help(tmp_path: Path) -> None:
    with open_storage(tmp_path / "study.journal") as storage:
        worker = Fleet(storage, "mine", FAST)
        assert worker.runs() == ()
        with (
            Fleet(storage, "mine", FAST, "elsewhere/1/1").joined("tune") as run,
            Fleet(storage, "other").joined("tune"),
        ):
            for study in ("first", "second"):
                with run.announced(study):
                    time.sleep(2 * FAST.look_s)
                    assert worker.runs() == worker.runs("elsewhere/1/1") == (study,)
                    assert worker.runs("elsewhere/2/1") == ()
            time.sleep(2 * FAST.look_s)
            assert worker.runs() == (None,)
        time.sleep(2 * FAST.look_s)
        assert worker.runs() == ()


def test_a_batch_leaves_something_for_others(tmp_path: Path) -> None:
    with open_storage(tmp_path / "study.journal") as storage, Fleet(storage, pace=FAST).joined("tune") as fleet:
        assert fleet.batch(40, jobs=16) == 10
        assert fleet.batch(4, jobs=16) == fleet.batch(40, jobs=1) == 2
        with ExitStack() as stack:
            for number in range(3):
                owner = f"elsewhere/{number}/1"
                stack.enter_context(Fleet(storage, pace=FAST, owner=owner).joined("worker"))
            time.sleep(2 * FAST.look_s)
            assert fleet.batch(40, jobs=16) == 5
            assert fleet.batch(40, jobs=1) == 2
