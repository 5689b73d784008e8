"""``cascade.toml``: one file that describes the cascade to every command.

:class:`CascadeSpec` is the only place that defines which node may be asked when, and at what cost.

::

    [cascade]
    order = "any"            # "fixed", "skip", "any" or "auto" (the default: what pays)
    target = "label"         # "label" (the default) or "last": what counts as right
    mistakes = {fraud = {"*" = 20.0}}  # unequal mistakes, by label and prediction
    max_loss = 100.0         # the largest value of <node>.loss columns, where they have one
    latency_weight = 0.002   # what a unit of <node>.latency is worth, in the unit of cost

    [[node]]
    name = "small"
    cost = 1.0               # per ask; with order "fixed", the cost of going on to this exit

    [[node]]
    name = "large"
    cost = 12.5
    after = "small"          # asked only once this node was; ["small", "medium"]: once both were
    upstream = "http://..."  # any further key is kept for the serving layer

Exits of one network may be passed without running their ramp, where passing is not free::

    [cascade]
    order = "skip"

    [[node]]
    name = "exit 1"
    cost = 3.0               # its blocks, its ramp, the decision
    passing = 2.5            # its blocks alone: going past it without asking it

Where a confidence costs by itself (a verifier, several samples), the answer may be returned without
it::

    [[node]]
    name = "large"
    cost = 12.5              # its answer
    verify_cost = 2.0        # its confidence, on top

A ``[serve]`` table is kept as it stands for the serving layer, like further keys of a node.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ttamer._arguments import require_kind, require_path
from ttamer._numbers import counted, is_number, number as shown_number
from ttamer.errors import ArgumentError, CascadeError
from ttamer.show import card
from ttamer.trace.mistakes import checked_mistakes, largest_mistake
from ttamer.trace.verification import joined_nodes, split_nodes

Order = Literal["fixed", "skip", "any", "auto"]
Target = Literal["label", "last"]

_ORDERS = get_args(Order)
_TARGETS = get_args(Target)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_ESCAPES |= {'"': '\\"', "\\": "\\\\"}
_HEAD_KEYS = ("order", "target", "name", "mistakes", "max_loss", "latency_weight")
# Options of a node that its confidence depends on, with their defaults.
_CONFIDENCE_OPTIONS = {"tokens": "all", "samples": 1, "verifier": None, "field": None}
_NODE_KEYS = ("name", "cost", "after", "passing", "verify_cost")
# The option of a node with the prices of its tokens.
_PRICES = "cost_per_token"


@dataclass(frozen=True)
class CascadeNode:
    """One ``[[node]]``: a model or an exit, and what asking it costs.

    >>> CascadeNode("small", 1.0).cost
    1.0
    """

    name: str
    cost: float
    """Per ask, finite and not negative. In a fixed order: of going on to this exit."""
    after: str | tuple[str, ...] | None = None
    """The node that must have been asked before; or several, all of which must have been."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Further keys of the table, kept as they stand for the serving layer."""
    passing: float | None = None
    """What going past it without asking it costs, finite and not negative: of an exit, its blocks
    without ramp, decision and synchronisation. Only with order "skip"; in a cascade where some
    node has it, passing the others costs 0."""
    verify_cost: float | None = None
    """What its confidence costs on top of its answer, where the answer may be returned without:
    a verifier's call, or further samples. ``None`` where the confidence comes with the answer."""

    @property
    def parents(self) -> tuple[str, ...]:
        """The names of the nodes that must have been asked before; none for most."""
        if self.after is None:
            return ()
        return (self.after,) if isinstance(self.after, str) else self.after


