r"""When two answers count as equal: the rule ``[serve] compare``.

An answer is reduced to its *prediction*, the form that is compared with other nodes' and with
labels; ``None`` stands for an answer without content, which equals nothing.

- ``exact``: the text unchanged.
- ``normalised``: letter case, spacing, and punctuation at the ends do not count.
- ``choice``: the letter of a multiple-choice answer.
- ``numeric``: the last number in the text, or in its last ``\boxed{}``; a fraction or a power is
  one number, and two numbers are equal within ``tolerance``.
- ``json``: the JSON value in the text, or its listed ``fields``, whatever its spacing and order.
- ``regex``: what ``pattern`` matches last (its group, if it has one), normalised.
- ``contains``: an answer is right if it contains the label, or any of several aliases separated by
  ``|``, as whole words; two answers are equal if one contains the other.
- ``embedding``: two texts are equal if the cosine of their embeddings is at least ``threshold``; an
  answer is right if it equals the label, or any of several aliases separated by ``|``.

A :class:`Comparison` is the rule. A :class:`Comparer` applies it to many pairs at once, and may
wait for what a pair needs, such as the embeddings of its texts.

With a tolerance, with ``contains`` and with ``embedding``, equality is not transitive. Within one
request a prediction is therefore replaced by the first earlier one that it equals
(:meth:`Comparer.matched`), and labels are compared one by one (:meth:`Comparer.right`).
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, get_args

from ttamer.errors import ArgumentError, TraceError

ComparisonKind = Literal[
    "exact", "normalised", "choice", "numeric", "json", "regex", "contains", "embedding"
]
"""The names of the rules."""
Texts = Sequence[str | None]
"""The answers of the nodes to one prompt; ``None`` where a node gave none."""
Pair = tuple[str, str]
"""Two texts that are compared."""
PairScore = Callable[[Sequence[Pair]], Awaitable[Sequence[float]]]
"""From pairs of texts to how alike each is: the cosine of two embeddings, or another number from
-1 to 1 that grows with likeness."""
ALIAS_SEPARATOR = "|"
"""What separates the aliases in a label, with ``contains`` and ``embedding``."""
MAX_SHOWN = 60
"""The number of characters of a text in a message."""
MAX_PATTERN_TEXT = 20_000
"""The number of characters at the end of an answer in which a pattern is searched."""

_LETTER = r"(?:([A-HJ-Z])\b|(I)\b(?![\s']+[a-z]))"  # a letter, and not the pronoun
_FIRST = re.compile(
    r"[\s(\[*\"'#`$>-]*(?:([A-Z])\s+\(|([A-Za-z])"
    r"(?:(?:[)\].:,*\"]|'(?!\w))+(?!\s*(?:is|was)\b)|[`$]?\s*(?:$|\n)|\s+[-\u2013\u2014]))"
)
_LISTED = re.compile(r"^[^\w\n]*B[).:]", re.MULTILINE)
_STATED = re.compile(
    r"(?i:\b(?:answer|(?:correct|right|best)\s+(?:choice|option)))[*_]*"
    r"(?i:\s+(?:is|was|would\s+be|should\s+be|must\s+be)\b|\s*[:=])"
    r"(?i:[\s:*_]*(?:therefore|thus|the|option|choice|letter)\b)*[\s:*_(\[\"'$]*"
    rf"(?:{_LETTER}|([a-z])(?=[).\],;:]|\s*(?:\Z|\n)))"
    r"|(?:\b([A-Z])\b[)\]*]*(?i:\s+is\s+(?:the\s+)?(?:correct|right|best)\b))"
)
_NAMED = re.compile(rf"(?i:answer|choice|option)(?i:\s+is)?[\s:*(\[\"'>]*\b{_LETTER}")
_BRACKETED = re.compile(r"[(\[]([A-Z])[)\]]")
_ENDING = re.compile(r"(?<![\w'\u2019])([A-HJ-Z])[)\].\"'*!]*\s*\Z")  # as in "I think it's A."
_ALONE = re.compile(r"\b([B-HJ-Z])\b")  # neither the article nor the pronoun
_STYLED = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")

_MINUS = "[-\u2212]"
_POWER = rf"\^\{{?((?:\+|{_MINUS})?\d{{1,3}})\}}?"
_NUMBER = re.compile(
    rf"(?<![\w.^])(?<!\^[-+{{\u2212])(?<!\^\{{[-+\u2212])((?:\+|{_MINUS})?)(?:\\?[$\u20ac\u00a3\u00a5])?"
    r"((?:\d{1,3}(?:(?:,|\{,\}|\\,|[\u00a0\u2009\u202f])\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
    r"(?:[eE]([-+]?\d{1,3}))?"
    rf"(?:\s*(?:[\u00d7x*\u00b7]|\\times|\\cdot)\s*10{_POWER}|{_POWER})?"
)
_DIGIT = re.compile(r"\d")
_SEPARATORS = re.compile(r"[^\d.]")
_FRACTION = re.compile(r"(\d?)\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
_RAISED = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b]+")
_IN_NUMBER = re.compile(rf"(?:(?<![^\W_]){_MINUS})?(?:\d{{1,3}}(?:,\d{{3}})+(?!\d)|\d+)(?:\.\d+)?")
_WRITTEN_ALIKE = str.maketrans(
    dict.fromkeys("\u2018\u2019\u02bc", "'")
    | dict.fromkeys("\u201c\u201d", '"')
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-")
)
"""Signs that some models write in another form: quotes, hyphens and the minus sign."""
_JSON_START = re.compile(r'\{\s*["}]|\[\s*(?:[]["{\d-]|true|false|null)')  # not braces in prose
_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)


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
        pattern: The regular expression, with ``regex``.
        threshold: The cosine from which two texts are equal, with ``embedding``; ``None`` where it
            is still to be fitted (:func:`ttamer.llm.fit_threshold`).

    Raises:
        ArgumentError: If an option is out of range, or does not belong to the rule.
    """

    kind: ComparisonKind = "normalised"
    tolerance: float = 0.0
    fields: tuple[str, ...] = ()
    pattern: str = ""
    threshold: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(ComparisonKind):
            names = ", ".join(f'"{name}"' for name in get_args(ComparisonKind))
            text = f"compare is {self.kind!r}; it must be one of {names}"
            if str(self.kind) == "judge":
                text += "; for a judge use ttamer collect --judge NODE"
            raise ArgumentError(text)
        for option, kind in (("tolerance", "numeric"), ("fields", "json"), ("pattern", "regex")):
            if getattr(self, option) and self.kind != kind:
                raise ArgumentError(
                    f'{option} applies to compare = "{kind}" only, not "{self.kind}"; remove it'
                )
        if self.threshold is not None:
            if self.kind != "embedding":
                raise ArgumentError(
                    f'threshold applies to compare = "embedding" only, not "{self.kind}"; remove it'
                )
            if not -1 <= self.threshold <= 1:
                raise ArgumentError(
                    f"threshold is {self.threshold!r}; it is a cosine, from -1 to 1"
                )
        if not 0 <= self.tolerance < math.inf:
            raise ArgumentError(
                f"tolerance is {self.tolerance!r}; it must be finite and not negative"
            )
        if self.kind == "regex":
            self._check_pattern()

    def _check_pattern(self) -> None:
        if not self.pattern:
            raise ArgumentError('compare = "regex" needs a pattern, such as "answer is (\\\\w+)"')
        try:
            groups = re.compile(self.pattern).groups
        except (re.error, OverflowError, RecursionError) as error:
            raise ArgumentError(
                f"pattern is {self.pattern!r}, which is not a regular expression: {error}"
            ) from None
        if groups > 1:
            raise ArgumentError(
                f"pattern is {self.pattern!r}, with {groups} groups; write at most one, and "
                "(?:...) for the others"
            )

    def __str__(self) -> str:
        """The kind, and the options that are set."""
        options = {
            "tolerance": self.tolerance or None,
            "fields": list(self.fields) or None,
            "pattern": self.pattern or None,
            "threshold": self.threshold,
        }
        stated = {name: value for name, value in options.items() if value is not None}
        return self.kind + (f" {json.dumps(stated)}" if stated else "")

    def unmatched(self, label: str | None, answer: str | None) -> str:
        """Return the message where no answer equals any label, with the first of each.

        Args:
            label: The first label.
            answer: The first answer.

        Returns:
            What is wrong, and what to do.
        """
        return (
            f'no answer equals any label under compare = "{self}": the first label is '
            f"{_shown(label)} and the first answer {_shown(answer)}; choose another compare under "
            "[serve]"
        )

    @property
    def is_transitive(self) -> bool:
        """Whether equal answers always have the same prediction."""
        return self.kind not in ("contains", "embedding") and not self.tolerance

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
        if self.kind == "embedding":
            return text.strip() or None
        if self.kind == "choice":
            return _choice(text)
        if self.kind == "numeric":
            value = _number(text)
            return None if value is None else repr(_plain(value))
        if self.kind == "json":
            return _json_text(text, self.fields)
        if self.kind == "regex":
            return self._matched_text(text)
        return _normalised(text) or None

    def label(self, text: str) -> str | None:
        """Return the form of a label, or ``None`` for one without content.

        It is the prediction of its text; with ``regex`` also of a text that the pattern does not
        match, and with ``contains`` and ``embedding`` its aliases.

        Args:
            text: The label.

        Returns:
            The form that predictions are compared with.

        >>> Comparison("regex", pattern="answer is ([a-z]+)").label("Blue")
        'blue'
        """
        if self.kind in ("contains", "embedding"):
            form = _normalised if self.kind == "contains" else str.strip
            aliases = (form(alias) for alias in text.split(ALIAS_SEPARATOR))
            return ALIAS_SEPARATOR.join(filter(None, aliases)) or None
        prediction = self.prediction(text)
        if prediction is None and self.kind == "regex":
            return _normalised(text) or None
        return prediction

    def equal(self, first: str | None, second: str | None) -> bool:
        """Return whether two predictions are equal; ``None`` equals nothing.

        Args:
            first: A prediction.
            second: Another prediction.

        Returns:
            Whether they are equal under this rule.

        Raises:
            ArgumentError: With ``embedding``, for texts that differ; see :class:`Comparer`.

        >>> Comparison("numeric", tolerance=0.5).equal("1.2", "1.6")
        True
        """
        if first is None or second is None:
            return False
        if first == second:
            return True
        if self.kind == "embedding":
            raise ArgumentError(
                'compare = "embedding" needs the embeddings of the texts: use Comparer, with score'
            )
        if self.kind == "numeric" and self.tolerance:
            # A relative error of a few ulp: 0.1 + 0.2 is within 0.1 of 0.2.
            gap = abs(float(first) - float(second))
            return gap <= self.tolerance or math.isclose(gap, self.tolerance, rel_tol=1e-9)
        if self.kind == "contains":
            return _has_words(first, second) or _has_words(second, first)
        return False

    def is_right(self, answer: str, label: str) -> bool:
        """Return whether an answer is right.

        Args:
            answer: The text of the answer, or its prediction.
            label: The text of the label; with ``contains``, one or more aliases.

        Returns:
            Whether it is right under this rule.

        >>> Comparison("choice").is_right("The answer is (B).", "B")
        True
        """
        form = self.prediction(answer)
        if self.kind == "embedding":
            return any(self.equal(form, alias) for alias in _aliases(self.label(label)))
        if self.kind != "contains":
            return self.equal(form, self.label(label))
        aliases = (_normalised(alias) for alias in label.split(ALIAS_SEPARATOR))
        return form is not None and any(alias and _has_words(form, alias) for alias in aliases)

    def _matched_text(self, text: str) -> str | None:
        """Return what the pattern matches last."""
        matches = deque(re.finditer(self.pattern, text[-MAX_PATTERN_TEXT:]), maxlen=1)
        if not matches:
            return None
        return _normalised(matches[0][matches[0].re.groups] or "") or None


