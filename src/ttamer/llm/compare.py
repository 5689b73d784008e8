r"""When two answers count as equal: the rule ``[serve] compare``.

An answer is reduced to its *prediction*, the form that is compared with other nodes' and with
labels; ``None`` stands for an answer without content, which equals nothing.

- ``exact``: the text unchanged.
- ``normalised``: letter case, spacing, and punctuation at the ends do not count.
- ``choice``: the letter of a multiple-choice answer.
- ``numeric``: the last number in the text, or in its last ``\boxed{}``; a fraction or a power is
  one number, and two numbers are equal within ``tolerance``.
- ``json``: the JSON value in the text, or its listed ``fields``, whatever its spacing and order.
- ``contains``: an answer is right if it contains the label, or any of several aliases separated by
  ``|``, as whole words; two answers are equal if one contains the other.

With a tolerance and with ``contains``, equality is not transitive. Within one request a prediction
is therefore replaced by the first earlier one that it equals (:meth:`Comparison.matched`), and
labels are compared one by one (:meth:`Comparison.is_right`).

All this takes time that grows with the length of a text alone.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, get_args

from ttamer.errors import ArgumentError

ComparisonKind = Literal["exact", "normalised", "choice", "numeric", "json", "contains"]


@dataclass(frozen=True)
class Comparison:
    """A rule of comparison and its options.

    >>> Comparison("numeric", tolerance=0.01).is_right("It is about 3.14.", "3.1416")
    True
    >>> Comparison("contains").is_right("Paris, the capital of France.", "Paris | City of Light")
    True

    Args:
        kind: The rule.
        tolerance: The largest difference of two equal numbers, with ``numeric``.
        fields: Dotted paths of the values that are compared, with ``json``; by default all.

    Raises:
        ArgumentError: If an option is out of range, or does not belong to the rule.
    """

    kind: ComparisonKind = "normalised"
    tolerance: float = 0.0
    fields: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in get_args(ComparisonKind):
            names = ", ".join(f'"{name}"' for name in get_args(ComparisonKind))
            raise ArgumentError(f"compare is {self.kind!r}; it must be one of {names}")
        for option, kind in (("tolerance", "numeric"), ("fields", "json")):
            if option in self.options and kind != self.kind:
                raise ArgumentError(
                    f'{option} applies to compare = "{kind}" only, not "{self.kind}"; remove it'
                )
        if not 0 <= self.tolerance < math.inf:
            raise ArgumentError(
                f"tolerance is {self.tolerance!r}; it must be finite and not negative"
            )

    @property
    def options(self) -> dict[str, Any]:
        """The options that are set."""
        values = dataclasses.asdict(self)
        del values["kind"]
        return {name: value for name, value in values.items() if value}

    def __str__(self) -> str:
        """The kind, and the options that are set."""
        return self.kind + (f" {json.dumps(self.options)}" if self.options else "")

    @property
    def is_transitive(self) -> bool:
        """Whether equal answers always have the same prediction."""
        return self.kind != "contains" and not self.tolerance

    def prediction(self, text: str) -> str | None:
        """Return the form of an answer that is compared.

        >>> Comparison("normalised").prediction(" The  Moon. ")
        'the moon'
        >>> Comparison("choice").prediction("The answer is (B).")
        'B'
        >>> Comparison("numeric").prediction("6 x 7 = 42.0")
        '42'
        >>> Comparison("json", fields=("a",)).prediction('{"b": 1, "a": [2.0]}')
        '{"a":[2]}'

        Args:
            text: The answer.

        Returns:
            The prediction; ``None`` for an answer without content under this rule.
        """
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode()  # JSON may hold half a character
        if self.kind == "exact":
            return text or None
        if self.kind == "choice":
            return _choice_of(text)
        if self.kind == "numeric":
            value = _number_of(text)
            return None if value is None else repr(_plain_json(value))
        if self.kind == "json":
            return _json_form(text, self.fields)
        return _normalised(text) or None

    def aliases(self, label: str | Sequence[str]) -> list[str]:
        """Return the forms of a label that predictions are compared with: any of them is right.

        >>> Comparison("contains").aliases("Paris | City of Light")
        ['paris', 'city of light']

        Args:
            label: The text of the label, or several texts.

        Returns:
            Its forms; none for a label without content.
        """
        texts = [label] if isinstance(label, str) else label
        if self.kind == "contains":
            texts = [alias for text in texts for alias in text.split("|")]
        return [*filter(None, dict.fromkeys(map(self.prediction, texts)))]

    def equal(self, first: str | None, second: str | None) -> bool:
        """Return whether two predictions are equal; ``None`` equals nothing.

        >>> Comparison("numeric", tolerance=0.5).equal("1.2", "1.6")
        True

        Args:
            first: A prediction.
            second: Another prediction.

        Returns:
            Whether they are equal under this rule.
        """
        if first is None or second is None:
            return False
        if first == second:
            return True
        if self.kind == "contains":
            return _has_words(first, second) or _has_words(second, first)
        if not self.tolerance:
            return False
        # A relative error of a few ulp: 0.1 + 0.2 is within 0.1 of 0.2.
        gap = abs(float(first) - float(second))
        return gap <= self.tolerance or math.isclose(gap, self.tolerance, rel_tol=1e-9)

    def is_right(self, answer: str, label: str | Sequence[str]) -> bool:
        """Return whether an answer is right.

        >>> Comparison("choice").is_right("The answer is (B).", "B")
        True

        Args:
            answer: The text of the answer, or its prediction.
            label: The text of the label, or several, any of which is right.

        Returns:
            Whether it is right under this rule.
        """
        form = self.prediction(answer)
        if form is not None and self.kind == "contains":
            return any(_has_words(form, alias) for alias in self.aliases(label))
        return any(self.equal(form, alias) for alias in self.aliases(label))

    def matched(self, predictions: Sequence[str | None]) -> list[str | None]:
        """Return predictions for one request, each replaced by the first one that it equals.

        >>> Comparison("contains").matched(["paris", None, "it is paris"])
        ['paris', None, 'paris']

        Args:
            predictions: The predictions for one request, in order.

        Returns:
            A list of the same length.
        """
        matched: list[str | None] = []
        for prediction in predictions:
            earlier = (candidate for candidate in matched if self.equal(prediction, candidate))
            matched.append(next(earlier, prediction))
        return matched


def quoted(text: str | Sequence[str]) -> str:
    """Return a text, or the first of several, in quotes, cut where it is long."""
    text = text if isinstance(text, str) else text[0]
    return repr(text if len(text) <= 60 else f"{text[:60]}...")


# The forms of answers: letters, numbers, JSON, texts without case and spacing


class _Letter:
    """Where an answer to a multiple choice has its letter."""

    letter = r"(?:([A-HJ-Z])\b|(I)\b(?![\s']+[a-z]))"  # not the pronoun
    # The letter is all that the answer begins with: "B", "(B)", "B. Paris", "A (Paris)".
    first = re.compile(
        r"[\s(\[*\"'#`$>-]*(?:([A-Z])\s+\(|([A-Za-z])"
        r"(?:(?:[)\].:,*\"]|'(?!\w))+(?!\s*(?:is|was)\b)|[`$]?\s*(?:$|\n)|\s+[-\u2013\u2014]))"
    )
    # The options are listed first: their A) is no answer.
    listed = re.compile(r"^[^\w\n]*B[).:]", re.MULTILINE)
    # "The answer is B", "correct option: (b)", "B is the correct"; the last one counts.
    stated = re.compile(
        r"(?i:\b(?:answer|(?:correct|right|best)\s+(?:choice|option)))[*_]*"
        r"(?i:\s+(?:is|was|would\s+be|should\s+be|must\s+be)\b|\s*[:=])"
        r"(?i:[\s:*_]*(?:therefore|thus|the|option|choice|letter)\b)*[\s:*_(\[\"'$]*"
        rf"(?:{letter}|([a-z])(?=[).\],;:]|\s*(?:\Z|\n)))"
        r"|(?:\b([A-Z])\b[)\]*]*(?i:\s+is\s+(?:the\s+)?(?:correct|right|best)\b))"
    )
    # "Option B", "I would pick B": only where nothing is stated.
    named = re.compile(
        r"(?i:answer|choice|option|choose|pick|select|go\s+with)(?i:\s+is)?"
        rf"[\s:*(\[\"'>]*\b{letter}"
    )
    bracketed = re.compile(r"[(\[]([A-Z])[)\]]")
    ending = re.compile(r"(?<![\w'\u2019])([A-HJ-Z])[)\].\"'*!]*\s*\Z")  # as in "I think it's A."
    alone = re.compile(  # neither the article nor the pronoun
        r"\b([B-HJ-Z])\b|\b([AI])(?=\s+(?:or|and|nor)\s+[A-Z]\b)"
    )
    styled = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")


class _Number:
    """How numbers are written."""

    minus = "[-\u2212]"
    power = rf"\^\{{?((?:\+|{minus})?\d{{1,3}})\}}?"
    # Not an exponent; with a currency, with thousands apart, with a power of ten.
    number = re.compile(
        rf"(?<![\w.^])(?<!\^[-+{{\u2212])(?<!\^\{{[-+\u2212])((?:\+|{minus})?)"
        r"(?:\\?[$\u20ac\u00a3\u00a5])?"
        r"((?:\d{1,3}(?:(?:,|\{,\}|\\,|[\u00a0\u2009\u202f])\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
        r"(?:[eE]([-+]?\d{1,3}))?"
        rf"(?:\s*(?:[\u00d7x*\u00b7]|\\times|\\cdot)\s*10{power}|{power})?"
    )
    separators = re.compile(r"[^\d.]")
    fraction = re.compile(r"(\d?)\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
    raised = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b]+")
    # In normalised text; a hyphen within a range is no minus.
    in_text = re.compile(rf"(?:(?<![^\W_]){minus})?(?:\d{{1,3}}(?:,\d{{3}})+(?!\d)|\d+)(?:\.\d+)?")


class _Written:
    """What models write in several ways."""

    # Quotes, hyphens and the minus sign.
    alike = str.maketrans(
        dict.fromkeys("\u2018\u2019\u02bc", "'")
        | dict.fromkeys("\u201c\u201d", '"')
        | dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-")
    )
    json_start = re.compile(r'\{\s*["}]|\[\s*(?:[]["{\d-]|true|false|null)')  # not braces in prose
    # One way to match the line break: else a long run of them takes quadratic time.
    fence = re.compile(r"```(?:json)?[^\S\n]*\n(.*?)```", re.DOTALL)


def _normalised(text: str) -> str:
    """Return a text without differences of case, of spacing, and of punctuation at the ends."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).translate(_Written.alike)
    words = " ".join(text.casefold().split())
    start, end = 0, len(words)
    while start < end and not (
        words[start].isalnum() or _begins(words[start], words[start + 1 : start + 2])
    ):
        start += 1
    while start < end and not (
        words[end - 1].isalnum() or _ends(words[end - 1], words[max(start, end - 2) : end - 1])
    ):
        end -= 1
    return words[start:end]


