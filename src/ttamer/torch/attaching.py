"""Exits on any model whose blocks run one after another, found by name.

The model's own ``forward`` is kept, so nothing of it is written again: it runs up to the first
block, then the blocks run one by one, and for the head it runs again with its blocks replaced by
their known output. What comes before the first block is therefore computed twice, which is cheap
for embeddings and small stems.

Three rules are checked on the example: each block gets the output of the block before, everything
else that a block gets is known before any block runs or is returned by the first, and the full
output is unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from threading import Lock, get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ttamer._checks import counted, require_kind
from ttamer.errors import ArgumentError
from ttamer.torch.devices import LABEL_NAMES, Inputs, Value, by_position, device_of, tensors_of
from ttamer.torch.early_exit import POOLS, EarlyExit, Pool, Ramp, pooled_ramp

# What a block may get besides tensors.
CONSTANTS = (type(None), bool, int, float, str, torch.dtype, torch.Size)
# The remedy where blocks cannot be run apart.
OTHERWISE = "choose other points, or build EarlyExit(blocks, ramps, head)"
_replacing = Lock()  # held while forwards are replaced


def attach(
    model: nn.Module,
    points: str | Sequence[str],
    example: Inputs,
    *,
    pool: Pool = "mean",
    ramp: Callable[[Tensor], nn.Module] | None = None,
) -> EarlyExit:
    """Put exits on a model by the names of its blocks.

    Args:
        model: A classifier: its output is a tensor of shape (batch, classes), or has one as
            ``logits``. It is put in evaluation mode, and its weights are shared.
        points: The name of an ``nn.ModuleList`` or ``nn.Sequential``, for an exit after each of its
            blocks but the last; or names of blocks of one such list, for an exit after each of
            these; or the names of other modules that run one after another.
        example: At least two inputs, on any device: a tensor, a tuple of tensors, or a mapping from
            the names of the arguments to tensors. The network then takes tensors in this order, or
            such a mapping.
        pool: The vector of an input whose blocks return (batch, tokens, width): its first or last
            token, or the mean. Padding is left out where an input is named ``attention_mask``: of
            blocks that return fewer tokens than it has, as for audio, in proportion; tokens that
            the model adds at the end count as padding.
        ramp: A function that returns a ramp for the output of a block, given for the example; of
            tokens a ramp reads the vector. By default pooling and a linear layer, chosen by the
            number of dimensions.

    Returns:
        The network with exits, named after the modules, with "_" for ".". Its ramps have random
        weights.

    Raises:
        ArgumentError: A name is not in the model, the blocks do not run one after another, the
            model's arguments or output are of another kind, a ramp does not fit, the full output
            would change, or the model has no weights yet, or returns NaN.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3))
    >>> network = attach(model, ["0", "1"], torch.randn(5, 4))
    >>> network.names, [tuple(logits.shape) for logits in network(torch.randn(2, 4))]
    (('0', '1', 'full'), [(2, 3), (2, 3), (2, 3)])
    """
    if pool not in POOLS:
        raise ArgumentError(f"pool must be one of {', '.join(POOLS)}, not {pool!r}")
    tensors, keys = _inputs(example)
    names, wanted = _names(model, points)
    device = device_of(model)
    if device.type == "meta":
        raise ArgumentError("the model is on the meta device, without weights: load them first")
    inputs = tuple(tensor.to(device) for tensor in tensors)
    model.eval()
    with torch.no_grad():
        expected = _logits(_call(model, inputs, keys))
        if not expected.isfinite().all():
            raise ArgumentError(
                f"{type(model).__name__} returns NaN or infinite logits for the example: check its "
                "weights and the example"
            )
        chain = _chain(model, names, inputs, keys)
        blocks: list[nn.Module] = [_First(chain)]
        blocks += [_Block(chain, k) for k in range(1, len(names))]
        if names[-1] in wanted:  # an exit between the last block and the head
            blocks.append(nn.Identity())
        value: Any = inputs if len(inputs) > 1 else inputs[0]
        ramps: list[nn.Module | None] = []
        for block, name in zip(blocks[:-1], names, strict=False):
            value = block(value)
            if name not in wanted:
                ramps.append(None)
                continue
            classes = expected.shape[1]
            layers = _layers(value[0], classes, name) if ramp is None else (ramp(value[0]),)
            read = pool if value[0].ndim == 3 else None
            module = Ramp(*layers, pool=read, mask=chain.mask).to(value[0]).eval()
            _check_ramp(module, value, expected.shape, name)
            ramps.append(module)
        exits = [name.replace(".", "_") for name in names if name in wanted]
        network = EarlyExit(blocks, ramps, _Rest(chain), names=[*exits, "full"], input_names=keys)
        network.eval()
        _check(network, chain, inputs)
    network.direct = chain.full
    return network


@dataclass(frozen=True, eq=False)
class _Chain:
    """A model, and how its blocks are called."""

    model: nn.Module
    # The names of the model's arguments, or None where they go by position.
    keys: tuple[str, ...] | None
    count: int  # the number of the model's arguments
    blocks: tuple[nn.Module, ...]
    calls: tuple[_Call, ...]  # how each of them is called for the example
    carried: tuple[_Carried, ...]  # the tensors besides the hidden state that blocks get
    # The number of blocks whose calls are looked at before any block runs: up to the last that gets
    # other tensors than those before it.
    probed: int
    mask: int | None  # the position of the mask in a value, if the model takes one

    def inputs(self, value: Value) -> tuple[Tensor, ...]:
        """Return the model's inputs; refuse another number than in the example."""
        inputs = tensors_of(value)
        if len(inputs) != self.count:
            names = "" if self.keys is None else f" ({', '.join(self.keys)})"
            raise ArgumentError(
                f"the network takes {counted(self.count, 'tensor')}, as in the example{names}, "
                f"not {len(inputs)}"
            )
        return inputs

    def full(self, value: Value) -> Tensor:
        """Return the logits of the model as it is."""
        return _logits(_call(self.model, self.inputs(value), self.keys))

    def probe(self, inputs: Sequence[Tensor]) -> list[list[Any]]:
        """Return the values that blocks get, as far as they are looked at; no block runs."""
        calls: list[list[Any]] = []

        def pass_on(call: _Call, *args: Any, **kwargs: Any) -> Any:
            leaves: list[Any] = []
            _flatten((args, kwargs), leaves)
            calls.append(leaves)
            if len(calls) == self.probed:
                raise _Reached
            return call.output(leaves[call.hidden])

        probed = zip(self.blocks[: self.probed], self.calls, strict=False)
        forwards = {block: partial(pass_on, call) for block, call in probed}
        with _replaced(forwards), contextlib.suppress(_Reached):
            _call(self.model, inputs, self.keys)
        if len(calls) < self.probed:
            raise ArgumentError(
                f"{type(self.model).__name__} does not run the blocks that it was attached with, "
                f"such as a {type(self.blocks[len(calls)]).__name__}: where modules are replaced, "
                "as by quantize_dynamic, do that before exits are attached"
            )
        return calls

    def compare(self, calls: Sequence[Sequence[Any]], *, training: bool) -> None:
        """Refuse inputs for which blocks get other tensors or constants than for the example.

        Some constants differ while training, such as whether keys and values are kept; those of
        later blocks may depend on what blocks return.
        """
        for number, (leaves, call) in enumerate(zip(calls, self.calls, strict=False)):
            is_same = len(leaves) == len(call.sources) and all(
                kind != "constant"
                or (not isinstance(leaf, Tensor) and (number or training or leaf == constant))
                for leaf, (kind, constant) in zip(leaves, call.sources, strict=True)
            )
            if not is_same:
                raise ArgumentError(
                    "the blocks get other values for these inputs than for the example, such as a "
                    "mask for padding, or a size: give inputs of the shape of the example, attach "
                    "with an example that has padding, or build EarlyExit(blocks, ramps, head)"
                )

    def run_block(
        self, number: int, hidden: Tensor, carried: Sequence[Tensor | None]
    ) -> tuple[Tensor, Any]:
        """Call one block, and return the hidden state of its output, and all of it."""
        call = self.calls[number]

        def value(kind: str, what: Any) -> Any:
            if kind != "carried":
                return hidden if kind == "hidden" else what
            tensor = carried[what]
            if tensor is None or (tensor.ndim == 2 and tensor.shape[1] == 0):  # it was left out
                return None
            return tensor if self.carried[what].batched else tensor[0]

        args, kwargs = _unflatten(call.spec, [value(*source) for source in call.sources])
        output = self.blocks[number](*args, **kwargs)
        return output if call.part is None else output[call.part], output


