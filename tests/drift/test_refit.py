"""Fitting in a process of its own comes to the same, and can be ended."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest

import ttamer as tt
from support.shifting import rows_of
from support.waiting import until
from ttamer.drift import refit as refit_module
from ttamer.drift.refit import RefitProcess
from ttamer.errors import TTamerError


def test_it_decides_as_a_fit_here_would():
    rows, new = rows_of(300, seed=5), rows_of(200, seed=6)
    aside, here = RefitProcess()(rows), tt.fit(rows)
    assert aside.fitted.spec == rows.spec
    for one, two in zip(aside.play_all(new), here.play_all(new), strict=True):
        assert np.array_equal(one.asked, two.asked)
        assert np.array_equal(one.answer, two.answer)


def test_rows_that_cannot_be_fitted_to_are_refused_in_the_words_of_a_fit():
    with pytest.raises(TTamerError, match="3 rows"):
        RefitProcess()(rows_of(3, seed=5))


def test_stopped_it_ends_what_is_under_way_and_fits_no_more():
    fit, said = RefitProcess(), []

    def work():
        try:
            fit(rows_of(20_000, seed=5))
        except TTamerError as error:
            said.append(str(error))

    worker = threading.Thread(target=work)
    worker.start()
    until(lambda: fit._process is not None)
    fit.stop()
    worker.join(60)
    assert said == ["the fit was stopped"]
    with pytest.raises(TTamerError, match="stopped"):
        fit(rows_of(300, seed=5))


def test_interrupted_it_leaves_no_process(monkeypatch):
    started = []

    def interrupted(process, **_):
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    fit = RefitProcess()
    with pytest.raises(KeyboardInterrupt):
        fit(rows_of(20_000, seed=5))
    assert started[0].returncode is not None
    assert fit._process is None


def test_a_fit_that_hangs_is_ended():
    """Else the loop takes no rows, and an operator who holds it waits for ever."""
    refit = RefitProcess(timeout=0.01)
    with pytest.raises(TTamerError, match=r"the fit took more than 0\.01 s"):
        refit(rows_of(20_000, seed=5))
    assert refit._process is None


def test_a_child_that_is_killed_is_not_reported_by_its_last_warning(monkeypatch):
    command = [sys.executable, "-c", "import os, sys; sys.stderr.write('a warning\\n'); "
               "sys.stderr.flush(); os.kill(os.getpid(), 9)"]  # fmt: skip
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **options: start(command, **options))
    with pytest.raises(TTamerError, match=r"^the fit ended with status -9$"):
        RefitProcess()(rows_of(300, seed=5))


def test_texts_of_other_errors_which_may_hold_answers_stay_in_the_child(
    tmp_path, monkeypatch, capsys
):
    def broken(_):
        raise KeyError("an answer")

    rows = rows_of(60, seed=5)
    rows.write(tmp_path / refit_module.ROWS)
    (tmp_path / refit_module.CASCADE).write_text(rows.spec.to_toml())
    monkeypatch.setattr(refit_module, "fit", broken)
    assert refit_module.main([str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("KeyError at test_refit.py")
