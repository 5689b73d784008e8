"""Traces of early-exit networks: what every exit says of every input, in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ttamer.errors import TraceError
from ttamer.torch.costs import count_flops
from ttamer.torch.decide import scores_of
from ttamer.torch.devices import autocast, device_of, rows_of, take, to_device
from ttamer.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from ttamer.torch.devices import Precision
    from ttamer.torch.early_exit import EarlyExit, Value
    from ttamer.trace.spec import CascadeSpec

__all__ = ["trace_of"]


def trace_of(
    network: EarlyExit,
    loader: Iterable[tuple[Value, Tensor]],
    *,
    spec: CascadeSpec | None = None,
    classes: Sequence[str] | None = None,
    precision: Precision = "fp32",
    progress: Callable[[int], None] | None = None,
) -> Trace:
    """Run all exits on all inputs, and return what they said.

    Args:
        network: In evaluation mode afterwards.
        loader: Batches of (inputs, labels), labels being class numbers.
        spec: The cascade and its costs; by default operations counted on the first input, ramps
            included, as shares of the network without ramps.
        classes: Names of the classes; by default their numbers.
        precision: What the network computes in.
        progress: Called with the rows done.
    """
    network.eval()
    device = device_of(network)
    found: list[list[Tensor]] = []
    labels: list[Tensor] = []
    done = 0
    for inputs, label in loader:
        value = to_device(inputs, device)
        if spec is None and rows_of(value):
            first = torch.zeros(1, dtype=torch.int64, device=device)
            spec = count_flops(network, take(value, first)).spec()
        with torch.inference_mode(), autocast(device, precision):
            scores = [scores_of(logits) for logits in network(value)]
        # (4, rows, exits), moved off the device together
        found.append([torch.stack(column, dim=1).cpu() for column in zip(*scores, strict=True)])
        labels.append(label.cpu())
        done += rows_of(value)
        if progress is not None:
            progress(done)
    if spec is None or not done:
        raise TraceError("the loader gave no inputs; bring at least one")
    confidence, prediction, margin, entropy = (
        torch.cat([part[k] for part in found]).numpy() for k in range(4)
    )
    right = torch.cat(labels).numpy()
    count = 1 + int(max(prediction.max(), right.max()))
    names = tuple(str(k) for k in range(count)) if classes is None else tuple(classes)
    if count > len(names):
        raise TraceError(f"there are {len(names)} classes, and class {count - 1} was met")
    whole = np.isfinite(confidence).all(axis=1)
    left_out = {} if whole.all() else {"an exit gave NaN logits": int((~whole).sum())}
    return Trace(
        spec,
        confidence[whole].astype(np.float64),
        prediction=prediction[whole].astype(np.int32),
        label=right[whole].astype(np.int32),
        extras={
            "margin": margin[whole].astype(np.float64),
            "entropy": entropy[whole].astype(np.float64),
        },
        classes=names,
        left_out=left_out,
    )
