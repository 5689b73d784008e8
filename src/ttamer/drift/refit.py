"""Fitting in a child process, so that requests do not wait for a fit.

The child process (``python -m ttamer.drift.refit FOLDER``) reads the rows and the cascade from a
temporary folder, fits them with :func:`ttamer.fit` and writes the policy there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from ttamer.artefact.file import load, save
from ttamer.drift.audits import failure_text
from ttamer.errors import TTamerError
from ttamer.fitting.fits import fit
from ttamer.fitting.ladder import FittedLadder
from ttamer.trace.trace import Trace

ROWS, CASCADE, POLICY = "rows.npz", "cascade.toml", "policy.ttamer"


class RefitProcess:
    """Fits traces in a child process, one at a time; :meth:`stop` ends it for good.

    >>> refit = RefitProcess()
    >>> refit.stop()  # no fit is started after this

    Args:
        hidden: The environment variables that the child does not get, such as keys.
        timeout: The number of seconds after which a fit is ended.
    """

    niceness = 10  # requests have priority
    stopped = "the fit was stopped"

    def __init__(self, hidden: frozenset[str] = frozenset(), *, timeout: float = 3600.0) -> None:
        self._hidden, self._timeout = hidden, timeout
        self._process: subprocess.Popen[str] | None = None
        self._starting = threading.Lock()
        self._stopped = threading.Event()

    def __call__(self, rows: Trace) -> FittedLadder:
        """Fit a trace as :func:`ttamer.fit` does.

        Args:
            rows: The rows to fit.

        Returns:
            The fitted ladder.

        Raises:
            TTamerError: Where the fit fails, is stopped or takes too long; the text is that of the
                fit.
        """
        with TemporaryDirectory() as folder:
            rows.write(Path(folder, ROWS))
            Path(folder, CASCADE).write_text(rows.spec.to_toml(), "utf-8")
            if (error := self._run(folder)) is not None:
                raise TTamerError(error)
            ladder = load(Path(folder, POLICY))
        if not isinstance(ladder, FittedLadder):
            raise TTamerError(f"the fit wrote {type(ladder).__name__}, not a ladder")
        return ladder

    def stop(self) -> None:
        """End the current fit, and allow no other."""
        with self._starting:
            self._stopped.set()
            if self._process is not None:
                self._process.kill()

    def _run(self, folder: str) -> str | None:
        """Run the child process to its end, and return its error, if there is one."""
        with self._starting:
            if self._stopped.is_set():
                return self.stopped
            self._process = process = subprocess.Popen(  # noqa: S603 - our own module
                # -P: a module in the working directory must not take the place of ours.
                [sys.executable, "-P", "-m", "ttamer.drift.refit", folder],
                env={k: v for k, v in os.environ.items() if k not in self._hidden},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        with suppress(AttributeError, OSError):  # where the system has no priorities
            os.setpriority(os.PRIO_PROCESS, process.pid, self.niceness)
        with process:
            try:
                error = process.communicate(timeout=self._timeout)[1]
            except subprocess.TimeoutExpired:
                return f"the fit took more than {self._timeout:g} s"
            finally:
                process.kill()  # where it takes too long, or this thread is interrupted
                process.wait()
                with self._starting:
                    self._process = None
        if process.returncode == 0:
            return None
        if self._stopped.is_set():
            return self.stopped
        lines = error.strip().splitlines()
        if process.returncode < 0 or not lines:  # a signal: there are only warnings, if anything
            return f"the fit ended with status {process.returncode}"
        return lines[-1]


def main(arguments: Sequence[str]) -> int:
    """Fit the rows in a folder, and write the policy there; the entry point of the child process.

    Args:
        arguments: The folder.

    Returns:
        The exit status: 2, with one line on stderr, where the rows cannot be fitted.
    """
    (folder,) = map(Path, arguments)
    try:
        save(fit(Trace.read(folder / ROWS, folder / CASCADE)), folder / POLICY)
    except Exception as error:
        sys.stderr.write(" ".join(failure_text(error).split()) + "\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
