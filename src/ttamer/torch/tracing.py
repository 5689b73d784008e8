"""Traces of early-exit networks: the answer of every exit to every input, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from ttamer.cascade import CascadeSpec
from ttamer.errors import TraceError
from ttamer.torch.deciding import confidence_of
from ttamer.torch.devices import (
    Batch,
    Precision,
    autocast,
    device_of,
    inputs_and_labels,
    rows_of,
    take,
)
from ttamer.torch.early_exit import EarlyExit, require_exits
from ttamer.torch.profiling import count_flops
from ttamer.trace.trace import Trace


def trace_of(
    network: EarlyExit,
    loader: Iterable[Batch],
    *,
    spec: CascadeSpec | None = None,
    classes: Sequence[str] | None = None,
    precision: Precision = "fp32",
    progress: Callable[[int], None] | None = None,
) -> Trace:
    """Run all exits on all inputs and record their answers.

    Args:
        network: The network; it is in evaluation mode afterwards.
        loader: Batches of (inputs, labels), where labels are class numbers; or mappings that hold
            both, as the loaders of transformers give.
        spec: The cascade and its costs; by default the operations counted on the first input, ramps
            included, as shares of the network without ramps.
        classes: Names of the classes; by default their numbers.
        precision: What the network computes in.
        progress: Called with the number of rows done.

    Returns:
        A trace with confidence, prediction, margin and entropy of every exit. Rows where an exit
        returns NaN logits are left out and counted in ``left_out``.

    Raises:
        TraceError: The loader has no inputs, all logits are NaN, or a class has no name.

    >>> from torch import nn
    >>> from ttamer.torch.early_exit import EarlyExit
    >>> network = EarlyExit(
    ...     [nn.Linear(4, 8), nn.Linear(8, 8)], [nn.Linear(8, 3)], nn.Linear(8, 3)
    ... )
    >>> trace = trace_of(network, [(torch.zeros(10, 4), torch.zeros(10, dtype=torch.int64))])
    >>> trace.names, trace.confidence.shape
    (('exit1', 'full'), (10, 2))
    """
    require_exits(network)
    network.eval()
    device = device_of(network)
    batches: list[list[Tensor]] = []
    labels: list[Tensor] = []
    rows = 0
    for batch in loader:
        value, label = inputs_and_labels(batch, device, network.input_names)
        if spec is None and rows_of(value):
            first = torch.zeros(1, dtype=torch.int64, device=device)
            spec = count_flops(network, take(value, first)).spec()
        with torch.inference_mode(), autocast(device, precision):
            scores = [_scores(logits) for logits in network(value)]
        # (4, rows, exits), moved off the device together
        batches.append([torch.stack(column, dim=1).cpu() for column in zip(*scores, strict=True)])
        labels.append(label.cpu())  # on a GPU a long loader would fill its memory
        rows += rows_of(value)
        if progress is not None:
            progress(rows)
    if spec is None or not rows:
        raise TraceError("the loader has no inputs; give at least one")
    confidence, prediction, margin, entropy = (
        torch.cat([part[k] for part in batches]).numpy() for k in range(4)
    )
    correct = torch.cat(labels).numpy()
    count = 1 + int(max(prediction.max(), correct.max()))
    names = tuple(str(k) for k in range(count)) if classes is None else tuple(classes)
    if count > len(names):
        raise TraceError(
            f"there are {len(names)} classes, and a label or prediction is class "
            f"{count - 1}: name all classes"
        )
    complete = np.isfinite(confidence).all(axis=1)
    if not complete.any():
        raise TraceError(
            f"an exit returned NaN logits for each of the {rows} inputs; check the inputs and the "
            "weights for NaN"
        )
    left_out = {"an exit returned NaN logits": int((~complete).sum())}
    return Trace(
        spec,
        confidence[complete].astype(np.float64),
        prediction=prediction[complete].astype(np.int32),
        label=correct[complete].astype(np.int32),
        margin=margin[complete].astype(np.float64),
        entropy=entropy[complete].astype(np.float64),
        classes=names,
        left_out={} if complete.all() else left_out,
    )


def _scores(logits: Tensor) -> tuple[Tensor, ...]:
    """Return the confidence, prediction, margin and entropy of logits, shape (batch,) each."""
    confidence, prediction = confidence_of(logits)
    logs = torch.log_softmax(logits.float(), dim=-1)
    chances = logs.exp()
    # A class of chance 0 adds nothing; 0 times minus infinity would be NaN.
    entropy = -(chances * logs.clamp_min(-1e30)).sum(dim=-1)
    return confidence, prediction, confidence_of(logits, by_margin=True)[0], entropy
