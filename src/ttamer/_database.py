"""SQLite databases of this package: opened alike, with errors in words."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ttamer.errors import TraceError

# Locks of these file systems are not reliable enough for a database.
NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "fuse.sshfs", "9p", "afs")


def open_database(path: str | os.PathLike[str], schema: str) -> sqlite3.Connection:
    """Open a database in a file that only its owner may read; create it with a schema.

    What is committed survives the end of the process (``kill -9``); a loss of power may lose the
    last commits. Several processes may write; each opens the database for itself.

    Args:
        path: The file; its folder is created where it does not exist.
        schema: The statements that create the tables (``CREATE TABLE IF NOT EXISTS``).

    Returns:
        The connection, which threads may share under a lock; every statement is committed by itself
        unless it is in a transaction.

    Raises:
        TraceError: If the file is on a network disk, is no database, or cannot be written.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     base = open_database(Path(folder, "a.db"), "CREATE TABLE IF NOT EXISTS t (x)")
    ...     _ = base.execute("INSERT INTO t VALUES (1)")
    ...     base.execute("SELECT x FROM t").fetchall()
    ...     base.close()
    [(1,)]
    """
    file = Path(path)
    with database_errors(file):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (kind := _file_system(file.parent)).startswith(NETWORK_FILE_SYSTEMS):
            raise TraceError(f"{file}: is on a network disk ({kind}); give a path on a local disk")
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
        base = sqlite3.connect(file, timeout=30, isolation_level=None, check_same_thread=False)
        try:
            base.execute("PRAGMA journal_mode = WAL")
            base.execute("PRAGMA synchronous = NORMAL")
            base.executescript(schema)
        except BaseException:
            base.close()
            raise
    return base


@contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """Report what SQLite or the system refuses in one line that names the file."""
    try:
        yield
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error.strerror}") from None
    except sqlite3.DatabaseError as error:
        raise TraceError(f"{path}: cannot be used as a database: {error}") from None


def _file_system(folder: Path) -> str:
    """Return the type of the file system of a folder, or nothing where the system does not say."""
    try:
        lines = Path("/proc/mounts").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    mounts = [line.split()[1:3] for line in lines]
    real = str(folder.resolve())
    around = [m for m in mounts if (real + "/").startswith(m[0].rstrip("/") + "/")]
    return max(around, key=lambda mount: len(mount[0]), default=["", ""])[1]
