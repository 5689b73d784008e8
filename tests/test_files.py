from __future__ import annotations

import os

import pytest

from ttamer._files import atomic_write


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
    assert os.readlink(tmp_path / "link") == str(tmp_path / "file")  # noqa: PTH115
    assert (tmp_path / "file").read_text() == "new"
