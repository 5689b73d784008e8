"""Progress is shown as a line."""

from __future__ import annotations

import io

import ttamer as tt
from ttamer.show import ProgressReport


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_is_overwritten_on_a_terminal_and_removed_at_the_end(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    report = ProgressReport(stream)
    report("estimating what the policies do")
    assert stream.getvalue() == "\r\x1b[Kestimating what the"  # a line that wraps would stay
    report.close()
    assert stream.getvalue().endswith("the\r\x1b[K")


def test_elsewhere_a_line_is_written_now_and_then():
    stream = io.StringIO()
    report = ProgressReport(stream)
    report("tried 1 of 3")
    report("tried 2 of 3")
    report.close()
    assert stream.getvalue() == "... tried 1 of 3\n"


def test_functions_show_their_progress(capsys):
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
