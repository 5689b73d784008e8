"""Files appear whole; databases are private, safe under kill -9, and refused in words."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from ttamer import TraceError, _files
from ttamer._files import atomic_write, open_database

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
    assert path.stat().st_mode & 0o777 == 0o600
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


def test_a_file_appears_whole_and_nothing_else_is_left(tmp_path):
    with atomic_write(tmp_path / "a", durable=True) as part:
        part.write_text("new")
        assert not (tmp_path / "a").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_error_leaves_the_old_file(tmp_path):
    (tmp_path / "a").write_text("old")

    def write() -> None:
        with atomic_write(tmp_path / "a") as part:
            part.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "old")]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with atomic_write(tmp_path / "link") as part:
        part.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"


def test_a_private_file_is_its_owners_and_replaces_a_link(tmp_path):
    (tmp_path / "file").write_text("of all")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with atomic_write(tmp_path / "link", private=True) as part:
        part.write_text("mine")
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "file").read_text() == "of all"
