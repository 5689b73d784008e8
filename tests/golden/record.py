"""Record the digests again: ``python tests/golden/record.py [GROUP ...]``.

With names of groups (or beginnings of them) only those are recorded again. Files under ``files/``
are written once: what is there stays, since it stands for files that users have.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
DIGESTS = HERE / "digests.json"


def read() -> dict[str, dict[str, list[str]]]:
    """Return, by group and entry, the digest and the summary that were recorded."""
    return json.loads(DIGESTS.read_text("utf-8"))


def entries_of(name: str) -> dict[str, list[str]]:
    """Return the digest and the summary of each entry of a group, as the code is now."""
    from golden.canonical import digest, summary
    from golden.cases import GROUPS

    found: dict[str, list[str]] = {}
    for key, value in GROUPS[name]():
        if key in found:
            raise ValueError(f"{name}: there are two entries {key!r}")
        found[key] = [digest(value), summary(value)]
    return found


def record(wanted: list[str]) -> None:
    """Write the digests of these groups, or of all."""
    import ttamer as tt
    from golden.cases import GROUPS
    from golden.files import FILES, HERE as FOLDER

    FOLDER.mkdir(exist_ok=True)
    for name, (_, make) in FILES.items():
        path = FOLDER / f"{name}.ttamer"
        if not path.exists():
            tt.save(make(), path, notes={"golden": name})
    kept = read() if DIGESTS.exists() else {}
    kept = {name: kept[name] for name in GROUPS if name in kept}
    for name in GROUPS:
        if not wanted or name.startswith(tuple(wanted)):
            kept[name] = entries_of(name)
    ordered = {name: kept[name] for name in GROUPS if name in kept}
    DIGESTS.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    import conftest  # noqa: F401 - sums in the same order as in the tests

    record(sys.argv[1:])
