"""Fitting in a process of its own, so that requests do not wait for it.

What a person would do by hand: write the rows to a file, ``ttamer fit``, load what it wrote.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ttamer.artefact.files import load
from ttamer.errors import TTamerError
from ttamer.fitted.ladder import FittedLadder

if TYPE_CHECKING:
    from ttamer.trace.trace import Trace

__all__ = ["FitAside"]

NICENESS = 10
"""Whoever answers requests goes first."""


class FitAside:
    """Fits a trace as ``ttamer.fit`` does, one at a time; :meth:`stop` ends it for good."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._starting = threading.Lock()
        self._stopped = threading.Event()

    def __call__(self, rows: Trace) -> FittedLadder:
        """Return the ladder; a :class:`~ttamer.errors.TTamerError` says why there is none."""
        with TemporaryDirectory() as folder:
            trace, policy = Path(folder, "rows.npz"), Path(folder, "policy.ttamer")
            cascade = Path(folder, "cascade.toml")
            rows.write(trace)
            cascade.write_text(rows.spec.to_toml(), "utf-8")
            said = self._run("fit", trace, "--cascade", cascade, "--json", "--output", policy)
            if said is not None:
                raise TTamerError(said)
            ladder = load(policy)
        assert isinstance(ladder, FittedLadder)  # noqa: S101 - fit writes nothing else
        return ladder

    def stop(self) -> None:
        """End the fit under way, and allow no other."""
        with self._starting:
            self._stopped.set()
            if self._process is not None:
                self._process.kill()

    def _run(self, *arguments: str | Path) -> str | None:
        """Run a command of ttamer to its end, and return what went wrong."""
        with self._starting:
            if self._stopped.is_set():
                return "the fit was stopped"
            self._process = process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "ttamer", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        with suppress(AttributeError, OSError):  # where there is no such thing
            os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
        said = process.communicate()[1]
        self._process = None
        if process.returncode == 0:
            return None
        if self._stopped.is_set():
            return "the fit was stopped"
        lines = said.strip().splitlines()
        return lines[-1] if lines else f"the fit ended with status {process.returncode}"