@dataclass(frozen=True)
class Comparer:
    """A rule of comparison that is applied to many pairs at once.

    >>> import asyncio
    >>> comparer = Comparer(Comparison("numeric", tolerance=0.5))
    >>> asyncio.run(comparer.equal([("1.2", "1.6"), ("1", "3")]))
    [True, False]

    Args:
        rule: The rule.
        score: How alike the texts of pairs are, with ``embedding``;
            :func:`ttamer.llm.cosines` makes it of a function from texts to vectors.

    Raises:
        ArgumentError: With ``embedding``, without a threshold or a score.
    """

    rule: Comparison
    score: PairScore | None = None

    def __post_init__(self) -> None:
        if self.rule.kind == "embedding" and (self.score is None or self.rule.threshold is None):
            raise ArgumentError(
                'compare = "embedding" needs a score, which embeds texts, and a threshold; fit one '
                "with fit_threshold"
            )

    async def equal(self, pairs: Sequence[tuple[str | None, str | None]]) -> list[bool]:
        """Return for each pair of predictions whether they are equal; ``None`` equals nothing.

        Args:
            pairs: Pairs of predictions.

        Returns:
            One truth value for each pair.
        """
        if self.score is None or self.rule.threshold is None:
            return [self.rule.equal(a, b) for a, b in pairs]
        asked = [(a, b) for a, b in pairs if a is not None and b is not None and a != b]
        scores = dict(zip(asked, await self.score(asked), strict=True)) if asked else {}
        return [
            a is not None and b is not None and (a == b or scores[a, b] >= self.rule.threshold)
            for a, b in pairs
        ]

    async def right(self, pairs: Sequence[Pair]) -> list[bool]:
        """Return for each answer and its label whether the answer is right.

        Args:
            pairs: Pairs of an answer and a label.

        Returns:
            One truth value for each pair.
        """
        if self.score is None:
            return [self.rule.is_right(answer, label) for answer, label in pairs]
        by_alias = [
            [(self.rule.prediction(answer), alias) for alias in _aliases(self.rule.label(label))]
            for answer, label in pairs
        ]
        equal = iter(await self.equal([pair for group in by_alias for pair in group]))
        verdicts = [[next(equal) for _ in group] for group in by_alias]
        return [any(group) for group in verdicts]

    async def matched(self, prediction: str | None, earlier: Sequence[str | None]) -> str | None:
        """Return the first earlier prediction that this one equals, or else itself.

        >>> import asyncio
        >>> comparer = Comparer(Comparison("numeric", tolerance=0.5))
        >>> asyncio.run(comparer.matched("1.2", ["7", "1.6"]))
        '1.6'

        Args:
            prediction: A prediction.
            earlier: The predictions of other nodes for the same request.

        Returns:
            The earlier prediction, or ``prediction`` where it equals none of them.
        """
        equal = await self.equal([(prediction, candidate) for candidate in earlier])
        candidates = zip(earlier, equal, strict=True)
        return next((candidate for candidate, is_equal in candidates if is_equal), prediction)

    async def matched_all(self, predictions: Sequence[str | None]) -> list[str | None]:
        """Return predictions for one request, each replaced by the first one that it equals.

        >>> import asyncio
        >>> comparer = Comparer(Comparison("contains"))
        >>> asyncio.run(comparer.matched_all(["paris", None, "it is paris"]))
        ['paris', None, 'paris']

        Args:
            predictions: The predictions for one request, in order.

        Returns:
            A list of the same length.
        """
        pairs = [(p, earlier) for k, p in enumerate(predictions) for earlier in predictions[:k]]
        equal = dict(zip(pairs, await self.equal(pairs), strict=True))
        matched: list[str | None] = []
        for prediction in predictions:
            earlier = (candidate for candidate in matched if equal[prediction, candidate])
            matched.append(next(earlier, prediction))
        return matched

    async def right_prediction(self, label: str, predictions: Sequence[str | None]) -> str:
        """Return the first prediction that is right, or else the label.

        >>> import asyncio
        >>> comparer = Comparer(Comparison("contains"))
        >>> asyncio.run(comparer.right_prediction("paris|rome", ["oslo", "it is paris"]))
        'it is paris'

        Args:
            label: A label, such as :meth:`Comparison.label` returns.
            predictions: The predictions for one request.

        Returns:
            A prediction of the request, or ``label`` where none is right.
        """
        answers = [prediction for prediction in predictions if prediction is not None]
        right = await self.right([(answer, label) for answer in answers])
        verdicts = zip(answers, right, strict=True)
        return next((answer for answer, is_right in verdicts if is_right), label)


