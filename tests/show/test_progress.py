"""Progress is shown as a bar where tqdm is installed, else as a line with the time left."""

from __future__ import annotations

import io
import sys

import pytest

import ttamer as tt
from ttamer import show as progress
from ttamer.show import ProgressReport, TimeLeft


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_time_left_follows_the_pace_of_the_work():
    clock = iter([0.0, 10.0, 20.0, 30.0, 100.0, 130.0])
    left = TimeLeft(clock=clock.__next__)
    assert left.of("1 of 4") == ""
    assert left.of("2 of 4") == ", about 20 s left"
    assert left.of("3 of 4") == ", about 10 s left"
    assert left.of("4 of 4") == ""
    assert left.of("1 of 9") == ""  # other work starts
    assert left.of("2 of 9") == ", about 4 min left"


def test_a_line_is_overwritten_on_a_terminal_and_removed_at_the_end():
    stream = Terminal()
    report = ProgressReport(stream, bar=False)
    report("tried 1 of 3")
    report.close()
    assert stream.getvalue() == "\r\x1b[Ktried 1 of 3\r\x1b[K"


def test_a_line_does_not_wrap_on_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    ProgressReport(stream, bar=False)("estimating what the policies do")
    assert stream.getvalue() == "\r\x1b[Kestimating what the"


def test_elsewhere_a_line_is_written_now_and_then():
    stream = io.StringIO()
    report = ProgressReport(stream, bar=False)
    report("tried 1 of 3")
    report("tried 2 of 3")
    report.close()
    assert stream.getvalue() == "... tried 1 of 3\n"


def test_a_bar_of_tqdm_moves():
    pytest.importorskip("tqdm")
    stream = io.StringIO()
    report = ProgressReport(stream)
    report("reading")
    report("tried 1 of 4")
    report("tried 3 of 4")
    assert "3/4" in stream.getvalue()
    report.close()
    report.close()


def test_without_tqdm_it_is_a_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    assert progress._tqdm() is None


def test_functions_show_their_progress(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_tqdm", lambda: None)
    nodes = {"a": lambda x: (x % 2, 0.5 + x % 3 / 10), "b": lambda x: (x % 2, 0.9)}
    trace = tt.collect(range(120), nodes, labels=[x % 2 for x in range(120)], progress=True)
    assert "of 120 inputs" in capsys.readouterr().err
    tt.fit(trace, belief="markov", states=4, progress=True)
    assert "..." in capsys.readouterr().err
    tt.frontier(trace, trace, families=["threshold", "chain"], resamples=0, progress=True)
    assert "fitting threshold (1 of 2)" in capsys.readouterr().err


def test_a_function_of_the_user_is_called_as_before():
    lines = []
    trace = tt.collect(range(120), {"a": lambda x: (x % 2, 0.5)}, labels=[0, 1] * 60)
    tt.fit(trace, belief="markov", states=4, progress=lines.append)
    assert lines
    assert all(isinstance(line, str) and line for line in lines)
