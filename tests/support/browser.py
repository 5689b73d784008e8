"""A real browser: headless Chromium, or a word on how to get it."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def headless(
    profile: Path, what: str, *, reach: str = "MAP * ~NOTFOUND", milliseconds: int = 4000
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs Chromium on some address, with its output and messages.

    ``reach`` says which hosts there are: without, it would ask its maker for news.
    """
    binary = shutil.which("chromium") or shutil.which("chromium-browser")
    if binary is None:
        advice = f"install Chromium to look at {what}: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(advice)
        pytest.skip(advice)

    def run(address: str, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [binary, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             "--hide-scrollbars", "--enable-logging=stderr", f"--user-data-dir={profile}",
             f"--host-resolver-rules={reach}", f"--virtual-time-budget={milliseconds}",
             *options, address],
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip

    return run