def _begins(character: str, following: str) -> bool:
    """Whether a character begins an answer: punctuation does not, a sign or a decimal point does.

    A hyphen before a space begins an item of a list.
    """
    if character == "-":
        return following not in ("", " ")
    return _counts(character) or (character == "." and following.isdecimal())


def _ends(character: str, before: str) -> bool:
    """Whether a character ends an answer, such as that of "A-" and "C#"."""
    if character == "-":
        return before not in ("", " ")
    if character == "#":
        return before.isalnum()
    return _counts(character)


def _counts(character: str) -> bool:
    """Whether a character at an end of an answer counts: currency signs and digits do."""
    return character == "%" or (unicodedata.category(character)[0] not in "PZ" and character != "`")


def _boxed(text: str) -> str:
    r"""Return what stands in the last ``\boxed{}`` of a text; nothing where there is none."""
    mark = "\\boxed{"
    start = text.rfind(mark)
    if start < 0:
        return ""
    start += len(mark)
    depth = 1
    for end in range(start, len(text)):
        depth += (text[end] == "{") - (text[end] == "}")
        if not depth:
            return text[start:end]
    return text[start:]


def _choice_of(text: str) -> str | None:
    """Return the letter of a multiple-choice answer."""
    if (inner := _boxed(text)) and (letter := _choice_of(_Letter.styled.sub(r"\1", inner))):
        return letter
    first = _Letter.first.match(text)
    letter = None if first is None else str(first[1] or first[2]).upper()
    is_list = first is not None and letter == "A" and bool(_Letter.listed.search(text, first.end()))
    if letter and not is_list:
        return letter
    for pattern in (_Letter.stated, _Letter.named):
        if named := list(pattern.finditer(text)):
            return str(next(filter(None, named[-1].groups()))).upper()
    if is_list:
        return None
    for letters in (
        set(_Letter.bracketed.findall(text)),
        {a or b for a, b in _Letter.alone.findall(text)} | {*_Letter.ending.findall(text)},
    ):
        if len(letters) == 1:
            return str(letters.pop())
    return None


