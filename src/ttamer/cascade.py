"""``cascade.toml``: the nodes of a cascade, what each costs, and which may be asked when.

::

    [cascade]
    kind = "models"          # "models" (the default) or "exits": the exits of one network
    target = "label"         # "label" (the default) or "last": what counts as right
    unit = "$ per 1,000"     # of all costs; tables and pages print it
    mistakes = {fraud = {"*" = 20.0}}  # unequal mistakes, by label and prediction
    max_loss = 100.0         # the largest value of <node>.loss columns, where they have one
    latency_weight = 0.002   # what a unit of <node>.latency is worth, in the unit of cost

    [[node]]
    name = "small"
    cost = 1.0               # per ask; of an exit: going on to it and asking it

    [[node]]
    name = "large"
    cost = 12.5
    verify_cost = 2.0        # its confidence, on top, where that costs by itself
    cost_per_call = 40.0     # a call of many inputs, on top of their costs
    after = "small"          # asked only once this node was; ["small", "medium"]: once both were
    upstream = "http://..."  # any further key is kept for the serving layer

    [serve]                  # kept as it stands for the serving layer

Exits are asked in their order. One with ``reach`` may be passed at that cost, without running its
ramp; passing one without costs as much as asking it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import is_number, read_only, require_kind, require_path
from ttamer.errors import ArgumentError, CascadeError

Kind = Literal["models", "exits"]
Target = Literal["label", "last"]
Mistakes = Mapping[str, Mapping[str, float]]

# What follows the name of a node in that of its verified answer.
SUFFIX = " (verified)"
# In a table of mistakes: every class that is not named.
ANY_CLASS = "*"


@dataclass(frozen=True)
class CascadeNode:
    """One ``[[node]]``: a model or an exit, and what asking it costs.

    >>> CascadeNode("small", 1.0).cost
    1.0
    """

    name: str
    cost: float
    """Per ask, finite and not negative. Of an exit: of going on to it and asking it."""
    after: str | tuple[str, ...] | None = None
    """The node that must have been asked before; or several, all of which must have been."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Further keys of the table, kept as they stand for the serving layer."""
    reach: float | None = None
    """Of an exit that may be passed: the cost of going past it without asking it, its blocks
    without ramp and decision. ``None``: as much as asking it."""
    verify_cost: float | None = None
    """What its confidence costs on top of its answer, where the answer may be returned without:
    a report of its own, or further samples. ``None`` where the confidence comes with the answer."""
    cost_per_call: float | None = None
    """What a call costs beside ``cost``, however many inputs are in it: of models that answer in
    batches. Their planners share it among the rows of a batch."""

    @property
    def parents(self) -> tuple[str, ...]:
        """The names of the nodes that must have been asked before; none for most."""
        if self.after is None:
            return ()
        return (self.after,) if isinstance(self.after, str) else self.after


