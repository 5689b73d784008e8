"""The built wheel, not the source tree, is what users get."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_wheel_holds_the_whole_package_and_works_alone(tmp_path):
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        str(ROOT),
        "--no-deps",
        "--no-build-isolation",
        "--quiet",
        "--disable-pip-version-check",
        "-w",
        str(tmp_path),
    ]
    subprocess.run(build, check=True, capture_output=True, text=True)
    [wheel] = tmp_path.glob("ttamer-*.whl")
    assert wheel.stat().st_size < 3_000_000
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if name.startswith("ttamer/")}
        archive.extractall(tmp_path / "site")
    source = ROOT / "src"
    wanted = {
        path.relative_to(source).as_posix()
        for path in (source / "ttamer").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == wanted
    assert "ttamer/py.typed" in inside
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import ttamer as tt\n"
        "problem = tt.Problem.line([0.1, 0.5], [0.1], [[0.5, 0.5]])\n"
        "print(tt.__file__, tt.solve(problem, 0.9).value)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "site")],
        capture_output=True,
        text=True,
        check=True,
    )
    where, value = done.stdout.split()
    assert where.startswith(str(tmp_path))
    assert float(value) > 0
    check_types(tmp_path)


def check_types(folder: Path) -> None:
    """Check the types of a user's program against the wheel that was unpacked in a folder."""
    program = folder / "program.py"
    program.write_text(
        "from collections.abc import Callable\n"
        "from typing import Any\n"
        "import ttamer as tt\n"
        "from ttamer.runtime import batched\n"
        "trace: tt.Trace = tt.Trace.read('log.csv', {'small': 1.0, 'large': 12.5})\n"
        "ladder: tt.FittedLadder = tt.fit(trace)\n"
        "policy: tt.FittedPolicy | tt.Mixture = ladder.for_budget(3.0)\n"
        "result: tt.Result = tt.evaluate(policy, trace)\n"
        "nodes: dict[str, Callable[[Any], Any]] = {\n"
        "    'small': lambda text: (text, 0.5), 'large': batched(lambda texts: texts)}\n"
        "outcome: tt.Outcome = tt.Cascade(ladder.default(), nodes).run('x')\n"
        "tt.fit(3)  # type: ignore[arg-type]\n"
    )
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--cache-dir",
        str(folder / "cache"),
        str(program),
    ]
    paths = {"MYPYPATH": str(folder / "site"), "PYTHONPATH": "", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        command, capture_output=True, text=True, env=paths, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stdout
