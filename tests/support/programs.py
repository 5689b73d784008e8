"""Programs that are no Python packages: a test that needs one is skipped where it is missing."""

from __future__ import annotations

import os
import shutil

import pytest

__all__ = ["require_program"]


def require_program(*names: str, package: str, purpose: str) -> str:
    """Return the path of the first program found; skip the test, or with CI set fail it.

    ``make test`` installs these packages where it may (as root, with apt).
    """
    for name in names:
        if found := shutil.which(name):
            return found
    reason = f"{purpose} needs {names[0]}: apt-get install {package}"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