def _number_of(text: str) -> float | None:
    r"""Return the last finite number in a text, or in its last ``\boxed{}``."""
    if (inner := _boxed(text)) and (value := _number_of(inner)) is not None:
        return value
    if not text.isascii():
        text = _Number.raised.sub(
            lambda raised: f"^{{{unicodedata.normalize('NFKC', raised[0])}}}", text
        )
    if "frac{" in text:
        text = _Number.fraction.sub(lambda f: f"{f[1]}{' ' if f[1] else ''}{f[2]}/{f[3]}", text)
    numbers = (
        (match.start(), match.end(), finite)
        for match in reversed(list(_Number.number.finditer(text)))
        if (finite := _value(match)) is not None
    )
    start, _, value = next(numbers, (0, 0, None))
    if value is None or "/" not in text[max(0, start - 3) : start]:
        return value
    over = next(numbers, None)
    if over is None or text[over[1] : start].strip() != "/":
        return value
    units = next(numbers, None)
    gap = "" if units is None else text[units[1] : over[0]]
    if gap.strip() == "/":  # of a date
        return value
    value = over[2] / value if value else math.inf
    if units is not None and gap == " " and units[2].is_integer() and 0 < value < 1:  # as in 1 3/4
        value = units[2] + math.copysign(value, units[2])
    return value if math.isfinite(value) else None


