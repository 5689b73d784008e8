"""``cascade.toml``: one file that describes the cascade to every command.

::

    [cascade]
    order = "any"            # "fixed", "skip", "any" or "auto" (the default: what pays)
    target = "label"         # "label" (the default) or "last": what counts as right

    [[node]]
    name = "small"
    cost = 1.0               # per ask; with order "fixed", the cost of going on to this exit

    [[node]]
    name = "large"
    cost = 12.5
    after = "small"          # its parent, where the cascade is a tree
    upstream = "http://..."  # any further key is kept for the serving layer

Exits of one network may be passed without running their ramp, where passing is not free::

    [cascade]
    order = "skip"

    [[node]]
    name = "exit 1"
    cost = 3.0               # its blocks, its ramp, the decision
    passing = 2.5            # its blocks alone: going past it without asking it

A ``[serve]`` table is kept as it stands for the serving layer, like further keys of a node.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from ttamer._numbers import is_number
from ttamer.errors import ArgumentError, CascadeError
from ttamer.trace.toml_text import toml_text

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["CascadeNode", "CascadeSpec", "Order", "Target"]

Order = Literal["fixed", "skip", "any", "auto"]
Target = Literal["label", "last"]

_ORDERS = get_args(Order)
_TARGETS = get_args(Target)
_NODE_KEYS = ("name", "cost", "after", "passing")


@dataclass(frozen=True)
class CascadeNode:
    """One ``[[node]]``: a model or an exit, and what asking it costs.

    >>> CascadeNode("small", 1.0).cost
    1.0
    """

    name: str
    cost: float
    """Per ask, finite and not negative. In a fixed order: of going on to this exit."""
    after: str | None = None
    """The node that must have been asked before, where the cascade is a tree."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Further keys of the table, kept as they stand for the serving layer."""
    passing: float | None = None
    """What going past it without asking it costs, finite and not negative: of an exit, its blocks
    without ramp, decision and synchronisation. Only with order "skip"; in a cascade where some
    node says it, the others pass for 0."""


