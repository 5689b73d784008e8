from __future__ import annotations

import errno
import json
import os
import stat

import pytest

from ttamer.errors import ArgumentError
from ttamer.runtime import jsonl
from ttamer.runtime.jsonl import JsonLines, json_line
from ttamer.runtime.references import import_reference


def rows(file: JsonLines) -> list:
    return [json.loads(line) for _, line in file.lines()]


def test_what_is_appended_is_read_back_by_line_number(tmp_path):
    path = tmp_path / "log"
    with JsonLines(path, sync_lines=2) as file:
        for row in range(5):
            file.append(json_line(row))
    with JsonLines(path) as file:
        assert list(file.lines()) == [(row + 1, str(row).encode()) for row in range(5)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("block", [1, 3, 1 << 16])
@pytest.mark.parametrize("whole", [0, 1, 3])
def test_a_line_cut_short_is_removed_wherever_it_was_cut(tmp_path, monkeypatch, whole, block):
    monkeypatch.setattr(jsonl, "_BLOCK", block)
    line = json_line({"row": "x" * 9})
    for cut in range(len(line)):
        path = tmp_path / f"log-{cut}"
        path.write_bytes(line * whole + line[:cut])
        with JsonLines(path) as file:
            assert file.size == len(line) * whole
            file.append(line)
            assert len(rows(file)) == whole + 1
        assert path.read_bytes() == line * (whole + 1)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "no space left"), KeyboardInterrupt("no space left")]
)
def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch, error):
    path, line = tmp_path / "log", json_line([1, 2, 3])
    real = os.write

    def full_disk(handle: int, data: memoryview) -> int:
        if len(data) < len(line):
            raise error
        return real(handle, data[:4])

    with JsonLines(path) as file:
        file.append(line)
        monkeypatch.setattr(os, "write", full_disk)
        with pytest.raises(type(error), match="no space left"):
            file.append(line)
        monkeypatch.setattr(os, "write", real)
        file.append(line)
    assert path.read_bytes() == line * 2


def test_lines_that_cannot_be_flushed_are_not_kept(tmp_path, monkeypatch):
    def broken(_handle: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    with JsonLines(tmp_path / "log", sync_lines=1) as file:
        file.append(json_line(1))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", broken)
            with pytest.raises(OSError, match="input/output error"):
                file.append(json_line(2))
        file.append(json_line(2))
        assert rows(file) == [1, 2]


def test_what_json_has_no_form_for_is_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_line(float("nan"))


def test_references():
    assert import_reference("os.path:join") is os.path.join
    for bad in ("os", "os:", ":path", ""):
        with pytest.raises(ArgumentError, match="named as module:function"):
            import_reference(bad)
    for missing in ("os:no_such_name", "no_such_module:x"):
        with pytest.raises(ArgumentError, match=f"{missing} cannot be imported"):
            import_reference(missing)
