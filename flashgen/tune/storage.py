"""Where studies are kept: in memory, in a journal file, in PostgreSQL, or behind Optuna's gRPC proxy."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from flashgen.errors import OutputError
from flashgen.tune.journal import Journal, repaired
from flashgen.tune.steady import Medium, Steady

if TYPE_CHECKING:
    from optuna import Study as OptunaStudy
    from optuna.storages import BaseStorage, RDBStorage

PATIENCE_S = 60.0  # how long a database may be away: a restart with recovery takes seconds
_SCHEMES = ("postgresql", "postgresql+psycopg", "grpc")
_CONNECT_S = 10  # to a server
_TABLE_TRIES, _TABLE_PAUSE_S = 5, 0.2  # of processes that make an empty database's tables at once, one succeeds
# https://www.postgresql.org/docs/current/libpq-connect.html: a server that vanished without a word is noticed after
# 30 s of silence, or of data that it does not acknowledge (that one in ms).
_LIBPQ = {"connect_timeout": _CONNECT_S, "keepalives_idle": 30, "tcp_user_timeout": 30_000}


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """Optuna's storage, and the name that a user knows it by (a URL has no password then).

    `is_shared`: other processes may work on its studies too. `notes` say what had to be repaired. A method of `optuna`
    raises OutputError where what it is kept in fails, if need be after PATIENCE_S.
    """

    optuna: BaseStorage
    where: str
    is_shared: bool = True
    notes: tuple[str, ...] = ()

    def study(self, name: str) -> OptunaStudy:
        """Optuna's study of that name, made if there is none."""
        import optuna

        return optuna.create_study(study_name=name, storage=self.optuna, load_if_exists=True, direction="minimize")

    def drop(self, name: str) -> None:
        """Deletes the study of that name and its trials, if there is one."""
        from optuna import delete_study

        with suppress(KeyError):
            delete_study(study_name=name, storage=self.optuna)


@contextmanager
def open_storage(where: str | Path | None, patience_s: float = PATIENCE_S) -> Iterator[Storage]:
    """The storage at `where`: a path, `postgresql://...`, `grpc://host:port`, or memory if None.

    Raises:
        OutputError: it cannot be reached or written, holds something else, is no place for studies, or wants a driver
            that is not installed.
    """
    text = "" if where is None else str(where)
    check_scheme(text)
    with _quiet():
        if where is None:
            yield _memory()
        elif "://" not in text:
            yield _journal(Path(where))
        elif text.startswith("grpc:"):
            with _proxied(text, patience_s) as storage:
                yield storage
        else:
            with _postgresql(text, patience_s) as storage:
                yield storage


def check_scheme(where: str) -> None:
    """Lets through a path, and a URL that `open_storage` knows.

    Raises:
        OutputError: a URL of another kind; says why, and what to give in its place.
    """
    scheme, separator, _ = where.partition("://")
    if not separator or scheme in _SCHEMES:
        return
    reason = f"{scheme}:// is neither postgresql:// nor grpc://host:port"
    if scheme.partition("+")[0] == "sqlite":
        reason = "SQLite locks its whole file, so that processes which share it fail with 'database is locked'"
    raise OutputError(f"storage {_shown(where)!r}: {reason}; give a journal file, such as study.journal")


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna announces studies on stderr, and failures that pass: what a user should see is in notes and errors."""
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)


def _memory() -> Storage:
    from optuna.storages import InMemoryStorage

    return Storage(optuna=InMemoryStorage(), where="memory", is_shared=False)


def _journal(path: Path) -> Storage:
    from optuna.storages import JournalStorage

    medium = Medium(where=str(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        notes = repaired(path)
        backend: Any = Journal(path)
        return Storage(optuna=_steady(JournalStorage(backend), medium), where=medium.where, notes=notes)
    except OSError as error:
        raise medium.error(error) from error


@contextmanager
def _postgresql(url: str, patience_s: float) -> Iterator[Storage]:
    from optuna.exceptions import StorageInternalError
    from optuna.storages import get_storage
    from sqlalchemy.exc import InterfaceError, OperationalError, PendingRollbackError, SQLAlchemyError, TimeoutError

    # The last is what Optuna's second try within a failed transaction gives.
    passing = (InterfaceError, OperationalError, TimeoutError, PendingRollbackError)

    def passes(error: Exception) -> bool:
        return isinstance(error.__cause__ if isinstance(error, StorageInternalError) else error, passing)

    failures = (StorageInternalError, SQLAlchemyError)
    medium = Medium(where=_shown(url), failures=failures, passes=passes, patience_s=patience_s)
    database = _tables(url, medium)
    try:
        yield Storage(optuna=_steady(get_storage(database), medium), where=medium.where)
    finally:
        database.engine.dispose()


def _tables(url: str, medium: Medium, tries: int = _TABLE_TRIES) -> RDBStorage:
    """Optuna's database, its tables made if it has none."""
    from optuna.storages import RDBStorage

    # With SQLAlchemy before 2.1 postgresql:// means another driver.
    url = f"postgresql+psycopg://{url.partition('://')[2]}"
    try:
        return RDBStorage(url, engine_kwargs={"pool_pre_ping": True, "connect_args": dict(_LIBPQ)})
    except ImportError as error:
        raise _missing(medium.where, "psycopg", "postgresql") from error
    except medium.failures as error:
        if tries == 1:
            raise medium.error(error) from error
    time.sleep(_TABLE_PAUSE_S)
    return _tables(url, medium, tries - 1)


@contextmanager
def _proxied(url: str, patience_s: float) -> Iterator[Storage]:
    """Through the server of `optuna.storages.run_grpc_proxy_server`, which keeps the studies where it was told to."""
    from optuna.exceptions import ExperimentalWarning
    from optuna.storages import GrpcStorageProxy

    try:
        from grpc import RpcError
    except ImportError as error:
        raise _missing(url, "grpcio", "grpc") from error
    parts = urlsplit(url)
    if parts.hostname is None or parts.port is None:
        raise OutputError(f"storage {url!r} names no host and port; such as grpc://tuner:13000")
    medium = Medium(where=url, failures=(RpcError,), passes=lambda error: True, patience_s=patience_s)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        proxy = GrpcStorageProxy(host=parts.hostname, port=parts.port)
    try:
        proxy.wait_server_ready(timeout=_CONNECT_S)
        yield Storage(optuna=_steady(proxy, medium), where=url)
    except ConnectionError as error:
        raise OutputError(
            f"storage {url}: no server answered within {_CONNECT_S} s\n"
            f"  next: start one there: optuna.storages.run_grpc_proxy_server(storage, host=..., port={parts.port})"
        ) from error
    finally:
        proxy.close()


def _steady(kept: BaseStorage, medium: Medium) -> Any:
    return Steady(kept, medium)


def _missing(where: str, package: str, extra: str) -> OutputError:
    return OutputError(
        f"storage {where}: needs {package}, which is not installed\n  next: pip install 'flashgen[{extra}]'"
    )


def _shown(url: str) -> str:
    """The URL without its password, which is left out of every text."""
    scheme, separator, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    return f"{scheme}{separator}{login.partition(':')[0]}{':***' if ':' in login else ''}{at}{place}"
