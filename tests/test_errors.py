"""The tree of errors."""

from __future__ import annotations

import inspect
import pickle

import pytest

from ttamer import errors

CLASSES = [value for value in vars(errors).values() if isinstance(value, type)]
EVERY = [value for value in CLASSES if issubclass(value, errors.TTamerError)]


def test_every_error_is_a_ttamer_error_and_is_exported():
    defined = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    assert set(defined) == {*EVERY, errors.TraceWarning}
    assert issubclass(errors.TraceWarning, UserWarning)
    assert all(issubclass(kind, errors.TTamerError) for kind in EVERY)


@pytest.mark.parametrize("kind", EVERY)
def test_every_error_stands_in_the_tree_of_the_docstring(kind):
    assert f" {kind.__name__} " in errors.__doc__.replace("\n", " ")


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.ArgumentError, ValueError),
        (errors.ProblemError, ValueError),
        (errors.ObservationError, ValueError),
        (errors.MissingExtra, ImportError),
        (errors.ArtefactDamaged, errors.ArtefactError),
        (errors.ArtefactTooNew, errors.ArtefactError),
    ],
)
def test_an_error_is_also_what_people_catch(kind, builtin):
    assert issubclass(kind, builtin)


def test_a_missing_extra_reports_what_is_missing_and_how_to_install_it():
    assert str(errors.MissingExtra("pyarrow", "io")) == (
        "this needs pyarrow, which is not installed: pip install 'ttamer[io]'"
    )


def test_a_missing_extra_survives_the_way_back_from_a_worker_process():
    error = errors.MissingExtra("pyarrow", "io")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own bytes
