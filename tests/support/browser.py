"""A real browser: headless Chromium."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from support.programs import require_program

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def headless(
    profile: Path, what: str, *, reach: str = "MAP * ~NOTFOUND", milliseconds: int = 4000
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs Chromium on some address, with its output and messages.

    ``reach`` says which hosts there are: without, it would ask its maker for news.
    """
    binary = require_program(
        "chromium",
        "chromium-browser",
        "google-chrome",
        package="chromium",
        purpose=f"looking at {what}",
    )

    def run(address: str, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                binary,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--hide-scrollbars",
                "--enable-logging=stderr",
                f"--user-data-dir={profile}",
                f"--host-resolver-rules={reach}",
                f"--virtual-time-budget={milliseconds}",
                *options,
                address,
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )

    return run
