"""Files that appear whole or not at all, and SQLite databases in them."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ttamer.errors import TraceError


@contextmanager
def atomic_write(
    path: str | os.PathLike[str], *, durable: bool = False, private: bool = False
) -> Iterator[Path]:
    """Yield a path in the same folder to write to; at the end it takes the place of ``path``.

    If the block raises, the new file is deleted and an old one stays as it was. A symbolic link
    stays a link: the file that it points to is replaced. With ``durable`` the file and its folder
    are flushed to the disk, so that the new name never points to an empty file after a power
    failure. A ``private`` file may be read by its owner alone, and replaces a symbolic link.
    """
    target = Path(path).absolute() if private else Path(os.path.realpath(path))
    # One found after a crash may be deleted.
    part = target.with_name(f".{target.name[:64]}.{secrets.token_hex(8)}.part")
    try:
        if private:
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield part
        if private:
            part.chmod(0o600)  # the block may have replaced it
        if durable:
            sync(part)
        part.replace(target)
        if durable:
            sync(target.parent)
    finally:
        part.unlink(missing_ok=True)


def lines_of(text: str) -> list[str]:
    r"""Return the lines of a text that was read from a file: they end with line feeds alone.

    ``str.splitlines`` also splits at other characters that texts of users may hold, such as U+2028,
    which JSON allows inside a string.

    >>> lines_of("one\u2028still one\ntwo\n")
    ['one\u2028still one', 'two']
    """
    return text.removesuffix("\n").split("\n") if text else []


def sync(path: str | os.PathLike[str]) -> None:
    """Flush a file or a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_database(path: str | os.PathLike[str], schema: str) -> sqlite3.Connection:
    """Open a database in a file that only its owner may read; create it with a schema.

    What is committed survives the end of the process (``kill -9``); a loss of power may lose the
    last commits. Several processes may write; each opens the database for itself. Threads may share
    the connection under a lock; every statement outside a transaction is committed by itself.
    """
    file = Path(path)
    with database_errors(file):
        if file.name != ":memory:":
            _create(file)
        base = sqlite3.connect(file, timeout=30, isolation_level=None, check_same_thread=False)
        try:
            base.execute("PRAGMA journal_mode = WAL")
            base.execute("PRAGMA synchronous = NORMAL")
            base.executescript(schema)
        except BaseException:
            base.close()
            raise
    return base


def _create(file: Path) -> None:
    """Create a file for its owner alone, where locks work."""
    # Locks of these file systems are not reliable enough for a database.
    unreliable = ("nfs", "cifs", "smb", "fuse.sshfs", "9p", "afs")
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (kind := _file_system(file.parent)).startswith(unreliable):
        raise TraceError(f"{file}: is on a network disk ({kind}); give a path on a local disk")
    os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))


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
