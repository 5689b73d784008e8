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
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ttamer.errors import ArgumentError
from ttamer.llm.forms import choice_of, has_words, json_form, normalised, number_of, plain_json

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
            return choice_of(text)
        if self.kind == "numeric":
            value = number_of(text)
            return None if value is None else repr(plain_json(value))
        if self.kind == "json":
            return json_form(text, self.fields)
        return normalised(text) or None

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
            return has_words(first, second) or has_words(second, first)
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
            return any(has_words(form, alias) for alias in self.aliases(label))
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
