"""Models for the tests of the cluster: their answers are made from the text alone."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path

from support.waiting import LONGEST_WAIT


def uniform(*parts: str) -> float:
    """A number from 0 to 1 made from text."""
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def truth(text: str) -> str:
    """The right answer to a text."""
    return "ABC"[int(uniform("truth", text) * 3)]


class Model:
    """Right with a certain chance, and surer when it is right."""

    name, skill = "model", 0.5

    def __call__(self, text: str) -> tuple[str, float]:
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


class HeldSmall(Small):
    """Says which process works on a text, and waits with texts of ``hold ...`` to be let go.

    The folder is named by the variable RAY_TEST_FOLDER: ``started-PID-N`` appears there for each
    text, and ``go`` lets all go on.
    """

    def __init__(self) -> None:
        self._folder = Path(os.environ["RAY_TEST_FOLDER"])

    def __call__(self, text: str) -> tuple[str, float]:
        if text.startswith("hold"):
            number = text.rpartition(" ")[2]
            (self._folder / f"started-{os.getpid()}-{number}").touch()
            end = time.monotonic() + LONGEST_WAIT
            while not (self._folder / "go").exists() and time.monotonic() < end:
                time.sleep(0.01)
        return super().__call__(text)


class DiesOnce(Large):
    """Ends its process the first time it is asked about a certain text."""

    def __init__(self, folder: str, text: str) -> None:
        self._mark, self._text = Path(folder, "died"), text

    def __call__(self, text: str) -> tuple[str, float]:
        if text == self._text and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(text)


def killed_once(mark: str, name: str, *arguments: object) -> object:
    """Do a piece of work of a fit; the first process that gets so far is killed by the system."""
    from ttamer.ray import fitting

    done = getattr(fitting, name)._function(*arguments)
    try:
        Path(mark).touch(exist_ok=False)
    except FileExistsError:
        return done
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed processes do not go on")


def wait_for_mark(folder: str, number: int, other: int | None) -> int:
    """Leave a mark; wait for that of the other, if there is one."""
    end = time.monotonic() + LONGEST_WAIT
    while other is not None and not Path(folder, str(other)).exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{other} left no mark")
        time.sleep(0.01)
    Path(folder, str(number)).touch()
    return number


def fails_at_seven(text: str) -> tuple[str, float]:
    """Raises for every text that ends in 7."""
    if text.endswith("7"):
        raise ValueError("not this one")
    return Small()(text)


def of_its_batch(texts: list[str]) -> list[tuple[str, float]]:
    """Answers that depend on which texts came together."""
    return [(truth("".join(texts)), uniform(text, *texts)) for text in texts]


def fails_always():
    """Make a model that raises."""

    def model(text: str) -> tuple[str, float]:
        raise ValueError(text)

    return model


def raises_stop():
    """Make a model that raises what a future cannot carry."""

    def model(text: str) -> tuple[str, float]:
        raise StopIteration(text)

    return model


def says_nonsense():
    """Make a model whose confidence is no number."""

    async def model(text: str) -> tuple[str, str]:
        return text, "sure"

    return model


def with_margin():
    """A model that returns its margin."""

    def model(_: str) -> dict[str, object]:
        return {"prediction": "A", "confidence": 0.5, "margin": 0.25}

    return model


def returns_awaitable():
    """A plain model that returns something to await."""

    async def later(text: str) -> tuple[str, float]:
        return text, 0.5

    return lambda text: later(text)
