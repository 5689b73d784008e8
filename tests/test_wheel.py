"""The built wheel, not the source tree, is what users get."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_wheel_holds_the_whole_package_and_works_alone(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--no-build-isolation",
             "--quiet", "--disable-pip-version-check", "-w", str(tmp_path)]  # fmt: skip
    subprocess.run(build, check=True, capture_output=True, text=True)
    [wheel] = tmp_path.glob("ttamer-*.whl")
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
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "site")],
                          capture_output=True, text=True, check=True)  # fmt: skip
    where, value = done.stdout.split()
    assert where.startswith(str(tmp_path))
    assert float(value) > 0
