"""How many examples a property test draws: the profile scales what the test asks for.

The profile is HYPOTHESIS_PROFILE: ``same`` (the default: the same examples in every run), ``quick``
(a tenth of them) or ``explore`` (twenty times as many, new in every run; failing examples are kept
in ``tests/found`` and replayed by every later run).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

__all__ = ["DEFAULT_EXAMPLES", "PROFILE", "examples", "load_profile"]

FACTORS = {"quick": 0.1, "same": 1.0, "explore": 20.0}
DEFAULT_EXAMPLES = 100
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "same")


def examples(count: int, **options: Any) -> settings:
    """Return settings for a test that draws ``count`` examples in an ordinary run."""
    return settings(max_examples=max(3, round(count * FACTORS[PROFILE])), deadline=None, **options)


def load_profile() -> None:
    """Make the profile the default of all tests."""
    found = DirectoryBasedExampleDatabase(Path(__file__).parents[1] / "found")
    settings.register_profile(PROFILE, examples(DEFAULT_EXAMPLES), database=found)
    settings.load_profile(PROFILE)
