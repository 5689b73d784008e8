"""The settings and the policy that the processes of a gateway serve, kept in its private folder.

A process that is started again reads these: the files of the command may have changed since, with
no reload yet or with one that was refused.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import TYPE_CHECKING

from ttamer._files import atomic_write
from ttamer.artefact.container import DIGEST
from ttamer.errors import ArtefactError
from ttamer.serve.config import read_settings, settings_from
from ttamer.trace.spec import CascadeSpec

if TYPE_CHECKING:
    from pathlib import Path

    from ttamer.serve.config import Settings

__all__ = ["AcceptedFiles"]


class AcceptedFiles:
    """What a gateway has accepted last: its cascade, and a copy of its artefact.

    Args:
        folder: The private folder.
    """

    def __init__(self, folder: Path) -> None:
        self._state, self._artefacts = folder / "accepted.json", folder / "artefacts"

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been accepted yet."""
        return self._read() is None

    def settings(self, path: str) -> Settings:
        """Return the settings that were accepted last; before the first, those of a file.

        Raises:
            CascadeError: If the file cannot be read, or a key or value is not allowed.
        """
        found = self._read()
        if found is None:
            return read_settings(path)
        return settings_from(CascadeSpec.from_toml(found["cascade"]))

    def instead_of(self, path: Path) -> Path | None:
        """Return the copy of the artefact that was accepted last.

        Args:
            path: The file of the command.

        Returns:
            The copy; ``None`` where there is none, and where the file holds the same.
        """
        found = self._read()
        if found is None:
            return None
        with suppress(OSError):
            if _is(path.read_bytes(), found["version"]):
                return None
        copy = self._copy_of(found["version"])
        return copy if copy.exists() else None

    def copy(self, path: Path, version: str) -> None:
        """Copy an artefact that can be served.

        Args:
            path: The file.
            version: The version of what was loaded from it.

        Raises:
            ArtefactError: If the file has changed since.
        """
        target = self._copy_of(version)
        if target.exists():
            return
        content = path.read_bytes()
        if not _is(content, version):
            raise ArtefactError(f"{path}: changed while it was loaded; reload it again")
        self._artefacts.mkdir(mode=0o700, exist_ok=True)
        with atomic_write(target, private=True) as part:
            part.write_bytes(content)

    def accept(self, spec: CascadeSpec, version: str) -> None:
        """Let processes that start from now on serve this cascade, and this artefact."""
        before = self._read()
        with atomic_write(self._state, private=True) as part:
            part.write_text(json.dumps({"cascade": spec.to_toml(), "version": version}), "utf-8")
        if before is not None and before["version"] != version:
            self._copy_of(before["version"]).unlink(missing_ok=True)

    def _read(self) -> dict[str, str] | None:
        try:
            found: dict[str, str] = json.loads(self._state.read_bytes())
        except FileNotFoundError:
            return None
        return found

    def _copy_of(self, version: str) -> Path:
        return self._artefacts / f"{version}.ttamer"


def _is(content: bytes, version: str) -> bool:
    """Return whether an artefact is of a version: the checksum at its end."""
    checksum = hashlib.sha256(content[:-DIGEST]).hexdigest()
    return content[-DIGEST:].hex() == checksum == version
