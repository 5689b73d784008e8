"""Golden digests: fits, decisions, artefacts and interfaces are what they were when recorded.

A change here is a change that users see. Where it is meant, record again
(``python tests/golden/record.py GROUP``), look at the difference of the summaries, and say in
the commit why.
"""

from __future__ import annotations

import pytest

from golden.cases import GROUPS
from golden.record import entries_of, read

RECORDED = read()


def test_every_group_is_recorded():
    assert sorted(RECORDED) == sorted(GROUPS)


@pytest.mark.parametrize("name", RECORDED)
def test_nothing_has_changed(name):
    old, new = RECORDED[name], entries_of(name)
    changed = [
        f"{key}\n  was    {old.get(key, ['', 'not there'])[1]}"
        f"\n  is now {new.get(key, ['', 'not there'])[1]}"
        for key in dict.fromkeys((*old, *new))
        if old.get(key, [None])[0] != new.get(key, [None])[0]
    ]
    if changed:
        count = f"{len(changed)} of {len(old)} entries of {name!r} changed"
        pytest.fail("\n".join([count, *changed]), pytrace=False)
