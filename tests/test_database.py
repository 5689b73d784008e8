"""Databases: private, safe under kill -9, and refused in words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from ttamer import TraceError, _files
from ttamer._files import open_database

SCHEMA = "CREATE TABLE IF NOT EXISTS t (x)"


def test_what_was_committed_survives_a_kill_and_another_process_may_write(tmp_path):
    path = tmp_path / "new" / "a.db"
    with_us = open_database(path, SCHEMA)
    code = f"""
import os, signal
from ttamer._files import open_database
base = open_database({str(path)!r}, {SCHEMA!r})
for x in range(100):
    base.execute("INSERT INTO t VALUES (?)", (x,))
os.kill(os.getpid(), signal.SIGKILL)
"""  # noqa: S608 - a program, and a number
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    with_us.execute("INSERT INTO t VALUES (100)")
    assert [x for (x,) in with_us.execute("SELECT x FROM t ORDER BY x")] == list(range(101))
    assert os.stat(path).st_mode & 0o777 == 0o600  # noqa: PTH116
    with_us.close()


def test_what_cannot_be_opened_is_refused_in_words(tmp_path, monkeypatch):
    text = tmp_path / "text.db"
    text.write_text("no database, but long enough to have a header " * 30)
    with pytest.raises(TraceError, match=r"text\.db: cannot be used as a database: file is not"):
        open_database(text, SCHEMA)
    (tmp_path / "folder").mkdir()
    with pytest.raises(TraceError, match="folder: cannot be written: Is a directory"):
        open_database(tmp_path / "folder", SCHEMA)
    monkeypatch.setattr(_files, "_file_system", lambda _: "nfs4")
    with pytest.raises(TraceError, match=r"is on a network disk \(nfs4\); give a path on a local"):
        open_database(tmp_path / "b.db", SCHEMA)
