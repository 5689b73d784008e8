"""Django's translations as labelled texts: which strings are kept, and under which language.

A *message* is a gettext msgid; its translations are the texts. The rules are those of README.md.
"""

from __future__ import annotations

import hashlib
import re
import struct
import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIN_LETTERS = 8

# The languages that Django has and all five detectors can name.
_LANGUAGES = (
    "af ar az be bg bn bs ca cs cy da de el en eo es et eu fa fi fr ga he hi hr hu hy id is it ja "
    "ka kk ko lt lv mk mn mr ms nl no pa pl pt ro ru sk sl sq sr sv sw ta te th tr uk ur vi "
    "zh"
)
LANGUAGES = frozenset(_LANGUAGES.split())

# Catalogues named otherwise than their language.
CATALOGUE_LANGUAGE = {"nb": "no", "nn": "no", "pt_BR": "pt", "zh_Hans": "zh", "zh_Hant": "zh"}

# Left out: regional variants that mostly repeat another catalogue, and Serbian in Latin letters,
# hard to distinguish from Croatian and Bosnian.
_LEFT_OUT = "ar_DZ en_AU en_GB es_AR es_CO es_MX es_NI es_VE sr_Latn"
LEFT_OUT = frozenset(_LEFT_OUT.split())

_NOT_TEXT = re.compile(
    r"%\([^)]*\)[#0\- +]*\d*(?:\.\d+)?[a-zA-Z]"  # %(name)s
    r"|%[sdifr%]"
    r"|\{[^{}]*\}"
    r"|<[^<>]*>"
    r"|&[a-z]+;"
    r"|https?://\S+"
)
_DENSE = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")  # kana, Han, Hangul


@dataclass(frozen=True, order=True)
class Text:
    """One string, in the language of its catalogue."""

    message: str
    language: str
    text: str

    @property
    def part(self) -> str:
        """Fit or test: decided by the message, so no message is in both."""
        return ("fit", "test")[hashlib.sha256(self.message.encode()).digest()[0] & 1]


def texts(django: Path) -> tuple[list[Text], dict[str, int]]:
    """Return the strings kept, sorted, and how many were left out for which reason."""
    left_out: Counter[str] = Counter()
    kept: dict[tuple[str, str], Text] = {}
    for text, english in sorted(set(_all(django))):
        if text.language != "en" and text.text in english:
            left_out["not translated"] += 1
        elif letters(text.text) < MIN_LETTERS:
            left_out[f"fewer than {MIN_LETTERS} letters"] += 1
        elif (text.language, text.text) in kept:
            left_out["again in the same language"] += 1
        else:
            kept[text.language, text.text] = text
    languages = Counter(text.text for text in kept.values())
    unique = sorted(text for text in kept.values() if languages[text.text] == 1)
    left_out["the same in two languages"] = len(kept) - len(unique)
    return unique, dict(left_out)


def clean(text: str) -> str:
    """Remove placeholders, markup and addresses, which are the same in every language."""
    return " ".join(_NOT_TEXT.sub(" ", text).split())


def letters(text: str) -> int:
    """Count letters and their marks; one of kana, Han or Hangul counts two."""
    return sum(unicodedata.category(c)[0] in "LM" for c in text) + len(_DENSE.findall(text))


def _all(django: Path) -> Iterator[tuple[Text, tuple[str, ...]]]:
    """Yield every string with the English of its message."""
    for path in sorted(django.rglob("*.mo")):
        catalogue = path.parent.parent.name
        language = CATALOGUE_LANGUAGE.get(catalogue, catalogue)
        for key, value in _read_mo(path):
            if not key:
                continue  # the catalogue's own header
            forms = key.split("\x04")[-1].split("\0")  # context, then singular and plural
            english = tuple(map(clean, forms))
            yield Text(forms[0], "en", english[-1]), english
            if language in LANGUAGES and catalogue not in LEFT_OUT:
                yield Text(forms[0], language, clean(value.split("\0")[-1])), english


def _read_mo(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a compiled gettext catalogue."""
    data = path.read_bytes()
    end = "<" if data[:4] == b"\xde\x12\x04\x95" else ">"
    count, keys, values = struct.unpack(f"{end}3I", data[8:20])

    def string(table: int, number: int) -> str:
        length, start = struct.unpack_from(f"{end}2I", data, table + 8 * number)
        return data[start : start + length].decode()

    return ((string(keys, number), string(values, number)) for number in range(count))