def _value(match: re.Match[str]) -> float | None:
    """Return the value of a number; ``None`` where it is not finite."""
    sign, digits, exponent, tens, power = (
        (group or "").replace("\u2212", "-") for group in match.groups()
    )
    try:
        value = float(f"{_Number.separators.sub('', digits)}e{exponent or tens or 0}")
        value = value ** int(power) if power else value
    except (OverflowError, ZeroDivisionError):
        return None
    if not math.isfinite(value):
        return None
    return -value if sign == "-" else value


def _json_form(text: str, fields: tuple[str, ...]) -> str | None:
    """Return the JSON value in a text, or some fields of it, in one form."""
    try:
        value = _json_value(text)
        if fields:
            picked = {path: _at(value, path) for path in fields}
            value = {path: values[0] for path, values in picked.items() if values}
            if not value:
                return None
        return json.dumps(
            _plain_json(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False
        )
    except (ValueError, RecursionError):
        return None


def _json_value(text: str) -> Any:
    """Return the JSON value that a text is, or that it holds in a code fence or after prose."""
    decoder = json.JSONDecoder(parse_constant=_refuse)
    for part in (text, *(match[1] for match in _Written.fence.finditer(text))):
        try:
            return decoder.decode(part.strip())
        except ValueError:
            continue
    start = _Written.json_start.search(text)
    if start is None:
        raise ValueError("there is no JSON")
    return decoder.raw_decode(text, start.start())[0]


def _refuse(name: str) -> NoReturn:
    """Refuse NaN and infinities, which are not JSON."""
    raise ValueError(f"{name} is not JSON")


def _plain_json(value: Any) -> Any:
    """Return a JSON value in which 1.0 is 1."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("a number is too large")
        return int(value) if value.is_integer() and abs(value) < 1e15 else value
    if isinstance(value, dict):
        return {key: _plain_json(item) for key, item in value.items()}
    return [_plain_json(item) for item in value] if isinstance(value, list) else value


def _at(value: Any, path: str) -> list[Any]:
    """Return the value at a dotted path in a list; an empty list where there is none."""
    for step in path.split("."):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return []
    return [value]


def _has_words(text: str, part: str) -> bool:
    """Return whether a normalised text contains another one as whole words and numbers."""
    numbers = [*_Number.in_text.finditer(text)] if re.search(r"\d", part) else []

    def is_in_number(index: int) -> bool:
        number = bisect_left(numbers, index, key=re.Match.start) - 1
        return number >= 0 and index < numbers[number].end()

    # Slices of one character: a copy of the rest for each match would take quadratic time.
    start = text.find(part)
    while start >= 0:
        end = start + len(part)
        before, after = text[start - 1 : start], text[end : end + 1]
        is_cut = _joins(before, part[:1]) or _joins(part[-1:], after)
        if not is_cut and not is_in_number(start) and not is_in_number(end):
            return True
        start = text.find(part, start + 1)
    return False


def _joins(before: str, after: str) -> bool:
    """Whether two neighbouring characters are within one word."""
    return before.isalnum() and after.isalnum()