@dataclass(frozen=True)
class CascadeSpec:
    """The nodes of a cascade, what each costs, and in which order they may be asked.

    Args:
        nodes: The nodes, at least one, each with a name of its own.
        order: "fixed", "skip", "any" or "auto": which node may be asked after which.
        target: What counts as right: "label", or "last" for agreement with the last node.
        name: A name for the cascade.
        serve: The ``[serve]`` table.
        mistakes: What a mistake costs, by label and prediction (:mod:`ttamer.trace.mistakes`).
        max_loss: The largest loss that a trace of this cascade can hold.
        latency_weight: What a unit of latency is worth, in the unit of cost.

    Raises:
        CascadeError: If a node, a cost, the order or the target cannot be used.

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
    mistakes: Mapping[str, Mapping[str, float]] = field(default_factory=dict, hash=False)
    """What a mistake costs, by label and prediction, ``"*"`` for any; empty where all cost 1."""
    max_loss: float | None = None
    """The largest loss that ``<node>.loss`` columns can hold, where it is known beforehand:
    promises need it, and it is the unit of loss of a fit. It is 1 for scores."""
    latency_weight: float = 0.0
    """What a unit of latency is worth, in the unit of cost: fits weigh ``cost + latency_weight *
    latency``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        _one_of(self.order, "order", _ORDERS)
        _one_of(self.target, "target", _TARGETS)
        if self.name is not None and not isinstance(self.name, str):
            raise CascadeError(f"[cascade]: name must be text, not {self.name!r}")
        object.__setattr__(self, "serve", dict(self.serve))
        object.__setattr__(self, "mistakes", checked_mistakes(self.mistakes))
        self._check_max_loss()
        weight = _price(self.latency_weight, "[cascade]: latency_weight")
        object.__setattr__(self, "latency_weight", weight)
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
        for number, node in enumerate(checked, start=1):
            if node.verify_cost is not None and self.order in ("fixed", "skip"):
                raise CascadeError(
                    f"[[node]] {number} ({node.name!r}): has verify_cost, which is for separate "
                    f'models, and order is "{self.order}"; use order = "auto", or leave it out'
                )
        object.__setattr__(self, "nodes", tuple(checked))
        self._check_parents(numbers)

    def _check_max_loss(self) -> None:
        if self.max_loss is None:
            return
        if self.mistakes:
            raise CascadeError(
                "[cascade]: has mistakes and max_loss; the table of mistakes has its own largest "
                "loss: remove max_loss"
            )
        price = _price(self.max_loss, "[cascade]: max_loss")
        if not price:
            raise CascadeError("[cascade]: max_loss is 0; it must be above 0")
        object.__setattr__(self, "max_loss", price)

    @property
    def loss_bound(self) -> float | None:
        """The largest loss there can be, where it is known beforehand: of mistakes, or declared.

        >>> CascadeSpec.of({"a": 1.0}, mistakes={"fraud": {"*": 20.0}}).loss_bound
        20.0
        """
        return largest_mistake(self.mistakes) if self.mistakes else self.max_loss

    def _check_passing(self, nodes: Sequence[CascadeNode]) -> None:
        for number, node in enumerate(nodes, start=1):
            if node.passing is not None and self.order != "skip":
                raise CascadeError(
                    f"[[node]] {number} ({node.name!r}): has passing = {node.passing}, and only "
                    f'with order = "skip" is a node passed without being asked, not with '
                    f'"{self.order}"; write order = "skip", or remove passing'
                )

    def _check_parents(self, numbers: Mapping[str, int]) -> None:
        for node in self.nodes:
            place = f"[[node]] {numbers[node.name]} ({node.name!r})"
            for parent in node.parents:
                if parent not in numbers:
                    raise CascadeError(
                        f"{place}: after is {parent!r}, and there is no such node; "
                        f"the nodes are {', '.join(numbers)}"
                    )
                if self.order == "fixed" and numbers[parent] > numbers[node.name]:
                    raise CascadeError(
                        f"{place}: after is {parent!r}, which stands behind it, and with order = "
                        '"fixed" nodes are asked as they stand; change their order, or use '
                        'order = "auto"'
                    )
            if node.parents and self.order == "skip":
                raise CascadeError(
                    f'{place}: has after = {_value(node.after)}, and order = "skip" goes through '
                    'the nodes as they stand; remove after, or use order = "auto"'
                )
        by_name = {node.name: node for node in self.nodes}
        for name in numbers:
            way = _way_back(name, by_name)
            if way:
                raise CascadeError(
                    f"[[node]] {numbers[name]} ({name!r}): after goes round in a circle: "
                    f"{' after '.join(way)}; let one of them start"
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
        mistakes: Mapping[str, Mapping[str, float]] | None = None,
        max_loss: float | None = None,
        latency_weight: float = 0.0,
    ) -> CascadeSpec:
        """Build a cascade from a cost per node name, in that order.

        Args:
            costs: The cost of asking each node, by name: finite and not negative.
            order: Which node may be asked after which.
            target: What counts as right.
            name: A name for the cascade.
            passing: The cost of going past a node without asking it, by name; only with order
                "skip".
            mistakes: What a mistake costs, by label and prediction; ``"*"`` is any class.
            max_loss: The largest loss that a trace can hold, where it is known.
            latency_weight: What a unit of latency is worth, in the unit of cost.

        Returns:
            The cascade.

        Raises:
            ArgumentError: If ``costs`` is no mapping, or ``passing`` has a name that it lacks.
            CascadeError: If a cost, the order or the target cannot be used.

        >>> exits = CascadeSpec.of({"e1": 3.0, "e2": 3.0}, order="skip", passing={"e1": 2.5})
        >>> exits.passing.tolist(), exits.has_passing
        ([2.5, 0.0], True)
        """
        if not isinstance(costs, Mapping):
            raise ArgumentError(
                "costs must be a mapping from the names of nodes to costs, such as "
                f'{{"small": 1.0, "large": 12.5}}, not {type(costs).__name__}'
            )
        past = dict(passing or {})
        nodes = tuple(CascadeNode(n, c, passing=past.pop(n, None)) for n, c in costs.items())
        if past:
            raise ArgumentError(
                f"passing names {', '.join(map(repr, past))}, and costs does not; "
                f"the nodes are {', '.join(costs)}"
            )
        return cls(
            nodes,
            order,
            target,
            name,
            mistakes=mistakes or {},
            max_loss=max_loss,
            latency_weight=latency_weight,
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Node names, in order."""
        return tuple(node.name for node in self.nodes)

    @cached_property
    def costs(self) -> NDArray[np.float64]:
        """Shape (n,): the cost of asking each node; read-only."""
        return _read_only(np.array([node.cost for node in self.nodes]))

    @cached_property
    def passing(self) -> NDArray[np.float64]:
        """Shape (n,): the cost of going past each node without asking it; read-only."""
        return _read_only(np.array([node.passing or 0.0 for node in self.nodes]))

    @property
    def has_verify_costs(self) -> bool:
        """Whether some answer may be returned without its confidence, which costs by itself."""
        return any(node.verify_cost is not None for node in self.nodes)

    def split_verified(self) -> CascadeSpec:
        """Return the cascade with each verified answer as a node of its own, after the answer.

        Returns:
            The cascade; this one where no node has a ``verify_cost``.

        Raises:
            CascadeError: If a name is taken.

        >>> CascadeSpec((CascadeNode("a", 1.0, verify_cost=0.5),)).split_verified().names
        ('a', 'a (verified)')
        """
        if not self.has_verify_costs:
            return self
        return dataclasses.replace(self, nodes=split_nodes(self.nodes)[0])

    def join_verified(self) -> CascadeSpec:
        """Return the cascade that :meth:`split_verified` split.

        Returns:
            The cascade, in which nodes have a ``verify_cost`` again.

        >>> spec = CascadeSpec((CascadeNode("a", 1.0, verify_cost=0.5),))
        >>> spec.split_verified().join_verified() == spec
        True
        """
        return dataclasses.replace(self, nodes=joined_nodes(self.nodes))

    @cached_property
    def has_passing(self) -> bool:
        """Whether the nodes are exits of one network that may be passed without being asked."""
        return any(node.passing is not None for node in self.nodes)

    @property
    def answer_rules(self) -> dict[str, str]:
        """How answers are compared and priced, and where confidences come from, in words.

        Without a ``[serve]`` table and upstreams, prices alone. A policy fits the rules that its
        trace was made with.
        """
        prices = [f"{n.name}: {_token_prices(n)}" for n in self.nodes if _PRICES in n.options]
        rules = {_PRICES: ", ".join(prices)} if prices else {}
        if not self.serve and not any("upstream" in node.options for node in self.nodes):
            return rules
        compare = self.serve.get("compare", "normalised")
        if isinstance(compare, dict) and set(compare) == {"kind"}:
            compare = compare["kind"]
        confidence = []
        for node in self.nodes:
            words = [str(node.options.get("confidence", "logprobs"))]
            for key, default in _CONFIDENCE_OPTIONS.items():
                if node.options.get(key, default) != default:
                    words.append(f"{key} {node.options[key]}")
            confidence.append(f"{node.name}: {' '.join(words)}")
        text = compare if isinstance(compare, str) else json.dumps(compare, sort_keys=True)
        return {"compare": text, "confidence": ", ".join(confidence), **rules}

    @property
    def is_network(self) -> bool:
        """Whether the nodes are exits of one network, asked on the way or passed."""
        return self.order == "fixed" or self.has_passing

    @property
    def kind(self) -> Literal["models", "exits"]:
        """Whether nodes are separate models, or exits of one network.

        Models are asked in any order that ``after`` allows. Each exit is passed on the way to the
        next.

        >>> CascadeSpec.of({"small": 1.0, "large": 12.5}).kind
        'models'
        """
        return "exits" if self.is_network else "models"

    @cached_property
    def reach(self) -> NDArray[np.float64]:
        """Shape (n,): of exits, the cost of going past each without asking it; 0 of models."""
        if self.kind == "models":
            return _read_only(np.zeros(len(self)))
        return self.passing if self.has_passing else self.costs

    def passed(self, source: int, target: int) -> float:
        """Return the cost of passing all nodes between two without asking them; -1 is the start.

        Args:
            source: The number of the node asked last; -1 at the start.
            target: The number of the node asked next.

        Returns:
            The sum of ``passing`` over the nodes between; 0 where there are none.

        >>> exits = CascadeSpec.of(
        ...     {"e1": 3.0, "e2": 3.0, "e3": 4.0}, order="skip", passing={"e1": 2.5, "e2": 2.0}
        ... )
        >>> exits.passed(-1, 2), exits.passed(0, 2), exits.passed(1, 2)
        (4.5, 2.0, 0.0)
        """
        return float(self.passing[source + 1 : target].sum())

    def step_cost(self, last: int, node: int, costs: NDArray[np.float64] | None = None) -> float:
        """Return the cost of asking a node after another: its own, and passing those between.

        Args:
            last: The number of the node asked last; -1 at the start.
            node: The number of the node to ask.
            costs: Shape (n,): the cost of asking each node, where not the cascade's own.

        Returns:
            The cost of this step, in the cascade's unit.

        >>> exits = CascadeSpec.of(
        ...     {"e1": 3.0, "e2": 3.0, "e3": 4.0}, order="skip", passing={"e1": 2.5, "e2": 2.0}
        ... )
        >>> exits.step_cost(-1, 2), exits.step_cost(1, 2)
        (8.5, 4.0)
        """
        own = float((self.costs if costs is None else costs)[node])
        return own + self.passed(last, node) if self.has_passing else own

    def answer_costs(self, costs: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Return, shape (n,), the cost of each node's answer alone: all asked or passed before it.

        Args:
            costs: Shape (n,): the cost of asking each node, where not the cascade's own.

        Returns:
            Shape (n,): the cost of each node's answer.

        >>> CascadeSpec.of({"e1": 1.0, "e2": 2.0}, order="fixed").answer_costs().tolist()
        [1.0, 3.0]
        """
        before = np.concatenate([[0.0], np.cumsum(self.passing)[:-1]])
        total = self.required @ (self.costs if costs is None else costs) + before
        return np.asarray(total, np.float64)

    def full_cost(self, costs: NDArray[np.float64] | None = None) -> float:
        """Return the cost of the full model: the last exit of a network, or the most expensive.

        With order "fixed" each exit is asked on the way to the next, so the last one costs the sum.
        Where exits may be passed, it is the bare network: the last exit, and all others passed. It
        is 1 where everything is free: there is nothing to compare with.

        Args:
            costs: Shape (n,): the cost of asking each node, where not the cascade's own.

        Returns:
            The cost, above 0.

        >>> CascadeSpec.of({"small": 1.0, "large": 9.0}).full_cost()
        9.0
        """
        each = self.costs if costs is None else costs
        if self.has_passing:
            return self.step_cost(-1, len(self) - 1, each) or 1.0
        return float(each.sum() if self.order == "fixed" else each.max()) or 1.0

    @cached_property
    def required(self) -> NDArray[np.bool_]:
        """Shape (n, n): row v marks the nodes asked if only v is wanted, v included; read-only."""
        if self.order == "fixed":
            return _read_only(np.tri(len(self), dtype=bool))
        required = np.eye(len(self), dtype=bool)
        for node in range(len(self)):
            above = list(self.parents[node])
            for parent in above:  # grows as we go
                if not required[node, parent]:
                    required[node, parent] = True
                    above += self.parents[parent]
        return _read_only(required)

    @cached_property
    def successors(self) -> NDArray[np.bool_]:
        """Shape (n, n): row u marks the nodes that may be asked directly after u; read-only."""
        if self.order == "fixed":
            return _read_only(np.eye(len(self), k=1, dtype=bool))
        if self.order == "skip":
            return _read_only(np.tri(len(self), k=-1, dtype=bool).T)
        return _read_only(~np.eye(len(self), dtype=bool))

    def cheapest_first(self, costs: NDArray[np.float64] | None = None) -> tuple[int, ...]:
        """Return the nodes by cost, each after its parents; equal costs in the cascade's order.

        Args:
            costs: Shape (n,): the cost of asking each node, where not the cascade's own.

        Returns:
            The number of every node, once each.

        >>> CascadeSpec.of({"large": 9.0, "small": 1.0}).cheapest_first()
        (1, 0)
        """
        each = self.costs if costs is None else costs
        order: list[int] = []
        left = set(range(len(self)))
        while left:
            ready = [v for v in left if not any(self.required[v, u] for u in left if u != v)]
            order.append(min(ready, key=lambda v: (each[v], v)))
            left.remove(order[-1])
        return tuple(order)

    def asking_order(self, costs: NDArray[np.float64] | None = None) -> tuple[int, ...]:
        """Return the order in which a rule that asks one node after another asks them.

        Exits of one network, and nodes with order "skip", are asked as they stand; other models
        from the cheapest to the most expensive.

        Args:
            costs: Shape (n,): the cost of asking each node, where not the cascade's own.

        Returns:
            The number of every node, once each.

        >>> CascadeSpec.of({"large": 9.0, "small": 1.0}, order="skip").asking_order()
        (0, 1)
        """
        if self.is_network or self.order == "skip":
            return tuple(range(len(self)))
        return self.cheapest_first(costs)

    @cached_property
    def parents(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the nodes that must have been asked before each node, from ``after``."""
        number = {name: k for k, name in enumerate(self.names)}
        return tuple(tuple(number[name] for name in node.parents) for node in self.nodes)

    @property
    def is_tree(self) -> bool:
        """Whether any node has ``after``: a tree, or where one has several parents, more.

        With order "fixed" it is none: every node is asked on the way to the next.
        """
        return self.order != "fixed" and any(self.parents)

    @property
    def has_joint_nodes(self) -> bool:
        """Whether some node is asked after several others: a judge that reads two answers."""
        return any(len(parents) > 1 for parents in self.parents)

    def __len__(self) -> int:
        return len(self.nodes)

    def _repr_html_(self) -> str:
        head, rows = ["node", "cost"], [[n.name, shown_number(n.cost)] for n in self.nodes]
        columns = {
            "after": [", ".join(n.parents) or "-" for n in self.nodes] if self.is_tree else [],
            "passing": [shown_number(each) for each in self.passing] if self.has_passing else [],
        }
        for name, cells in columns.items():
            if cells:
                head.append(name)
                rows = [[*row, cell] for row, cell in zip(rows, cells, strict=True)]
        title = f"{self.name or 'Cascade'}: {counted(len(self), 'node')}"
        notes = [f"order {self.order}, target {self.target}"]
        return card(title, notes=notes, head=head, rows=rows)

    def index_of(self, node: str) -> int:
        """Return a node's number.

        Args:
            node: The name of the node.

        Returns:
            Its position among the nodes, counting from 0.

        Raises:
            ArgumentError: If no node has this name.

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

        Args:
            costs: The new cost of asking a node, by name.

        Returns:
            A new cascade; this one is unchanged.

        Raises:
            ArgumentError: If no node has one of the names.
            CascadeError: If a cost is negative or not finite.

        >>> CascadeSpec.of({"small": 1.0, "large": 2.0}).with_costs({"large": 5}).costs.tolist()
        [1.0, 5.0]
        """
        for name in costs:
            self.index_of(name)
        nodes = (dataclasses.replace(n, cost=costs.get(n.name, n.cost)) for n in self.nodes)
        return dataclasses.replace(self, nodes=tuple(nodes))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> CascadeSpec:
        """Read and check a ``cascade.toml``.

        Args:
            path: The file, in UTF-8.

        Returns:
            The cascade.

        Raises:
            CascadeError: If it cannot be read, or is not well formed; names the table and the key.
        """
        require_path(path, "CascadeSpec.from_file", "give costs in Python to CascadeSpec.of({...})")
        try:
            text = Path(path).read_text("utf-8-sig")  # editors may put a mark before the first
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

        Args:
            text: The content of the file.

        Returns:
            The cascade.

        Raises:
            CascadeError: If it is not TOML, or not well formed; names the table and the key.

        >>> CascadeSpec.from_toml("node = [{name = 'only', cost = 1}]").names
        ('only',)
        """
        remedy = "read a file with CascadeSpec.from_file(path)"
        require_kind(text, str, "CascadeSpec.from_toml takes the text of a cascade.toml", remedy)
        if text.endswith(".toml") and "\n" not in text:
            raise CascadeError(f"{text!r} is the name of a file, not its text: {remedy}")
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            advice = "; write [[node]], with two brackets" if "('node',)" in str(error) else ""
            raise CascadeError(f"is not TOML: {error}{advice}") from None
        except (RecursionError, ValueError) as error:  # too deep; a date or number out of range
            raise CascadeError(f"is not TOML that can be read: {error}") from None
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: object) -> CascadeSpec:
        """Build a cascade from the parsed form of ``cascade.toml``.

        Args:
            data: A mapping with the keys ``node`` and, optionally, ``cascade`` and ``serve``.

        Returns:
            The cascade.

        Raises:
            CascadeError: If it is not well formed; names the table and the key.

        >>> spec = CascadeSpec.from_dict({"node": [{"name": "only", "cost": 1, "timeout": 3}]})
        >>> spec.nodes[0].cost, spec.nodes[0].options
        (1.0, {'timeout': 3})
        """
        if not isinstance(data, dict):
            raise CascadeError("a cascade must be a table with [[node]] tables inside")
        for key in data:
            if key in _HEAD_KEYS:
                raise CascadeError(f"{key} belongs to a table: write it below a line [cascade]")
            if key not in ("cascade", "serve", "node"):
                raise CascadeError(
                    f"there is an unknown table {key!r}; a cascade has [cascade], [serve] and "
                    "[[node]]"
                )
        head = data.get("cascade", {})
        if not isinstance(head, dict):
            raise CascadeError(f"[cascade] must be a table, not {head!r}")
        for key in head:
            if key not in _HEAD_KEYS:
                raise CascadeError(
                    f"[cascade] has an unknown key {key!r}; it may have {', '.join(_HEAD_KEYS)}"
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
            if _PRICES in table:  # the tokens of a call are its cost
                table = {"cost": 0.0, **table}
            for key in ("name", "cost"):
                if key not in table:
                    named = f" ({table['name']!r})" if "name" in table else ""
                    raise CascadeError(f"{place}{named} lacks {key}; a node has a name and a cost")
            options = {key: value for key, value in table.items() if key not in _NODE_KEYS}
            nodes.append(
                CascadeNode(
                    table["name"],
                    table["cost"],
                    table.get("after"),
                    options,
                    table.get("passing"),
                    table.get("verify_cost"),
                )
            )
        return cls(
            tuple(nodes),
            head.get("order", "auto"),
            head.get("target", "label"),
            head.get("name"),
            serve,
            head.get("mistakes", {}),
            head.get("max_loss"),
            head.get("latency_weight", 0.0),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the parsed form of ``cascade.toml``.

        Returns:
            A mapping that :meth:`from_dict` reads back.
        """
        head: dict[str, Any] = {} if self.name is None else {"name": self.name}
        head |= {"order": self.order, "target": self.target}
        if self.mistakes:
            head["mistakes"] = {label: dict(row) for label, row in self.mistakes.items()}
        if self.max_loss is not None:
            head["max_loss"] = self.max_loss
        if self.latency_weight:
            head["latency_weight"] = self.latency_weight
        nodes = []
        for node in self.nodes:
            table: dict[str, Any] = {"name": node.name, "cost": node.cost}
            if node.after is not None:
                table["after"] = node.after if isinstance(node.after, str) else list(node.after)
            if node.passing is not None:
                table["passing"] = node.passing
            if node.verify_cost is not None:
                table["verify_cost"] = node.verify_cost
            nodes.append(table | dict(node.options))
        serve = {"serve": dict(self.serve)} if self.serve else {}
        return {"cascade": head, **serve, "node": nodes}

    def to_toml(self) -> str:
        """Return text that reads back to an equal cascade.

        Returns:
            The content of a ``cascade.toml``.

        Raises:
            CascadeError: If a value cannot be written as TOML.

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
        """Write a ``cascade.toml``.

        Args:
            path: The file to write; an existing one is replaced.

        Raises:
            CascadeError: If a value cannot be written as TOML.
            OSError: If the file cannot be written.
        """
        Path(path).write_text(self.to_toml(), "utf-8")


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array


def _one_of(value: object, key: str, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        names = ", ".join(f'"{name}"' for name in allowed)
        raise CascadeError(f"[cascade]: {key} is {value!r}; it must be one of {names}")


def _checked(node: CascadeNode, place: str) -> CascadeNode:
    """Return the node with its costs as floats, or raise what is wrong with it."""
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
    after = _checked_parents(node.after, place)
    options = dict(node.options)
    for key in options:
        if key in _NODE_KEYS:
            raise CascadeError(f"{place}: {key!r} cannot stand among the options as well")
    verify = None if node.verify_cost is None else _price(node.verify_cost, f"{place}: verify_cost")
    return CascadeNode(name, cost, after, options, passing, verify)


def _checked_parents(after: object, place: str) -> str | tuple[str, ...] | None:
    """Return ``after`` with several names as a tuple, or raise what is wrong with it."""
    if after is None or isinstance(after, str):
        return after
    if not isinstance(after, list | tuple) or not all(isinstance(each, str) for each in after):
        raise CascadeError(f"{place}: after must name a node, or be a list of names, not {after!r}")
    if not after:
        raise CascadeError(f"{place}: after is an empty list; name a node, or remove after")
    if len(set(after)) < len(after):
        raise CascadeError(f"{place}: after names a node twice, {_value(after)}; keep one")
    return after[0] if len(after) == 1 else tuple(after)


def _way_back(name: str, nodes: Mapping[str, CascadeNode]) -> list[str]:
    """Return the names on a way from a node over its parents back to it; empty if there is none."""
    ways = [[name, parent] for parent in nodes[name].parents]
    seen: set[str] = set()
    for way in ways:  # grows as we go
        if way[-1] == name:
            return way
        if way[-1] not in seen:
            seen.add(way[-1])
            ways += [[*way, parent] for parent in nodes[way[-1]].parents]
    return []


def _token_prices(node: CascadeNode) -> str:
    """Return what the tokens of a node cost, in words; prices of 0 are left out."""
    given = node.options[_PRICES]
    if not isinstance(given, Mapping):
        return str(given)
    words = [
        f"{key} {value:.9g}" if isinstance(value, int | float) else f"{key} {value}"
        for key, value in sorted(given.items())
        if value != 0
    ]
    return " ".join(words) or "0"


def _price(value: object, what: str) -> float:
    """Return a number that is finite and not negative, or raise what is wrong with it."""
    if not is_number(value):
        raise CascadeError(f"{what} must be a number, not {value!r}")
    try:
        price = float(value)
    except OverflowError:
        raise CascadeError(f"{what} must be a finite number") from None
    if not math.isfinite(price) or price < 0:
        raise CascadeError(f"{what} is {price}; it must be finite and not negative")
    return price


def toml_text(table: Mapping[str, object]) -> str:
    """Return one ``key = value`` line per item (the standard library reads TOML only).

    Tables inside become inline tables.

    >>> print(toml_text({"name": "small", "cost": 1.5, "tags": ["a", "b"]}), end="")
    name = "small"
    cost = 1.5
    tags = ["a", "b"]
    """
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items())


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise ValueError(f"the key {key!r} is not text")  # noqa: TRY004 - one kind to catch
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _value(value: object) -> str:
    if isinstance(value, np.generic):  # its text names its type
        value = value.item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dt.date | dt.time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    raise ValueError(f"there is no TOML for {value!r}")


def _string(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{text!r} is not well-formed Unicode")
    return '"' + "".join(map(_character, text)) + '"'


def _character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character < " " or character == "\x7f":
        return f"\\u{ord(character):04x}"
    return character
