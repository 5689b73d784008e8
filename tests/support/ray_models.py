"""Models for the tests of the cluster: their answers are made from the text alone."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path


def uniform(*parts: str) -> float:
    """A number from 0 to 1 made from text."""
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def truth(text: str) -> str:
    """The right answer to a text."""
    return "ABC"[int(uniform("truth", text) * 3)]


class Model:
    """Right with a certain chance, and surer when it is right; counts its calls in a folder."""

    name, skill = "model", 0.5

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder

    def __call__(self, text: str) -> tuple[str, float]:
        if self._folder is not None:
            with Path(self._folder, f"{self.name}-{os.getpid()}").open("a") as file:
                file.write(text + "\n")
        right = uniform(self.name, text) < self.skill
        label = truth(text) if right else "ABC"[("ABC".index(truth(text)) + 1) % 3]
        sure = uniform(self.name, "sure", text)
        return label, 0.4 + 0.6 * sure if right else 0.7 * sure


class Small(Model):
    """Cheap, and often wrong."""

    name, skill = "small", 0.65


class Large(Model):
    """Expensive, and seldom wrong."""

    name, skill = "large", 0.95


class Broken(Small):
    """Cannot be created."""

    def __init__(self) -> None:
        raise RuntimeError("no file of weights")


class DiesOnce(Large):
    """Ends its process the first time it is asked about a certain text."""

    def __init__(self, folder: str, text: str) -> None:
        super().__init__(folder)
        self._mark, self._text = Path(folder, "died"), text

    def __call__(self, text: str) -> tuple[str, float]:
        if text == self._text and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(text)


def calls_of(folder: str, name: str) -> list[str]:
    """The texts that a node was asked about, over all processes."""
    files = Path(folder).glob(f"{name}-*")
    return [line for file in files for line in file.read_text().splitlines()]