def label_form(label: str | Sequence[str], rule: Comparison) -> str:
    """Return the form of a label, or of its aliases, that predictions are compared with.

    Raises:
        TraceError: If there are aliases and the rule takes one text, or there is no content under
            the rule.

    >>> label_form(["Paris", "Paname"], Comparison("contains"))
    'paris|paname'
    """
    if not isinstance(label, str):
        if rule.kind not in ("contains", "embedding"):
            raise TraceError(
                f'the label is a list of aliases, and compare = "{rule}" takes one text; use '
                'compare = "contains" or "embedding"'
            )
        label = ALIAS_SEPARATOR.join(label)
    form = rule.label(label)
    if form is None:
        raise TraceError(f'the label {_shown(label)} has no content under compare = "{rule}"')
    return form


@dataclass(frozen=True)
class ComparedAnswers:
    """What a trace has of answers: their predictions, and labels or which answers are right."""

    prediction: list[list[str | None]]
    label: Sequence[str] | None = None
    correct: list[list[bool | None]] | None = None
    """Where labels are compared one by one: equality is not transitive."""

    def notes(self, rule: Comparison, names: Sequence[str], answers: Sequence[Texts]) -> list[str]:
        """Return how many answers of each node have no content, for those that have some.

        >>> compared = ComparedAnswers([["4", None], ["5", "5"]])
        >>> print(*compared.notes(Comparison("numeric"), ["a", "b"], [["4", "four"], ["5", "5"]]))
        1 of 2 answers of 'b' has no content under compare = "numeric", such as 'four'

        Args:
            rule: The rule of comparison.
            names: The nodes.
            answers: The answers to each prompt, in the order of the nodes.

        Returns:
            A text for each node with such answers.
        """
        notes = []
        for node, name in enumerate(names):
            texts = [
                (row[node] or "").strip()
                for row, read in zip(answers, self.prediction, strict=True)
                if read[node] is None and row[node] is not None
            ]
            if not texts:
                continue
            total = sum(row[node] is not None for row in answers)
            has = "has" if len(texts) == 1 else "have"
            note = (
                f"{len(texts)} of {total} answers of {name!r} {has} no content under "
                f'compare = "{rule}"'
            )
            if unread := next(filter(None, texts), None):
                note += f", such as {_shown(unread)}"
            if empty := texts.count(""):
                note += f", {empty} of them no text: a model that reasons needs more max_tokens"
            notes.append(note)
        return notes


