"""Every error a user can meet.

::

    TTamerError                 catch this one to catch them all
    ├── ArgumentError           an argument outside its range (a tradeoff of 1.2)
    ├── ProblemError            a problem that cannot be: names the node, edge or row
    ├── CascadeError            a cascade.toml that cannot be: names the table and the key
    ├── TraceError              a log that cannot be used: names the file, column and row
    ├── ObservationError        a session cannot use what it was given
    ├── ArtefactError           a .ttamer file that will not be opened
    │   ├── ArtefactDamaged     cut short, altered, or no policy file
    │   └── ArtefactTooNew      written by a later version of the format
    └── MissingExtra            an optional part is not installed

A warning of the package is a ``TraceWarning``: a log that can be used, and probably should not be.

A message says what is wrong, where, what was received, and what to do; ``param`` is the
argument that is wrong, where there is one.
"""

from __future__ import annotations


class TTamerError(Exception):
    """The base class of all errors that this package raises."""

    def __init__(self, message: str = "", *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param  # the argument that is wrong; the command line names its flag


class ArgumentError(TTamerError, ValueError):
    """An argument has a type or a value that the function does not accept."""


class ProblemError(TTamerError, ValueError):
    """A problem is not well formed, or has no policy that is certain to answer."""


class CascadeError(TTamerError, ValueError):
    """A description of a cascade is not well formed."""


class TraceError(TTamerError, ValueError):
    """A trace cannot be read, or lacks a column that is needed."""


class ObservationError(TTamerError, ValueError):
    """A session or a batch was given an observation it cannot use."""


class ArtefactError(TTamerError):
    """A policy file could not be opened."""


class ArtefactDamaged(ArtefactError):  # noqa: N818 - named after what happened
    """The file is not a policy file, is cut short, or was altered."""


class ArtefactTooNew(ArtefactError):  # noqa: N818 - named after what happened
    """The file was written in a later version of the format."""


class MissingExtra(TTamerError, ImportError):  # noqa: N818 - named after what happened
    """An optional dependency is needed for this and is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs {package}, which is not installed: pip install 'ttamer[{extra}]'"
        )
        self.package, self.extra = package, extra

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        return MissingExtra, (self.package, self.extra)


class TraceWarning(UserWarning):
    """A trace can be used, but probably has a mistake, or too few rows.

    It is raised for a class that is written in two ways, and for a fit to fewer than 100 rows.

    >>> import warnings
    >>> warnings.simplefilter("error", TraceWarning)  # treat it as an error
    """
