"""A network with exits as ONNX files, one per segment and one per exit; the decision is outside.

``segment_0.onnx`` takes the inputs, ``segment_1.onnx`` what that returns, and so on;
``exit_0.onnx`` takes what ``segment_0.onnx`` returns and gives logits. The program that runs the
files asks a session of the policy which exit is next (``examples/early_exit_onnx.py``).
"""

from __future__ import annotations

import importlib
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ttamer._files import atomic_write
from ttamer._numbers import counted
from ttamer.errors import ArgumentError, MissingExtra
from ttamer.torch.devices import device_of, rows_of, tensors_of, to_device
from ttamer.torch.early_exit import EarlyExit, Inputs, require_exits

if TYPE_CHECKING:
    from torch import nn


# The names of the dimensions that may vary.
DIMENSIONS = ("batch", "tokens")


def export_onnx(
    network: EarlyExit,
    folder: str | os.PathLike[str],
    example: Inputs,
    *,
    tokens: bool = False,
) -> None:
    """Write every segment and every exit of a network as an ONNX file.

    Args:
        network: The network; it is put in evaluation mode.
        folder: Created if it does not exist; files in it are replaced. Its ``exits.json`` lists
            the names of the exits, in order.
        example: At least two inputs. The batch size may vary.
        tokens: Whether the second dimension varies too, as the length of texts does.

    Raises:
        ArgumentError: A segment cannot be exported, or only for one batch size or length, or there
            are fewer than two inputs.
        MissingExtra: onnx or onnxscript is not installed.

    Example::

        exits.export_onnx(network, "folder", (ids, mask), tokens=True)
        segment = onnxruntime.InferenceSession("folder/segment_0.onnx")
    """
    for package in ("onnx", "onnxscript"):
        try:
            importlib.import_module(package)
        except ModuleNotFoundError:
            raise MissingExtra(package, "onnx") from None
    require_exits(network)
    value: Any = to_device(example, device_of(network), network.input_names)
    if rows_of(value) < 2:
        raise ArgumentError(f"example has {counted(rows_of(value), 'row')}; at least 2 are needed")
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    network.eval()
    shorter: Any = tuple(each[:, :-1] for each in tensors_of(value)) if tokens else value
    if isinstance(value, torch.Tensor):
        shorter = tensors_of(shorter)[0]
    with torch.no_grad():
        for k, (segment, ramp) in enumerate(zip(network.segments, network.exits, strict=True)):
            following, shorter_following = segment(value), segment(shorter)
            outputs = [f"value_{j}" for j in range(len(tensors_of(following)))]
            shapes = _varying(value, shorter)
            _export(segment, value, path / f"segment_{k}.onnx", shapes, outputs)
            value, shorter = following, shorter_following
            shapes = _varying(value, shorter)
            _export(ramp, value, path / f"exit_{k}.onnx", shapes, ["logits"])
    with atomic_write(path / "exits.json") as part:
        part.write_text(json.dumps({"names": list(network.names)}, indent=1) + "\n", "utf-8")


def _varying(value: Any, shorter: Any) -> Any:
    """Return the dimensions of each tensor that vary: the batch, and where texts differ, tokens."""
    batch, tokens = (torch.export.Dim(name) for name in DIMENSIONS)

    def of(tensor: torch.Tensor, other: torch.Tensor) -> dict[int, Any]:
        sizes = enumerate(zip(tensor.shape, other.shape, strict=False))
        return {0: batch} | {k: tokens for k, (one, two) in sizes if k and one != two}

    if isinstance(value, torch.Tensor):
        return of(value, shorter)
    return tuple(map(of, value, shorter))


def _export(module: nn.Module, value: Any, path: Path, shapes: Any, outputs: Sequence[str]) -> None:
    """Write one module as an ONNX file."""
    inputs = [f"input_{j}" for j in range(len(tensors_of(value)))]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's own
            program: Any = torch.onnx.export(
                module,
                (value,),
                str(path),
                dynamo=True,
                dynamic_shapes=(shapes,),
                input_names=inputs,
                output_names=list(outputs),
                external_data=False,
                verbose=False,
            )
    except Exception as error:
        cause = error.__cause__ or error
        first = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        raise ArgumentError(
            f"{path.name}: {type(module).__name__} cannot be exported: {first}; a module must be "
            "plain tensor operations, the same for every input"
        ) from error
    # Where sizes cannot vary, the exporter falls back to those of the example.
    given = {each.name: each.shape for each in program.model.graph.inputs}
    for name, varying in zip(
        inputs, (shapes,) if isinstance(shapes, dict) else shapes, strict=True
    ):
        for k, dimension in varying.items():
            if name in given and isinstance(given[name][k], int):
                raise ArgumentError(
                    f"{path.name}: {type(module).__name__} would take {given[name][k]} as the "
                    f"{dimension.__name__} size only: let it read sizes of tensors by x.shape, not "
                    "len(x) or int()"
                )