async def compare_answers(
    comparer: Comparer, answers: Sequence[Texts], labels: Sequence[str] | None
) -> ComparedAnswers:
    """Compare answers with one another, and with labels where there are some.

    >>> import asyncio
    >>> comparer = Comparer(Comparison("choice"))
    >>> asyncio.run(compare_answers(comparer, [["(B)", "C."]], ["B"])).prediction
    [['B', 'C']]

    Args:
        comparer: The rule of comparison.
        answers: The answers to each prompt, in the order of the nodes; ``None`` for none.
        labels: The forms of the labels, such as
            :func:`~ttamer.llm.compare.label_form` returns.

    Returns:
        The predictions, and the labels or which answers are right.

    Raises:
        TraceError: If no answer is right.
    """
    rule = comparer.rule
    predictions = [[None if t is None else rule.prediction(t) for t in row] for row in answers]
    correct = None
    if rule.is_transitive:
        is_any_right = not {*(labels or ())}.isdisjoint(form for row in predictions for form in row)
    else:
        if labels is not None:
            rows = zip(answers, labels, strict=True)
            pairs = [(t, label) for row, label in rows for t in row if t is not None]
            verdicts = iter(await comparer.right(pairs))
            correct = [[None if t is None else next(verdicts) for t in row] for row in answers]
        predictions = [await comparer.matched_all(row) for row in predictions]
        is_any_right = any(map(any, correct or ()))
    if labels is not None and not is_any_right:
        first = next((text for row in answers for text in row if text is not None), None)
        raise TraceError(rule.unmatched(labels[0], first))
    return ComparedAnswers(predictions, labels if rule.is_transitive else None, correct)


