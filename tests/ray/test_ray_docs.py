"""What docs/ray.md shows really runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ttamer.trace.spec import CascadeSpec

PAGE = (Path(__file__).parents[2] / "docs" / "ray.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.usefixtures("cluster")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")  # Ray's own
def test_the_code_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}  # so that models travel with the work
    for code in blocks("py"):
        exec(compile(code, "ray.md", "exec"), names)  # noqa: S102 - our own page
    assert "180 rows" in capsys.readouterr().out


@pytest.mark.usefixtures("cluster")
def test_the_cascade_can_be_served():
    from ttamer.ray.replicas import read_placements

    (text,) = blocks("toml")
    _, placements = read_placements(CascadeSpec.from_toml(text))
    assert [placed.replicas for placed in placements.values()] == [(1, 4), (2, 2)]
    assert [placed.model for placed in placements.values()] == ["models:Small", None]