@dataclass(frozen=True)
class CascadeSpec:
    """The nodes of a cascade, what each costs, and which may be asked when.

    Args:
        nodes: The nodes, at least one, each with a name of its own.
        kind: "models" are asked in any order that ``after`` allows; "exits" of one network are
            passed on the way to the next.
        target: What counts as right: "label", or "last" for agreement with the last node.
        name: A name for the cascade.
        serve: The ``[serve]`` table, kept as it stands for the serving layer.
        mistakes: What a mistake costs, by label and prediction; ``"*"`` is any class that is not
            named. A mistake that no entry is for costs 1, a right answer 0, and no answer as much
            as the worst mistake on that label. Empty where all mistakes cost 1.
        max_loss: The largest loss that a trace can hold, where it is known beforehand: promises
            need it, and it is the unit of loss of a fit. It is 1 for scores.
        latency_weight: What a unit of latency is worth, in the unit of cost: fits weigh
            ``cost + latency_weight * latency``.
        unit: The unit of all costs, such as "ms" or "$ per 1,000", which tables and pages print.

    Raises:
        CascadeError: If a node, a cost, the kind or the target cannot be used.

    >>> spec = CascadeSpec.of({"small": 1.0, "large": 12.5})
    >>> spec.names, spec.costs.tolist(), spec.kind, spec.target
    (('small', 'large'), [1.0, 12.5], 'models', 'label')
    """

    nodes: tuple[CascadeNode, ...]
    kind: Kind = "models"
    target: Target = "label"
    name: str | None = None
    serve: Mapping[str, Any] = field(default_factory=dict, hash=False)
    mistakes: Mistakes = field(default_factory=dict, hash=False)
    max_loss: float | None = None
    latency_weight: float = 0.0
    unit: str = ""

    def __post_init__(self) -> None:
        put = object.__setattr__
        for key, choices in (("kind", get_args(Kind)), ("target", get_args(Target))):
            if (value := getattr(self, key)) not in choices:
                names = " or ".join(f'"{choice}"' for choice in choices)
                raise CascadeError(f"[cascade]: {key} is {value!r}; it must be {names}", param=key)
        for key in ("name", "unit"):
            if not isinstance(value := getattr(self, key), str | None):
                raise CascadeError(f"[cascade]: {key} must be text, not {value!r}")
        put(self, "serve", dict(self.serve))
        put(self, "mistakes", _checked_mistakes(self.mistakes))
        if self.max_loss is not None:
            if self.mistakes:
                raise CascadeError(
                    "[cascade]: has mistakes and max_loss; the table of mistakes has its own "
                    "largest loss: remove max_loss"
                )
            put(self, "max_loss", _price(self.max_loss, "[cascade]: max_loss"))
            if not self.max_loss:
                raise CascadeError("[cascade]: max_loss is 0; it must be above 0")
        put(self, "latency_weight", _price(self.latency_weight, "[cascade]: latency_weight"))
        put(self, "nodes", _checked_nodes(self.nodes, self.kind))

    @classmethod
    def of(
        cls,
        costs: Mapping[str, float],
        *,
        kind: Kind = "models",
        target: Target = "label",
        reach: Mapping[str, float] | None = None,
        **options: Any,
    ) -> CascadeSpec:
        """Build a cascade from a cost per node name, in that order.

        Args:
            costs: The cost of asking each node, by name: finite and not negative.
            kind: "models", or "exits" of one network.
            target: What counts as right.
            reach: The cost of going past an exit without asking it, by name.
            **options: Further options of the class, such as ``mistakes`` and ``unit``.

        Returns:
            The cascade.

        Raises:
            ArgumentError: If ``costs`` is no mapping, or ``reach`` has a name that it lacks.
            CascadeError: If a cost, the kind or the target cannot be used.

        >>> CascadeSpec.of({"e1": 3.0, "e2": 4.0}, kind="exits", reach={"e1": 2.5}).reach.tolist()
        [2.5, 4.0]
        """
        remedy = 'write {"small": 1.0, "large": 12.5}'
        require_kind(costs, Mapping, "costs must be a mapping from names to costs", remedy)
        past = dict(reach or {})
        nodes = tuple(CascadeNode(n, c, reach=past.pop(n, None)) for n, c in costs.items())
        if past:
            raise ArgumentError(
                f"reach names {', '.join(map(repr, past))}, and costs does not; "
                f"the nodes are {', '.join(costs)}",
                param="reach",
            )
        return cls(nodes, kind, target, **options)

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Node names, in order."""
        return tuple(node.name for node in self.nodes)

    @cached_property
    def costs(self) -> NDArray[np.float64]:
        """Shape (n,): the cost of asking each node; read-only."""
        return read_only(np.array([node.cost for node in self.nodes]))

    @cached_property
    def reach(self) -> NDArray[np.float64]:
        """Shape (n,): of exits, the cost of going past each; 0 of models; read-only."""
        if self.kind == "models":
            return read_only(np.zeros(len(self)))
        past = [node.cost if node.reach is None else node.reach for node in self.nodes]
        return read_only(np.array(past))

    @property
    def asks_each(self) -> bool:
        """Whether the nodes are exits, and each one on the way is asked."""
        return self.kind == "exits" and all(node.reach is None for node in self.nodes)

    @cached_property
    def parents(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the nodes that must have been asked before each node, from ``after``."""
        position = {name: k for k, name in enumerate(self.names)}
        return tuple(tuple(position[name] for name in node.parents) for node in self.nodes)

    @cached_property
    def required(self) -> NDArray[np.bool_]:
        """Shape (n, n): row v marks the nodes asked if only v is wanted, v included; read-only."""
        if self.asks_each:
            return read_only(np.tri(len(self), dtype=bool))
        required = np.eye(len(self), dtype=bool)
        for node in range(len(self)):
            above = list(self.parents[node])
            for parent in above:  # grows as we go
                if not required[node, parent]:
                    required[node, parent] = True
                    above += self.parents[parent]
        return read_only(required)

    @property
    def loss_bound(self) -> float | None:
        """The largest loss there can be, where it is known beforehand: of mistakes, or declared.

        >>> CascadeSpec.of({"a": 1.0}, mistakes={"fraud": {"*": 20.0}}).loss_bound
        20.0
        """
        return largest_mistake(self.mistakes) if self.mistakes else self.max_loss

    def answer_costs(self, costs: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Return, shape (n,), the cost of each node's answer alone: all asked or passed before it.

        Args:
            costs: Shape (n,): the cost of asking each node, where not the cascade's own.

        Returns:
            Shape (n,): the costs.

        >>> CascadeSpec.of({"e1": 1.0, "e2": 2.0}, kind="exits").answer_costs().tolist()
        [1.0, 3.0]
        """
        total = self.required @ (self.costs if costs is None else costs)
        # Passing is paid for every node before the last one asked, never for that one.
        if self.kind == "exits" and not self.asks_each:
            total = total + np.concatenate([[0.0], np.cumsum(self.reach)[:-1]])
        return np.asarray(total, np.float64)

    def asking_order(self, costs: NDArray[np.float64] | None = None) -> tuple[int, ...]:
        """Return the numbers of the nodes as a rule asks them that asks one after another.

        Exits are asked as they stand; models from the cheapest to the most expensive, each after
        its parents; equal costs in the cascade's order.

        Args:
            costs: Shape (n,): the cost of asking each node, where not the cascade's own.

        Returns:
            The numbers of all nodes.

        >>> CascadeSpec.of({"large": 9.0, "small": 1.0}).asking_order()
        (1, 0)
        """
        waiting = list(range(len(self)))
        if self.kind == "exits":
            return tuple(waiting)
        prices = self.costs if costs is None else costs
        order: list[int] = []
        while waiting:
            # A parent may cost more than its child and is asked first all the same.
            ready = [v for v in waiting if set(self.parents[v]) <= set(order)]
            order.append(min(ready, key=lambda v: (prices[v], v)))
            waiting.remove(order[-1])
        return tuple(order)

    def index_of(self, node: str) -> int:
        """Return the number of a node.

        Args:
            node: Its name.

        Returns:
            Its position among the nodes, counting from 0.

        Raises:
            ArgumentError: If no node has this name.

        >>> CascadeSpec.of({"small": 1.0, "large": 12.5}).index_of("large")
        1
        """
        if node not in self.names:
            raise ArgumentError(f"there is no node {node!r}; the nodes are {', '.join(self.names)}")
        return self.names.index(node)

    def with_costs(self, costs: Mapping[str, float]) -> CascadeSpec:
        """Return the same cascade at other costs of asking; a node not named keeps its own.

        Args:
            costs: The new costs by name.

        Returns:
            A new cascade.

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
            return cls.from_toml(Path(path).read_text("utf-8-sig"))  # editors may put a mark first
        except OSError as error:
            raise CascadeError(f"{path}: cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise CascadeError(f"{path}: is not text in UTF-8") from None
        except CascadeError as error:
            raise CascadeError(f"{path}: {error}", param=error.param) from None

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
            tables = tomllib.loads(text)
        except (RecursionError, ValueError) as error:  # too deep; a date or number out of range
            advice = "; write [[node]], with two brackets" if "('node',)" in str(error) else ""
            raise CascadeError(f"is not TOML that can be read: {error}{advice}") from None
        return from_tables(tables)

    def to_toml(self) -> str:
        """Return the text of a ``cascade.toml`` that reads back to an equal cascade.

        Returns:
            The text.

        Raises:
            CascadeError: If a value cannot be written as TOML.

        >>> print(CascadeSpec.of({"only": 1.0}).to_toml())
        [cascade]
        kind = "models"
        target = "label"
        <BLANKLINE>
        [[node]]
        name = "only"
        cost = 1.0
        <BLANKLINE>
        """
        data = to_tables(self)
        heads = [
            f"[{name}]\n{toml_text(data[name])}" for name in ("cascade", "serve") if name in data
        ]
        return "\n".join([*heads, *(f"[[node]]\n{toml_text(table)}" for table in data["node"])])

    def to_file(self, path: str | os.PathLike[str]) -> None:
        """Write a ``cascade.toml``.

        Args:
            path: The file to write; an existing one is replaced.

        Raises:
            CascadeError: If a value cannot be written as TOML.
            OSError: If the file cannot be written.
        """
        Path(path).write_text(self.to_toml(), "utf-8")

    def __repr__(self) -> str:
        nodes = [f"{node.name}: {node.cost:g}" for node in self.nodes[:6]]
        more = [f"{len(self) - 6} more"] if len(self) > 6 else []
        return f"CascadeSpec({', '.join([*nodes, *more])}; {self.kind}, target {self.target})"


# Keys of [[node]] and of [cascade]; further ones of a node are the serving layer's.
NODE_KEYS = tuple(f.name for f in dataclasses.fields(CascadeNode) if f.name != "options")
# Of those, what servers (:mod:`ttamer.llm.settings`) and Ray read.
OPTION_KEYS = (
    *("upstream", "model", "key_env", "headers", "params", "rename", "confidence", "samples"),
    *("cost_per_token", "timeout", "retries", "max_concurrent", "context", "accepts"),
    *("replicas", "cpus", "gpus"),
)
HEAD_KEYS = ("name", "kind", "target", "mistakes", "max_loss", "latency_weight", "unit")


def from_tables(data: object) -> CascadeSpec:
    """Build a cascade from the parsed form of ``cascade.toml``.

    >>> spec = from_tables({"node": [{"name": "only", "cost": 1, "timeout": 3}]})
    >>> spec.nodes[0].cost, spec.nodes[0].options
    (1.0, {'timeout': 3})
    """
    tables, head = _checked_tables(data)
    nodes = []
    for count, table in enumerate(tables.get("node", []), start=1):
        where = f"[[node]] {count}"
        if not isinstance(table, dict):
            raise CascadeError(f"{where} must be a table with name and cost")
        # The tokens of a call are its cost.
        options = {"cost": 0.0, **table} if "cost_per_token" in table else dict(table)
        named = f" ({options['name']!r})" if "name" in options else ""
        for key in ("name", "cost"):
            if key not in options:
                raise CascadeError(f"{where}{named} lacks {key}; a node has a name and a cost")
        fields = {key: options.pop(key) for key in NODE_KEYS if key in options}
        nodes.append(CascadeNode(**fields, options=options))
    return CascadeSpec(tuple(nodes), serve=tables.get("serve", {}), **head)


def to_tables(spec: CascadeSpec) -> dict[str, Any]:
    """Return the parsed form of ``cascade.toml``, which :func:`from_tables` reads back."""
    head = {key: value for key in HEAD_KEYS if (value := getattr(spec, key))}
    nodes = []
    for node in spec.nodes:
        table = {key: value for key in NODE_KEYS if (value := getattr(node, key)) is not None}
        if isinstance(node.after, tuple):
            table["after"] = list(node.after)
        nodes.append(table | dict(node.options))
    return {"cascade": head} | ({"serve": dict(spec.serve)} if spec.serve else {}) | {"node": nodes}


def split_nodes(spec: CascadeSpec) -> tuple[CascadeSpec, list[int]]:
    """Return the cascade with each verified answer as a node of its own, and the sources of nodes.

    For a fit a node with a ``verify_cost`` is two: ``large``, whose answer comes without a
    confidence, and ``large (verified)`` after it, the same answer with its confidence.

    >>> spec = CascadeSpec((CascadeNode("a", 1.0), CascadeNode("b", 2.0, verify_cost=3.0)))
    >>> split, source = split_nodes(spec)
    >>> split.names, split.costs.tolist(), source
    (('a', 'b', 'b (verified)'), [1.0, 2.0, 3.0], [0, 1, 1])
    """
    # The verified answer stands right after the plain one: its parent, which it needs.
    nodes: list[CascadeNode] = []
    source: list[int] = []
    for position, node in enumerate(spec.nodes):
        nodes.append(dataclasses.replace(node, verify_cost=None))
        source.append(position)
        if node.verify_cost is None:
            continue
        if (name := node.name + SUFFIX) in spec.names:
            raise CascadeError(
                f"node {node.name!r} has verify_cost, and its verified answer would be named "
                f"{name!r}, which is taken: rename that node"
            )
        nodes.append(CascadeNode(name, node.verify_cost, node.name))
        source.append(position)
    return dataclasses.replace(spec, nodes=tuple(nodes)), source


def join_verified(spec: CascadeSpec) -> CascadeSpec:
    """Return the cascade that :func:`split_nodes` split.

    >>> spec = CascadeSpec((CascadeNode("b", 2.0, verify_cost=3.0),))
    >>> join_verified(split_nodes(spec)[0]) == spec
    True
    """
    costs = {n.after: n.cost for n in spec.nodes if n.parents and n.name == f"{n.after}{SUFFIX}"}
    nodes = tuple(
        dataclasses.replace(node, verify_cost=costs.get(node.name))
        for node in spec.nodes
        if node.name.removesuffix(SUFFIX) not in costs or node.name in costs
    )
    return dataclasses.replace(spec, nodes=nodes)


def answer_rules(spec: CascadeSpec) -> dict[str, str]:
    """Return in words how answers are compared and priced, and where confidences come from.

    Without a ``[serve]`` table and upstreams, prices alone. A policy fits the rules that its trace
    was made with.
    """
    prices = [
        f"{node.name}: {_token_prices(node.options['cost_per_token'])}"
        for node in spec.nodes
        if "cost_per_token" in node.options
    ]
    rules = {"cost_per_token": ", ".join(prices)} if prices else {}
    if not spec.serve and not any("upstream" in node.options for node in spec.nodes):
        return rules
    # The default of the serving layer: a policy must not change its rule when it is written out.
    compare = spec.serve.get("compare", "normalised")
    if isinstance(compare, dict):
        is_name = set(compare) == {"kind"}
        compare = compare["kind"] if is_name else json.dumps(compare, sort_keys=True)
    confidence = []
    for node in spec.nodes:
        words = f"{node.name}: {node.options.get('confidence', 'logprobs')}"
        samples = node.options.get("samples", 5)  # the default of the serving layer
        confidence.append(words + (f" samples {samples}" if samples != 5 else ""))
    return {"compare": str(compare), "confidence": ", ".join(confidence), **rules}


def _token_prices(prices: object) -> str:
    """Return what the tokens of a node cost, in words; prices of 0 are left out."""
    if not isinstance(prices, Mapping):
        return str(prices)
    words = [
        f"{key} {price:.9g}" if is_number(price) else f"{key} {price}"
        for key, price in sorted(prices.items())
        if price != 0
    ]
    return " ".join(words) or "0"


def largest_mistake(mistakes: Mistakes) -> float:
    """Return the most that a mistake can cost, whatever the classes.

    >>> largest_mistake({"fraud": {"*": 20.0}}), largest_mistake({"*": {"*": 0.5}})
    (20.0, 0.5)
    """
    costs = [cost for row in mistakes.values() for cost in row.values()]
    # A wildcard for both replaces the cost of 1.
    if ANY_CLASS not in mistakes.get(ANY_CLASS, {}):
        costs.append(1.0)  # what a mistake costs that no entry is for
    return max(costs)


def _checked_mistakes(table: object) -> dict[str, dict[str, float]]:
    """Return a table of mistakes with its costs as floats, or raise what is wrong with it."""
    if not isinstance(table, dict):
        raise CascadeError(f"[cascade]: mistakes must be a table by label, not {table!r}")
    checked: dict[str, dict[str, float]] = {}
    for label, row in table.items():
        if not isinstance(label, str):
            raise CascadeError(f"[cascade]: mistakes: {label!r} must be text, such as '{label}'")
        if not isinstance(row, dict):
            raise CascadeError(
                f"[cascade]: mistakes.{label}: must be a table of costs by prediction, not {row!r}"
            )
        checked[label] = {}
        for prediction, cost in row.items():
            where = f"[cascade]: mistakes.{label}.{prediction}"
            if not isinstance(prediction, str):
                raise CascadeError(f"{where}: {prediction!r} must be text, such as '{prediction}'")
            if prediction == label != ANY_CLASS:
                raise CascadeError(f"{where}: a right answer costs 0; remove it")
            checked[label][prediction] = _price(cost, where)
    return checked


def _checked_tables(data: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tables of a ``cascade.toml`` and its ``[cascade]``; refuse unknown keys."""
    if not isinstance(data, dict):
        raise CascadeError("a cascade must be a table with [[node]] tables inside")
    for key in data:
        # A common slip of hand-written TOML.
        if key in HEAD_KEYS:
            raise CascadeError(f"{key} belongs to a table: write it below a line [cascade]")
        if key not in ("cascade", "serve", "node"):
            raise CascadeError(
                f"there is an unknown table {key!r}; a cascade has [cascade], [serve] and [[node]]"
            )
    for key in ("cascade", "serve"):
        if not isinstance(table := data.get(key, {}), dict):
            raise CascadeError(f"[{key}] must be a table, not {table!r}")
    if not isinstance(data.get("node", []), list):
        raise CascadeError("nodes must be written as [[node]], with two brackets")
    for key in data.get("cascade", {}):
        if key not in HEAD_KEYS:
            raise CascadeError(
                f"[cascade] has an unknown key {key!r}; it may have {', '.join(HEAD_KEYS)}"
            )
    return data, data.get("cascade", {})


def _checked_nodes(nodes: Iterable[CascadeNode], kind: Kind) -> tuple[CascadeNode, ...]:
    """Return the nodes with their costs as floats, or raise what is wrong with one."""
    checked: list[CascadeNode] = []
    tables: dict[str, str] = {}
    for count, node in enumerate(nodes, start=1):
        where = f"[[node]] {count}"
        checked.append(_checked_node(node, where, kind))
        if node.name in tables:
            raise CascadeError(
                f"{where}: the name {node.name!r} is taken by {tables[node.name]}; give every node "
                "a name of its own"
            )
        tables[node.name] = where
    if not checked:
        raise CascadeError("there are no nodes: add one [[node]] table for each model or exit")
    # All names must be known before parents can be looked up.
    parents = {node.name: node.parents for node in checked}
    for name, where in tables.items():
        for parent in (p for p in parents[name] if p not in parents):
            raise CascadeError(
                f"{where} ({name!r}): after is {parent!r}, and there is no such node; "
                f"the nodes are {', '.join(parents)}"
            )
    try:
        TopologicalSorter(parents).prepare()
    except CycleError as error:
        cycle = error.args[1][::-1]  # from a child to its parent
        raise CascadeError(
            f"{tables[cycle[0]]} ({cycle[0]!r}): after is cyclic: {' after '.join(cycle)}; let one "
            "of them start"
        ) from None
    return tuple(checked)


def _checked_node(node: CascadeNode, where: str, kind: Kind) -> CascadeNode:
    name = node.name
    if not isinstance(name, str):
        raise CascadeError(f"{where}: name must be text, not {name!r}")
    if not name or name != name.strip() or not name.isprintable():
        raise CascadeError(
            f"{where}: the name {name!r} must hold at least one character, no control "
            "characters, and no space at either end"
        )
    where = f"{where} ({name!r})"
    for key in node.options:
        if key in NODE_KEYS:
            raise CascadeError(f"{where}: {key!r} cannot stand among the options as well")
        # A key that is misspelt would be left out without a word where nothing is served.
        if key not in OPTION_KEYS:
            for alike in get_close_matches(str(key), (*NODE_KEYS, *OPTION_KEYS), 1, 0.75):
                raise CascadeError(f"{where}: has an unknown key {key!r}; did you mean {alike!r}?")
    prices: dict[str, Any] = {"cost": _price(node.cost, f"{where}: cost")}
    for key in ("reach", "verify_cost", "cost_per_call"):
        if (value := getattr(node, key)) is not None:
            prices[key] = _price(value, f"{where}: {key}")
    if node.reach is not None and kind == "models":
        raise CascadeError(
            f"{where}: has reach = {prices['reach']}, and only exits are passed without being "
            'asked: write kind = "exits" below [cascade], or remove reach'
        )
    after = _checked_parents(node.after, where)
    for key, value in (("after", after), ("verify_cost", node.verify_cost)):
        if value is not None and kind == "exits":
            raise CascadeError(
                f"{where}: has {key} = {_toml_value(value)}, which is for separate models, and "
                f'kind is "exits": remove it, or write kind = "models"'
            )
    return dataclasses.replace(node, after=after, options=dict(node.options), **prices)


def _checked_parents(after: object, where: str) -> str | tuple[str, ...] | None:
    """Return ``after`` with several names as a tuple, or raise what is wrong with it."""
    if after is None or isinstance(after, str):
        return after
    if not isinstance(after, list | tuple) or not all(isinstance(name, str) for name in after):
        raise CascadeError(f"{where}: after must name a node, or be a list of names, not {after!r}")
    if not after:
        raise CascadeError(f"{where}: after is an empty list; name a node, or remove after")
    if len(set(after)) < len(after):
        raise CascadeError(f"{where}: after names a node twice, {_toml_value(after)}; keep one")
    return after[0] if len(after) == 1 else tuple(after)


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
    try:
        return "".join(f"{_toml_key(key)} = {_toml_value(value)}\n" for key, value in table.items())
    except ValueError as error:
        raise CascadeError(f"cannot be written as TOML: {error}") from None


def _toml_key(key: object) -> str:
    if not isinstance(key, str):
        raise ValueError(f"the key {key!r} is not text")  # noqa: TRY004 - one kind to catch
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_string(key)


def _toml_value(value: object) -> str:
    if isinstance(value, np.generic):  # its text names its type
        value = value.item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _toml_string(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dt.date | dt.time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, dict):
        items = (f"{_toml_key(k)} = {_toml_value(v)}" for k, v in value.items())
        return "{" + ", ".join(items) + "}"
    raise ValueError(f"there is no TOML for {value!r}")


def _toml_string(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{text!r} is not well-formed Unicode")
    # A string of JSON is one of TOML but for the control character that JSON leaves as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
