"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# The suffix of a file that is being written; one found after a crash may be deleted.
PART_SUFFIX = ".part"


@contextmanager
def atomic_write(
    path: str | os.PathLike[str], *, durable: bool = False, private: bool = False
) -> Iterator[Path]:
    """Yield a path in the same folder to write to; at the end it takes the place of ``path``.

    If the block raises, the new file is deleted and an old one stays as it was. A symbolic link
    stays a link: the file that it points to is replaced.

    Args:
        path: The file to write.
        durable: Flush the file and its folder to the disk, so that the new name never points to
            an empty file after a power failure.
        private: Only its owner may read the file (mode 600), and a symbolic link at ``path`` is
            replaced instead of followed.

    Raises:
        OSError: If the folder cannot be written to.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(Path(folder, "a.txt")) as part:
    ...         _ = part.write_text("whole")
    ...     [(file.name, file.read_text()) for file in Path(folder).iterdir()]
    [('a.txt', 'whole')]
    """
    target = Path(path).absolute() if private else Path(os.path.realpath(path))
    part = target.with_name(f".{target.name[:64]}.{secrets.token_hex(8)}{PART_SUFFIX}")
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
    """Flush a file or a folder to the disk.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sync(folder)
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