@dataclass(frozen=True, eq=False)
class _Call:
    """How one block is called, and what it returns."""

    spec: Any  # the structure of its arguments, with the positions of its values
    # Per value: ("hidden", None), ("carried", its number) or ("constant", value).
    sources: tuple[tuple[str, Any], ...]
    hidden: int  # the position of the hidden state among the values
    # The position of the hidden state in the output; None where it is the output itself.
    part: int | None
    parts: tuple[Any, ...]  # the constants of an output of several parts, and None for its tensors

    def output(self, hidden: Tensor) -> Any:
        """Return an output of this form without its other tensors, such as attention weights.

        These are unused, or the check of the full output fails.
        """
        if self.part is None:
            return hidden
        return (*self.parts[: self.part], hidden, *self.parts[self.part + 1 :])


class _Carried(NamedTuple):
    """A tensor besides the hidden state that blocks get."""

    block: int | None  # the first block that gets it, or None where the first block returns it
    at: int  # its position among the values of that block, or in the output of the first
    batched: bool  # whether it has the batch as its first dimension


class _Reached(Exception):  # noqa: N818 - it ends a run early, it is not an error
    """The last block that is looked at was called."""


class _First(nn.Module):
    """The model up to and with its first block."""

    def __init__(self, chain: _Chain) -> None:
        super().__init__()
        self.model = chain.model  # registered once, here: the other parts only refer to it
        self._chain = chain

    def forward(self, value: Value) -> tuple[Tensor, ...]:
        """Return the output of the first block, what later blocks get, and the model's inputs."""
        chain = self._chain
        inputs = chain.inputs(value)
        calls = chain.probe(inputs)
        chain.compare(calls, training=self.training)

        def with_rows(leaf: Tensor | None, batched: bool) -> Tensor:
            rows = inputs[0].shape[0]  # not len, which an export to ONNX would take for a constant
            if leaf is None:  # models leave out a mask that masks nothing
                return torch.empty((rows, 0), device=inputs[0].device)
            return leaf if batched else leaf.unsqueeze(0).expand(rows, *leaf.shape)

        carried = [
            None if block is None else with_rows(calls[block][at], batched)
            for block, at, batched in chain.carried
        ]
        hidden, output = chain.run_block(0, calls[0][chain.calls[0].hidden], carried)
        for number, (block, at, batched) in enumerate(chain.carried):
            if block is None:
                carried[number] = with_rows(output[at], batched)
        return (hidden, *carried, *inputs)  # type: ignore[arg-type]