def _aliases(label: str | None) -> list[str]:
    """Return the aliases of a label."""
    return [] if label is None else label.split(ALIAS_SEPARATOR)


def _normalised(text: str) -> str:
    """Return a text without differences of case, of spacing, and of punctuation at the ends."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).translate(_WRITTEN_ALIKE)
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


def _choice(text: str) -> str | None:
    """Return the letter of a multiple-choice answer."""
    if (inner := _boxed(text)) and (letter := _choice(_STYLED.sub(r"\1", inner))):
        return letter
    first = _FIRST.match(text)
    letter = None if first is None else str(first[1] or first[2]).upper()
    is_list = first is not None and letter == "A" and bool(_LISTED.search(text, first.end()))
    if letter and not is_list:
        return letter
    for pattern in (_STATED, _NAMED):
        if named := list(pattern.finditer(text)):
            return str(next(filter(None, named[-1].groups()))).upper()
    if is_list:
        return None
    for letters in (
        set(_BRACKETED.findall(text)),
        {*_ALONE.findall(text), *_ENDING.findall(text)},
    ):
        if len(letters) == 1:
            return str(letters.pop())
    return None


def _number(text: str) -> float | None:
    r"""Return the last finite number in a text, or in its last ``\boxed{}``."""
    if (inner := _boxed(text)) and (value := _number(inner)) is not None:
        return value
    if not text.isascii():
        text = _RAISED.sub(lambda raised: f"^{{{unicodedata.normalize('NFKC', raised[0])}}}", text)
    if "frac{" in text:
        text = _FRACTION.sub(lambda f: f"{f[1]}{' ' if f[1] else ''}{f[2]}/{f[3]}", text)
    numbers = (
        (match.start(), match.end(), finite)
        for match in reversed(list(_NUMBER.finditer(text)))
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
        value = float(f"{_SEPARATORS.sub('', digits)}e{exponent or tens or 0}")
        value = value ** int(power) if power else value
    except (OverflowError, ZeroDivisionError):
        return None
    if not math.isfinite(value):
        return None
    return -value if sign == "-" else value


def _json_text(text: str, fields: tuple[str, ...]) -> str | None:
    """Return the JSON value in a text, or some fields of it, in one form."""
    try:
        value = _json_value(text)
        if fields:
            picked = {path: _at(value, path) for path in fields}
            value = {path: values[0] for path, values in picked.items() if values}
            if not value:
                return None
        return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _json_value(text: str) -> Any:
    """Return the JSON value that a text is, or that it holds in a code fence or after prose."""
    decoder = json.JSONDecoder(parse_constant=_refuse)
    for part in (text, *(match[1] for match in _FENCE.finditer(text))):
        try:
            return decoder.decode(part.strip())
        except ValueError:
            continue
    start = _JSON_START.search(text)
    if start is None:
        raise ValueError("there is no JSON")
    return decoder.raw_decode(text, start.start())[0]


def _refuse(name: str) -> NoReturn:
    """Refuse NaN and infinities, which are not JSON."""
    raise ValueError(f"{name} is not JSON")


def _plain(value: Any) -> Any:
    """Return a JSON value in which 1.0 is 1."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("a number is too large")
        return int(value) if value.is_integer() and abs(value) < 1e15 else value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


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
    numbers = [number.span() for number in _IN_NUMBER.finditer(text)] if _DIGIT.search(part) else []
    start = text.find(part)
    while start >= 0:
        end = start + len(part)
        before, after = text[:start][-1:], text[end:][:1]
        is_cut = _joins(before, part[:1]) or _joins(part[-1:], after)
        if not is_cut and not any(a < start < b or a < end < b for a, b in numbers):
            return True
        start = text.find(part, start + 1)
    return False


def _joins(before: str, after: str) -> bool:
    """Whether two neighbouring characters are within one word."""
    return before.isalnum() and after.isalnum()


def _shown(text: str | None) -> str:
    """Return a text for a message, cut where it is long."""
    return repr(text if text is None or len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}...")
