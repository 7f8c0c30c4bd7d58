"""A PostgreSQL server of a test's own, which may be killed."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# Debian's and Ubuntu's place comes first: there the servers are not on PATH.
_PLACES = (*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), *map(Path, os.get_exec_path()))
REQUIRED = "FLASHGEN_REQUIRE_POSTGRES"  # set where a missing server is a failure, not a reason to skip


def binaries() -> Path | None:
    """The directory of initdb and pg_ctl, or None where PostgreSQL is not installed."""
    return next((each for each in _PLACES if (each / "initdb").exists() and (each / "pg_ctl").exists()), None)


@dataclass(frozen=True)
class Postgres:
    """A server in `home`; it listens on `port` of this host only."""

    bin: Path
    home: Path
    port: int

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://flashgen:secret@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        # Without fsync what was committed outlives the server's death, though not the machine's.
        options = f"-p {self.port} -k {self.home} -c listen_addresses=127.0.0.1 -c fsync=off"
        self._run("pg_ctl", "-D", str(self.home / "data"), "-l", str(self.home / "log"), "-w", "-o", options, "start")

    def kill(self) -> None:
        """Ends it at once: no checkpoint, no goodbye to who is connected."""
        self._run("pg_ctl", "-D", str(self.home / "data"), "-w", "-m", "immediate", "stop")

    def is_running(self) -> bool:
        return (self.home / "data" / "postmaster.pid").exists()

    def create(self, database: str) -> str:
        """The URL of a new, empty database."""
        self.execute(f"CREATE DATABASE {database}")
        return self.url(database)

    def execute(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _run(self, program: str, *arguments: str) -> None:
        # A server refuses to be root's.
        user = "postgres" if os.getuid() == 0 else None
        command = [str(self.bin / program), *arguments]
        done = subprocess.run(command, user=user, group=user, cwd=self.home, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"


@contextmanager
def postgres(bin: Path) -> Iterator[Postgres]:
    """A running server."""
    home = Path(tempfile.mkdtemp(prefix="flashgen-postgres-", dir="/tmp"))
    if os.getuid() == 0:
        entry = pwd.getpwnam("postgres")
        os.chown(home, entry.pw_uid, entry.pw_gid)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        server = Postgres(bin, home, probe.getsockname()[1])
    try:
        server._run(
            "initdb", "-N", "-D", str(home / "data"), "-U", "flashgen", "-A", "trust", "-E", "UTF8", "--locale=C"
        )
        server.start()
        yield server
    finally:
        if server.is_running():
            server.kill()
        shutil.rmtree(home)