class _Block(nn.Module):
    """One block after the first."""

    def __init__(self, chain: _Chain, number: int) -> None:
        super().__init__()
        self._chain = chain
        self._number = number

    def forward(self, value: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the output of the block, and the rest of the value as it is."""
        chain, (hidden, *others) = self._chain, value
        if not torch.is_inference_mode_enabled():
            # Some blocks write to what they get, and a ramp reads it again for its gradients.
            hidden = hidden.clone()
        return (chain.run_block(self._number, hidden, others)[0], *others)


class _Rest(nn.Module):
    """The model after its last block: all of it, with the blocks replaced by their known output."""

    def __init__(self, chain: _Chain) -> None:
        super().__init__()
        self._chain = chain

    def forward(self, value: tuple[Tensor, ...]) -> Tensor:
        """Return the logits."""
        chain = self._chain

        def known(call: _Call) -> Callable[..., Any]:
            return lambda *_args, **_kwargs: call.output(value[0])

        replaced = dict(zip(chain.blocks, map(known, chain.calls), strict=True))
        with _replaced(replaced):
            return chain.full(value[1 + len(chain.carried) :])


def _layers(hidden: Tensor, classes: int, name: str) -> tuple[nn.Module, ...]:
    """Return the layers of a ramp for the output of a block."""
    if hidden.ndim == 2:
        return (nn.Linear(hidden.shape[1], classes),)
    if hidden.ndim == 3:
        return (nn.LayerNorm(hidden.shape[2]), nn.Linear(hidden.shape[2], classes))
    if hidden.ndim == 4 and hidden.shape[2] == hidden.shape[3]:
        return (pooled_ramp(hidden.shape[1], hidden.shape[2], classes),)
    raise ArgumentError(
        f"{name} returns shape {tuple(hidden.shape)}; ramps are built for (batch, width), (batch, "
        "tokens, width) and (batch, channels, side, side): give ramp=, a function that returns a "
        "module for it"
    )


def _check_ramp(ramp: nn.Module, value: Any, shape: torch.Size, name: str) -> None:
    """Raise an error unless a ramp returns logits of a shape for a value."""
    try:
        received = f"shape {tuple(ramp(value).shape)}"
    except Exception as error:  # whatever a ramp does
        received = f"{type(error).__name__}: {error}"
    if received != f"shape {tuple(shape)}":
        raise ArgumentError(
            f"the ramp for {name} must return logits of shape {tuple(shape)} for its output of "
            f"shape {tuple(value[0].shape)}, and the example gives {received}"
        )


def _inputs(example: Inputs) -> tuple[tuple[Tensor, ...], tuple[str, ...] | None]:
    """Return the tensors of an example, and their names where it has names."""
    keys = tuple(example) if isinstance(example, Mapping) else None
    if labels := set(keys or ()).intersection(LABEL_NAMES):
        raise ArgumentError(
            f"example holds {labels.pop()!r}, which the network is not given when it runs: leave "
            "labels out of it"
        )
    inputs = tensors_of(by_position(example, keys))
    if not inputs or not all(tensor.ndim for tensor in inputs):
        raise ArgumentError("example must have tensors with the batch as their first dimension")
    if len({len(tensor) for tensor in inputs}) > 1 or len(inputs[0]) < 2:
        raise ArgumentError(
            f"the tensors of example have {', '.join(str(len(tensor)) for tensor in inputs)} "
            "rows; give the same number, at least 2, to each"
        )
    return inputs, keys


def _names(model: nn.Module, points: str | Sequence[str]) -> tuple[list[str], set[str]]:
    """Return the names of the blocks that run one after another, and of those with an exit."""
    require_kind(model, nn.Module, "attach needs a model of PyTorch", "load it first")
    modules = dict(model.named_modules())
    if not isinstance(points, Sequence) or any(isinstance(name, nn.Module) for name in points):
        raise ArgumentError(
            f"points is a {type(points).__name__}, not a name or a list of names: give the name of "
            "a list of blocks, such as encoder.layers, or names of blocks"
        )
    names = [points] if isinstance(points, str) else list(points)
    missing = [name for name in names if name not in modules or not name]
    if not names:
        raise ArgumentError("points is empty; give the name of a list of blocks, or of blocks")
    if missing:
        lists = [
            n for n, m in modules.items() if n and isinstance(m, nn.ModuleList | nn.Sequential)
        ]
        choice = lists or [repr(name) for name, _ in model.named_children()]
        raise ArgumentError(
            f"{type(model).__name__} has no module {missing[0]!r}; "
            f"{'lists of blocks' if lists else 'its modules'} are {', '.join(choice[:8]) or 'none'}"
        )
    parents = {points if isinstance(points, str) else name.rpartition(".")[0] for name in names}
    parent = parents.pop()
    blocks = modules[parent]
    listed = not parents and isinstance(blocks, nn.ModuleList | nn.Sequential)
    siblings = [f"{parent}.{name}".lstrip(".") for name, _ in blocks.named_children()]
    if isinstance(points, str):
        if not listed or len(siblings) < 2:
            raise ArgumentError(
                f"{points} is a {type(blocks).__name__}; give the name of a ModuleList or "
                "Sequential of at least 2 blocks, or a list of names of blocks"
            )
        return siblings, set(siblings[:-1])
    return (siblings if listed else names), set(names)


def _call(model: nn.Module, inputs: Sequence[Tensor], keys: tuple[str, ...] | None) -> Any:
    """Call a model with its inputs."""
    try:
        return model(*inputs) if keys is None else model(**dict(zip(keys, inputs, strict=True)))
    except TypeError as error:
        how = "by position" if keys is None else f"as {', '.join(keys)}"
        raise ArgumentError(
            f"{type(model).__name__} cannot be called with the tensors of example {how}: {error}; "
            "name the arguments in a mapping, or wrap the model"
        ) from error


def _logits(output: Any) -> Tensor:
    """Return the logits of a model's output."""
    output = output.get("logits") if isinstance(output, Mapping) else output
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.shape[1] < 2:
        what = type(output).__name__ if logits is None else f"shape {tuple(logits.shape)}"
        raise ArgumentError(
            f"the model returns {what}; it must return logits of shape (batch, classes), of 2 "
            "classes or more, as a tensor or as logits: give a model with a classification head"
        )
    return logits


def _flatten(value: Any, leaves: list[Any]) -> Any:
    """Append the values of nested tuples, lists and dicts; return the structure with positions."""
    if isinstance(value, dict):
        return {key: _flatten(part, leaves) for key, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_flatten(part, leaves) for part in value)
    leaves.append(value)
    return len(leaves) - 1


def _unflatten(spec: Any, leaves: Sequence[Any]) -> Any:
    """Return the structure with its values."""
    if isinstance(spec, dict):
        return {key: _unflatten(part, leaves) for key, part in spec.items()}
    if isinstance(spec, tuple | list):
        return type(spec)(_unflatten(part, leaves) for part in spec)
    return leaves[spec]


class _Forward:
    """The forward of a module while threads replace it, each for its own calls."""

    def __init__(self, module: nn.Module) -> None:
        self.own = vars(module).get("forward")  # some modules have one of their own already
        self.by_thread: dict[int, Callable[..., Any]] = {}
        self._usual: Callable[..., Any] = module.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.by_thread.get(_thread(), self._usual)(*args, **kwargs)


def _thread() -> int:
    """Return the number of this thread; neither it nor a lock can be traced."""
    return 0 if torch.compiler.is_compiling() else get_ident()


def _alone() -> contextlib.AbstractContextManager[object]:
    """Return the context in which no other thread replaces a forward."""
    return contextlib.nullcontext() if torch.compiler.is_compiling() else _replacing


@contextlib.contextmanager
def _replaced(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Replace the forward of some modules for a while, for calls of this thread."""
    me = _thread()
    with _alone():
        for module, forward in forwards.items():
            if not isinstance(vars(module).get("forward"), _Forward):
                module.__dict__["forward"] = _Forward(module)
            module.__dict__["forward"].by_thread[me] = forward
    try:
        yield
    finally:
        with _alone():
            for module in forwards:
                shared = module.__dict__["forward"]
                del shared.by_thread[me]
                if not shared.by_thread:
                    del module.__dict__["forward"]
                    if shared.own is not None:
                        module.__dict__["forward"] = shared.own


def _chain(
    model: nn.Module, names: Sequence[str], inputs: tuple[Tensor, ...], keys: tuple[str, ...] | None
) -> _Chain:
    """Record how the blocks are called on the example, and check that they form a chain."""
    modules = dict(model.named_modules())
    blocks = tuple(modules[name] for name in names)
    compiled = [
        part for part in modules.values() if part._compiled_call_impl or hasattr(part, "_orig_mod")
    ]
    if any(block in part.modules() for part in compiled for block in blocks):
        raise ArgumentError(
            f"{type(model).__name__} is compiled, and its blocks cannot be run apart: attach to "
            "the model before it is compiled, then compile network.segments"
        )
    calls = _calls(model, blocks, inputs, keys)
    rows = len(inputs[0])
    # One row more, not fewer: of the rest none may have padding, and models leave such masks out.
    more = _calls(model, blocks, tuple(torch.cat([tensor, tensor[-1:]]) for tensor in inputs), keys)
    name_of = dict(zip(blocks, names, strict=True))
    for run, count in ((calls, rows), (more, rows + 1)):
        ran = [name_of[call.block] for call in run]
        if ran != list(names):
            raise ArgumentError(
                f"the blocks must run once each, in the order {', '.join(names)}; of {count} inputs"
                f" the model ran {', '.join(ran) or 'none of them'}: choose others with points"
            )
    positions, parts = _hidden_states(calls, names)
    for name, call, larger, part in zip(names, calls, more, parts, strict=True):
        hidden, longer = (_parts(run.output)[part or 0] for run in (call, larger))
        _check_batch(name, hidden, longer, rows)
    returned = _parts(calls[0].output)
    carried: list[_Carried] = []
    tensors: list[Tensor] = []  # those carried, for the example

    def slot(number: int, at: int, leaf: Tensor) -> int:
        """Return the number of a tensor among those carried."""
        same = [k for k, tensor in enumerate(tensors) if tensor is leaf]
        if same:
            return same[0]
        part = next((k for k, value in enumerate(returned) if number and value is leaf), None)
        longer = more[number].leaves[at] if part is None else _parts(more[0].output)[part]
        batched = bool(leaf.ndim) and (len(leaf), len(longer)) == (rows, rows + 1)
        tensors.append(leaf)
        carried.append(
            _Carried(number, at, batched) if part is None else _Carried(None, part, batched)
        )
        return len(carried) - 1

    described = []
    for number, (call, name) in enumerate(zip(calls, names, strict=True)):
        sources: list[tuple[str, Any]] = []
        for at, leaf in enumerate(call.leaves):
            if leaf is call.leaves[positions[number]]:
                sources.append(("hidden", None))
            elif isinstance(leaf, Tensor):
                sources.append(("carried", slot(number, at, leaf)))
            elif isinstance(leaf, CONSTANTS):
                sources.append(("constant", leaf))
            else:
                raise ArgumentError(
                    f"{name} gets a {type(leaf).__name__}, and blocks may get tensors and "
                    "constants only; for a cache of keys and values set model.config.use_cache = "
                    "False"
                )
        constants = tuple(map(_constant, _parts(call.output)))
        described.append(
            _Call(call.spec, tuple(sources), positions[number], parts[number], constants)
        )
    kinds = [
        tuple((kind, what is None if kind == "constant" else what) for kind, what in call.sources)
        for call in described
    ]
    # Inputs of these names mark tokens, true or 1, and padding, false or 0.
    marking = [k for k, key in enumerate(keys or ()) if key in ("attention_mask", "mask")]
    masks = [k for k in marking if inputs[k].ndim == 2]
    mask = 1 + len(carried) + masks[0] if masks else None
    probed = 1 + max(kinds.index(kind) for kind in kinds)
    chain = _Chain(model, keys, len(inputs), blocks, tuple(described), tuple(carried), probed, mask)
    _check_known(chain, inputs, tensors, names)
    return chain


def _hidden_states(
    calls: Sequence[_Recorded], names: Sequence[str]
) -> tuple[list[int], list[int | None]]:
    """Return the positions of the hidden state in the call of each block and in its output."""
    positions: list[int] = []
    parts: list[int | None] = []
    for number, (call, following) in enumerate(pairwise(calls)):
        match = [
            (k, at)
            for k, part in enumerate(_parts(call.output))
            for at, leaf in enumerate(following.leaves)
            if isinstance(part, Tensor) and leaf is part
        ]
        if not match:
            raise ArgumentError(
                f"{names[number + 1]} does not get the output of {names[number]}: the model "
                f"computes something between them; {OTHERWISE}"
            )
        part, at = match[0]
        parts.append(part if isinstance(call.output, tuple | list) else None)
        positions.append(at)
    last = (parts[-1] if parts else 0) or 0
    parts.append(last if isinstance(calls[-1].output, tuple | list) else None)
    first = next((k for k, leaf in enumerate(calls[0].leaves) if isinstance(leaf, Tensor)), 0)
    return [positions[0] if positions else first, *positions], parts


def _check_batch(name: str, hidden: Any, more: Any, rows: int) -> None:
    """Raise an error unless a block returns a tensor in which the batch comes first."""
    if not isinstance(hidden, Tensor) or hidden.is_nested:
        raise ArgumentError(
            f"{name} returns a {'nested ' * isinstance(hidden, Tensor)}{type(hidden).__name__}; a "
            "block must return a tensor, or a tuple with one: choose blocks inside it, and build "
            "nn.TransformerEncoder with enable_nested_tensor=False"
        )
    if (hidden.shape[:1], more.shape[:1]) != ((rows,), (rows + 1,)):
        raise ArgumentError(
            f"{name} returns shape {tuple(hidden.shape)} for {rows} inputs, and the batch must "
            "come first in it (batch_first=True in many modules)"
        )


def _check_known(
    chain: _Chain, inputs: Sequence[Tensor], tensors: Sequence[Tensor], names: Sequence[str]
) -> None:
    """Raise an error where a tensor that a later block gets depends on what blocks return."""
    calls: list[list[Any]] = []
    with contextlib.suppress(Exception):  # whatever a model does without its blocks
        calls = chain.probe(inputs)
    for (block, at, _), tensor in zip(chain.carried, tensors, strict=True):
        if not block:  # the first gets it, or returns it
            continue
        leaf = calls[block][at] if block < len(calls) else None
        if not isinstance(leaf, Tensor) or not torch.equal(leaf, tensor):
            raise ArgumentError(
                f"{names[block]} gets a tensor of shape {tuple(tensor.shape)} that depends on what "
                f"the blocks before it return; {OTHERWISE}"
            )


def _parts(output: Any) -> Sequence[Any]:
    """Return the parts of a block's output."""
    return output if isinstance(output, tuple | list) else (output,)


def _constant(part: Any) -> Any:
    """Return a part of an output if it consists of constants, and ``None`` otherwise."""
    leaves: list[Any] = []
    _flatten(part, leaves)
    return part if all(isinstance(leaf, CONSTANTS) for leaf in leaves) else None


class _Recorded(NamedTuple):
    """One call of a block."""

    block: nn.Module
    leaves: list[Any]  # the values that it got
    spec: Any  # their structure
    output: Any


def _calls(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    inputs: tuple[Tensor, ...],
    keys: tuple[str, ...] | None,
) -> list[_Recorded]:
    """Run a model, and return the calls of blocks."""
    calls: list[_Recorded] = []

    def record(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        leaves: list[Any] = []
        spec = _flatten((args, kwargs), leaves)
        calls.append(_Recorded(module, leaves, spec, output))

    hooks = [block.register_forward_hook(record, with_kwargs=True) for block in blocks]
    try:
        _call(model, inputs, keys)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _check(network: EarlyExit, chain: _Chain, inputs: tuple[Tensor, ...]) -> None:
    """Raise an error unless the full output is that of the model, also for some of the rows."""
    for rows in (len(inputs[0]), len(inputs[0]) - 1):
        fewer = tuple(tensor[:rows] for tensor in inputs)
        expected = chain.full(fewer)
        try:
            logits = network.full(fewer if len(fewer) > 1 else fewer[0])
        except ArgumentError:
            raise
        except Exception as error:  # whatever a model does with what its blocks return
            raise ArgumentError(
                f"{type(chain.model).__name__} cannot run with its blocks apart: "
                f"{type(error).__name__}: {error}; {OTHERWISE}"
            ) from error
        limit = 1e-4 * (1 + float(expected.abs().max()))  # what rounding may cause
        difference = float((logits - expected).abs().max())
        if logits.shape != expected.shape or not difference <= limit:
            raise ArgumentError(
                f"with exits the full output for {counted(rows, 'input')} would differ by "
                f"{difference:.3g}: it is random, or not of the blocks' outputs alone; {OTHERWISE}"
            )
