"""Build the wheel and the sdist, install each in an environment of its own, and try them.

Run by ``make release-check``: the built files are left in ``dist``.
"""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SMOKE = """
import ttamer as tt
from ttamer import datasets

problem = tt.Problem.line([0.1, 0.5], [0.1], [[0.5, 0.5]])
assert tt.solve(problem, 0.9).value > 0
trace = datasets.load("langid", part="fit").take(slice(300))
turn = tt.fit(trace)[-1].session()
while turn.next is not None:
    turn.observe(confidence=0.9, prediction="fr")
assert turn.answer in trace.names
print(tt.__version__)
"""
"""What an installation must be able to do."""


def main() -> None:
    """Build, check and try."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    run(sys.executable, "-m", "hatchling", "build", "-d", dist, cwd=ROOT)
    [wheel], [sdist] = dist.glob("*.whl"), dist.glob("*.tar.gz")
    version = check_metadata(wheel)
    check_sdist(sdist)
    if not re.search(rf"^## \[?{re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M):
        raise SystemExit(f"CHANGELOG.md has no section for {version}")
    for built in (wheel, sdist):
        with tempfile.TemporaryDirectory() as folder:
            venv.create(folder, with_pip=True)
            bin_ = Path(folder) / "bin"
            pins = ROOT / "constraints.txt"
            run(bin_ / "python", "-m", "pip", "install", "--quiet", "-c", pins, built)
            said = run(bin_ / "python", "-c", SMOKE, cwd=folder).strip()
            said_too = run(bin_ / "ttamer", "--version", cwd=folder).strip()
            if (said, said_too) != (version, f"ttamer {version}"):
                raise SystemExit(f"{built.name} installs {said} and {said_too}, not {version}")
            print(f"{built.name}: installed apart and tried")


def check_metadata(wheel: Path) -> str:
    """Return the version, after checking what the registry will show."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        facts = email.message_from_string(archive.read(name).decode())
        names = archive.namelist()
    wanted = {"Name": "ttamer", "License-Expression": "Apache-2.0", "Requires-Python": ">=3.11"}
    for field, value in wanted.items():
        if facts[field] != value:
            raise SystemExit(f"{wheel.name}: {field} is {facts[field]!r}, not {value!r}")
    if facts["Description-Content-Type"] != "text/markdown" or "# ttamer" not in str(facts):
        raise SystemExit(f"{wheel.name}: the README is not its description")
    if "ttamer/py.typed" not in names or any(each.startswith("tests") for each in names):
        raise SystemExit(f"{wheel.name}: py.typed is missing, or tests are inside")
    return str(facts["Version"])


def check_sdist(sdist: Path) -> None:
    """Check that the source has what is needed to build and to test."""
    with tarfile.open(sdist) as archive:
        names = {each.name.partition("/")[2] for each in archive.getmembers()}
    for needed in ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "Makefile"):
        if needed not in names:
            raise SystemExit(f"{sdist.name}: {needed} is missing")


def run(*command: object, cwd: Path | str | None = None) -> str:
    """Run a command and return its output; end with its messages if it fails."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, cwd=cwd, env=own, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
