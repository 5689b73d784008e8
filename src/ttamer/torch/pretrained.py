"""A network with exits in one folder: its weights, the names of its exits, and its policy.

``model.safetensors`` has the weights, with the names of exits and classes as metadata, and
``policy.ttamer`` the policy, if there is one. Nothing in the folder is run when it is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from ttamer._checks import require
from ttamer._files import atomic_write
from ttamer.artefact import load, save
from ttamer.errors import ArgumentError
from ttamer.fitting.ladder import FittedLadder, FittedPolicy
from ttamer.torch.early_exit import EarlyExit, require_exits

WEIGHTS, POLICY = "model.safetensors", "policy.ttamer"


def save_pretrained(
    network: EarlyExit,
    folder: str | os.PathLike[str],
    *,
    policy: FittedPolicy | FittedLadder | None = None,
    classes: Sequence[str] | None = None,
) -> None:
    """Write the weights of a network as safetensors, and a policy for its exits, to a folder.

    Args:
        network: The network, on any device.
        folder: Created if it does not exist; files in it are replaced.
        policy: A fitted policy or ladder for the exits of the network.
        classes: The names of the classes, as in the policy's trace, where they are not numbers.

    Raises:
        ArgumentError: The policy is for other exits, or no fitted policy or ladder, or a weight is
            not a tensor.

    >>> import tempfile
    >>> from torch import nn
    >>> network = EarlyExit([nn.Linear(4, 8)], [], nn.Linear(8, 3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_pretrained(network, folder, classes=["a", "b", "c"])
    ...     load_pretrained(folder, network)
    (None, ('a', 'b', 'c'))
    """
    require_exits(network)
    if policy is not None:
        _checked(policy, network)
    packed = [name for name, part in network.state_dict().items() if not isinstance(part, Tensor)]
    if packed:
        raise ArgumentError(
            f"{packed[0]} is not a tensor, as in networks with int8 weights: save the network "
            "before it is quantized",
            param="network",
        )
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    (path / POLICY).unlink(missing_ok=True)  # first: it must not stay beside other weights
    names = {"exits": network.names, "classes": classes}
    facts = {key: json.dumps(value and list(value)) for key, value in names.items()}
    with atomic_write(path / WEIGHTS) as part:
        require("safetensors.torch", "torch").save_model(network, str(part), facts)
    if policy is not None:
        save(policy, path / POLICY)


def load_pretrained(
    folder: str | os.PathLike[str], network: EarlyExit
) -> tuple[FittedPolicy | FittedLadder | None, tuple[str, ...] | None]:
    """Read a folder: its weights into a network, its policy and the names of the classes.

    Args:
        folder: A folder that :func:`save_pretrained` wrote.
        network: A network built in the same way as the one saved, on any device; its weights are
            replaced, and it is in evaluation mode afterwards.

    Returns:
        The policy or ladder, and the names of the classes; ``None`` for what was not saved.

    Raises:
        ArgumentError: A file is missing or damaged, or does not fit the network.
        ArtefactError: The policy cannot be read.

    >>> from torch import nn
    >>> load_pretrained("no-such-folder", EarlyExit([nn.Linear(4, 8)], [], nn.Linear(8, 3)))
    Traceback (most recent call last):
    ttamer.errors.ArgumentError: no-such-folder/model.safetensors: cannot be loaded: No such file or
    directory: no-such-folder/model.safetensors; give a folder that save_pretrained wrote, and build
    the network as it was saved
    """
    require_exits(network)
    path, safe = Path(folder), require("safetensors.torch", "torch")
    try:
        with safe.safe_open(path / WEIGHTS, "pt") as stored:
            facts = stored.metadata() or {}
        names, classes = (json.loads(facts[key]) for key in ("exits", "classes"))
        if names != list(network.names):
            raise ValueError(f"the exits are {names}, not {list(network.names)}")  # noqa: TRY301
        safe.load_model(network, str(path / WEIGHTS))
    except Exception as error:  # whatever a damaged file, or one of another network, leads to
        raise ArgumentError(
            f"{path / WEIGHTS}: cannot be loaded: {error}; give a folder that save_pretrained "
            "wrote, and build the network as it was saved",
            param="folder",
        ) from error
    network.eval()
    # A folder that someone else filled may have a policy of other exits beside these weights.
    policy = _checked(load(path / POLICY), network) if (path / POLICY).exists() else None
    return policy, None if classes is None else tuple(classes)


def _checked(policy: object, network: EarlyExit) -> FittedPolicy | FittedLadder:
    """Return a policy or ladder for exits of a network; refuse others."""
    if not isinstance(policy, FittedPolicy | FittedLadder):
        raise ArgumentError(
            f"policy is a {type(policy).__name__}; it must be a fitted policy or ladder",
            param="policy",
        )
    names = policy.fitted.spec.names
    if not set(names) <= set(network.names):
        raise ArgumentError(
            f"the policy is for {', '.join(names)}, and the exits of the network are "
            f"{', '.join(network.names)}: fit it on a trace of this network",
            param="policy",
        )
    return policy