@dataclass(frozen=True)
class CascadeSpec:
    """The nodes of a cascade, what each costs, and in which order they may be asked.

    >>> spec = CascadeSpec.of({"small": 1.0, "large": 12.5}, order="skip")
    >>> spec.names, spec.costs.tolist(), spec.order, spec.target
    (('small', 'large'), [1.0, 12.5], 'skip', 'label')
    """

    nodes: tuple[CascadeNode, ...]
    order: Order = "auto"
    target: Target = "label"
    name: str | None = None
    serve: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The ``[serve]`` table, kept as it stands for the serving layer."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        _one_of(self.order, "order", _ORDERS)
        _one_of(self.target, "target", _TARGETS)
        if self.name is not None and not isinstance(self.name, str):
            raise CascadeError(f"[cascade]: name must be text, not {self.name!r}")
        object.__setattr__(self, "serve", dict(self.serve))
        if not self.nodes:
            raise CascadeError("there are no nodes: add one [[node]] table for each model or exit")
        checked = []
        numbers: dict[str, int] = {}
        for number, node in enumerate(self.nodes, start=1):
            checked.append(_checked(node, f"[[node]] {number}"))
            if node.name in numbers:
                raise CascadeError(
                    f"[[node]] {number}: the name {node.name!r} is taken by [[node]] "
                    f"{numbers[node.name]}; give every node a name of its own"
                )
            numbers[node.name] = number
        if any(node.passing is not None for node in checked):
            self._check_passing(checked)
            checked = [dataclasses.replace(n, passing=n.passing or 0.0) for n in checked]
        object.__setattr__(self, "nodes", tuple(checked))
        self._check_parents(numbers)

    def _check_passing(self, nodes: Sequence[CascadeNode]) -> None:
        for number, node in enumerate(nodes, start=1):
            if node.passing is not None and self.order != "skip":
                raise CascadeError(
                    f"[[node]] {number} ({node.name!r}): has passing = {node.passing}, and only "
                    f'with order = "skip" is a node passed without being asked, not with '
                    f'"{self.order}"; write order = "skip", or remove passing'
                )

    def _check_parents(self, numbers: Mapping[str, int]) -> None:
        parent = {node.name: node.after for node in self.nodes}
        for name, after in parent.items():
            place = f"[[node]] {numbers[name]} ({name!r})"
            if after is None:
                continue
            if after not in parent:
                raise CascadeError(
                    f"{place}: after is {after!r}, and there is no such node; "
                    f"the nodes are {', '.join(parent)}"
                )
            if self.order == "skip":
                raise CascadeError(
                    f'{place}: has after = {after!r}, and order = "skip" goes through the nodes '
                    'as they stand; remove after, or use order = "auto"'
                )
            way: list[str] = [name]
            step: str | None = after
            while step is not None and step not in way:
                way.append(step)
                step = parent.get(step)
            if step == name:
                raise CascadeError(
                    f"{place}: after goes round in a circle: {' after '.join([*way, name])}; "
                    "let one of them start"
                )

    @classmethod
    def of(
        cls,
        costs: Mapping[str, float],
        *,
        order: Order = "auto",
        target: Target = "label",
        name: str | None = None,
        passing: Mapping[str, float] | None = None,
    ) -> CascadeSpec:
        """Build a cascade from a cost per node name, in that order.

        >>> exits = CascadeSpec.of({"e1": 3.0, "e2": 3.0}, order="skip", passing={"e1": 2.5})
        >>> exits.passing.tolist(), exits.has_passing
        ([2.5, 0.0], True)
        """
        past = dict(passing or {})
        nodes = tuple(CascadeNode(n, c, passing=past.pop(n, None)) for n, c in costs.items())
        if past:
            raise ArgumentError(
                f"passing names {', '.join(map(repr, past))}, and costs does not; "
                f"the nodes are {', '.join(costs)}"
            )
        return cls(nodes, order, target, name)

    @property
    def names(self) -> tuple[str, ...]:
        """Node names, in order."""
        return tuple(node.name for node in self.nodes)

    @property
    def costs(self) -> NDArray[np.float64]:
        """Shape (n,): the cost of asking each node; read-only."""
        costs = np.array([node.cost for node in self.nodes])
        costs.setflags(write=False)
        return costs

    @property
    def passing(self) -> NDArray[np.float64]:
        """Shape (n,): the cost of going past each node without asking it; read-only."""
        passing = np.array([node.passing or 0.0 for node in self.nodes])
        passing.setflags(write=False)
        return passing

    @property
    def has_passing(self) -> bool:
        """Whether the nodes are exits of one network that may be passed without being asked."""
        return any(node.passing is not None for node in self.nodes)

    @property
    def is_network(self) -> bool:
        """Whether the nodes are exits of one network, asked on the way or passed."""
        return self.order == "fixed" or self.has_passing

    def passed(self, source: int, target: int) -> float:
        """Return what lies between two nodes costs, none of it asked; -1 is the start.

        >>> exits = CascadeSpec.of(
        ...     {"e1": 3.0, "e2": 3.0, "e3": 4.0}, order="skip", passing={"e1": 2.5, "e2": 2.0}
        ... )
        >>> exits.passed(-1, 2), exits.passed(0, 2), exits.passed(1, 2)
        (4.5, 2.0, 0.0)
        """
        return float(self.passing[source + 1 : target].sum())

    @property
    def parents(self) -> tuple[int | None, ...]:
        """Each node's parent by number, from ``after``; ``None`` where it has none."""
        names = self.names
        return tuple(None if n.after is None else names.index(n.after) for n in self.nodes)

    @property
    def is_tree(self) -> bool:
        """Whether any node says ``after``."""
        return any(node.after is not None for node in self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def index_of(self, node: str) -> int:
        """Return a node's number, or say which names there are.

        >>> CascadeSpec.of({"small": 1.0, "large": 12.5}).index_of("large")
        1
        """
        try:
            return self.names.index(node)
        except ValueError:
            raise ArgumentError(
                f"there is no node {node!r}; the nodes are {', '.join(self.names)}"
            ) from None

    def with_costs(self, costs: Mapping[str, float]) -> CascadeSpec:
        """Return the same cascade at other costs; a node not named keeps its own.

        What passing a node costs stays as it is.

        >>> CascadeSpec.of({"small": 1.0, "large": 2.0}).with_costs({"large": 5}).costs.tolist()
        [1.0, 5.0]
        """
        for name in costs:
            self.index_of(name)
        nodes = (dataclasses.replace(n, cost=costs.get(n.name, n.cost)) for n in self.nodes)
        return dataclasses.replace(self, nodes=tuple(nodes))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> CascadeSpec:
        """Read and check a ``cascade.toml``."""
        try:
            text = Path(path).read_text("utf-8")
        except OSError as error:
            raise CascadeError(f"{path}: cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise CascadeError(f"{path}: is not text in UTF-8") from None
        try:
            return cls.from_toml(text)
        except CascadeError as error:
            raise CascadeError(f"{path}: {error}") from None

    @classmethod
    def from_toml(cls, text: str) -> CascadeSpec:
        """Read the text of a ``cascade.toml``.

        >>> CascadeSpec.from_toml("node = [{name = 'only', cost = 1}]").names
        ('only',)
        """
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise CascadeError(f"is not TOML: {error}") from None
        except (RecursionError, ValueError) as error:  # too deep; a date or number out of range
            raise CascadeError(f"is not TOML that can be read: {error}") from None
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: object) -> CascadeSpec:
        """Build a cascade from the parsed form of ``cascade.toml``.

        >>> CascadeSpec.from_dict({"node": [{"name": "only", "cost": 1, "timeout": 3}]}).nodes[0]
        CascadeNode(name='only', cost=1.0, after=None, options={'timeout': 3}, passing=None)
        """
        if not isinstance(data, dict):
            raise CascadeError("a cascade must be a table with [[node]] tables inside")
        for key in data:
            if key not in ("cascade", "serve", "node"):
                raise CascadeError(
                    f"there is an unknown table {key!r}; a cascade has [cascade], [serve] and "
                    "[[node]]"
                )
        head = data.get("cascade", {})
        if not isinstance(head, dict):
            raise CascadeError(f"[cascade] must be a table, not {head!r}")
        for key in head:
            if key not in ("order", "target", "name"):
                raise CascadeError(
                    f"[cascade] has an unknown key {key!r}; it may have order, target, name"
                )
        serve = data.get("serve", {})
        if not isinstance(serve, dict):
            raise CascadeError(f"[serve] must be a table, not {serve!r}")
        tables = data.get("node", [])
        if not isinstance(tables, list):
            raise CascadeError("nodes must be written as [[node]], with two brackets")
        nodes = []
        for number, table in enumerate(tables, start=1):
            place = f"[[node]] {number}"
            if not isinstance(table, dict):
                raise CascadeError(f"{place} must be a table with name and cost")
            for key in ("name", "cost"):
                if key not in table:
                    named = f" ({table['name']!r})" if "name" in table else ""
                    raise CascadeError(f"{place}{named} lacks {key}; a node has a name and a cost")
            options = {key: value for key, value in table.items() if key not in _NODE_KEYS}
            nodes.append(
                CascadeNode(
                    table["name"], table["cost"], table.get("after"), options, table.get("passing")
                )
            )
        return cls(
            tuple(nodes),
            head.get("order", "auto"),
            head.get("target", "label"),
            head.get("name"),
            serve,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the parsed form of ``cascade.toml``."""
        head: dict[str, Any] = {} if self.name is None else {"name": self.name}
        head |= {"order": self.order, "target": self.target}
        nodes = []
        for node in self.nodes:
            table: dict[str, Any] = {"name": node.name, "cost": node.cost}
            if node.after is not None:
                table["after"] = node.after
            if node.passing is not None:
                table["passing"] = node.passing
            nodes.append(table | dict(node.options))
        serve = {"serve": dict(self.serve)} if self.serve else {}
        return {"cascade": head, **serve, "node": nodes}

    def to_toml(self) -> str:
        """Return text that reads back to an equal cascade.

        >>> print(CascadeSpec.of({"only": 1.0}).to_toml())
        [cascade]
        order = "auto"
        target = "label"
        <BLANKLINE>
        [[node]]
        name = "only"
        cost = 1.0
        <BLANKLINE>
        """
        data = self.to_dict()
        try:
            parts = ["[cascade]\n" + toml_text(data["cascade"])]
            if self.serve:
                parts.append("[serve]\n" + toml_text(data["serve"]))
            parts += ["[[node]]\n" + toml_text(table) for table in data["node"]]
        except ValueError as error:
            raise CascadeError(f"cannot be written as TOML: {error}") from None
        return "\n".join(parts)

    def to_file(self, path: str | os.PathLike[str]) -> None:
        """Write a ``cascade.toml``."""
        Path(path).write_text(self.to_toml(), "utf-8")


def _one_of(value: object, key: str, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        names = ", ".join(f'"{name}"' for name in allowed)
        raise CascadeError(f"[cascade]: {key} is {value!r}; it must be one of {names}")


def _checked(node: CascadeNode, place: str) -> CascadeNode:
    """Return the node with its costs as floats, or say what is wrong with it."""
    name = node.name
    if not isinstance(name, str):
        raise CascadeError(f"{place}: name must be text, not {name!r}")
    if not name or name != name.strip() or not name.isprintable():
        raise CascadeError(
            f"{place}: the name {name!r} must hold at least one character, no control "
            "characters, and no space at either end"
        )
    place = f"{place} ({name!r})"
    cost = _price(node.cost, f"{place}: cost")
    passing = None if node.passing is None else _price(node.passing, f"{place}: passing")
    if node.after is not None and not isinstance(node.after, str):
        raise CascadeError(f"{place}: after must name a node, not {node.after!r}")
    options = dict(node.options)
    for key in options:
        if key in _NODE_KEYS:
            raise CascadeError(f"{place}: {key!r} cannot stand among the options as well")
    return CascadeNode(name, cost, node.after, options, passing)


def _price(value: object, what: str) -> float:
    """Return a number that is finite and not negative, or say what is wrong with it."""
    if not is_number(value):
        raise CascadeError(f"{what} must be a number, not {value!r}")
    try:
        price = float(value)
    except OverflowError:
        raise CascadeError(f"{what} must be a finite number") from None
    if not math.isfinite(price) or price < 0:
        raise CascadeError(f"{what} is {price}; it must be finite and not negative")
    return price
