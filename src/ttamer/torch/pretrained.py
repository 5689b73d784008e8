"""A network with exits in one folder: its weights, how to build it, and its policy.

The folder holds ``model.safetensors``, ``exits.json`` (format, names of exits and classes, and how
to build the network, where it belongs to a family) and, with a policy, ``policy.ttamer``. Nothing
in it is run when it is read. ``exits.json`` is written last, so that a folder with it is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ttamer._files import atomic_write
from ttamer.artefact import load, save
from ttamer.errors import ArgumentError, MissingExtra
from ttamer.fitted.ladder import FittedLadder, FittedPolicy
from ttamer.torch.combining import CombinedExits
from ttamer.torch.early_exit import EarlyExit

# The version of the folder's format.
FORMAT = 1
# The file of the weights.
WEIGHTS = "model.safetensors"
# The file with what is needed to build the network.
CONFIG = "exits.json"
# The file of the policy.
POLICY = "policy.ttamer"
# The configurations in transformers of the families that can be built by name.
CONFIGS = {
    "bert": "BertConfig",
    "mpnet": "MPNetConfig",
    "gpt2": "GPT2Config",
    "llama": "LlamaConfig",
}


@dataclass(frozen=True, eq=False)
class Pretrained:
    """What a folder holds.

    Example::

        found = load_pretrained("folder")
        runner = Runner(found.network, found.policy, classes=found.classes)
    """

    network: EarlyExit
    """The network, in evaluation mode."""
    policy: FittedPolicy | FittedLadder | None
    """The policy or ladder saved with it, if any."""
    classes: tuple[str, ...] | None
    """The names of the classes, if they were saved."""


def save_pretrained(
    network: EarlyExit,
    folder: str | os.PathLike[str],
    *,
    policy: FittedPolicy | FittedLadder | None = None,
    classes: Sequence[str] | None = None,
) -> None:
    """Write a network, and a policy for its exits, to a folder.

    Args:
        network: The network, on any device.
        folder: Created if it does not exist; files in it are replaced.
        policy: A fitted policy or ladder for the exits of the network.
        classes: The names of the classes, as in the policy's trace, where they are not numbers.

    Raises:
        ArgumentError: The policy is for other exits, or no fitted policy or ladder, or a weight is
            not a tensor.

    >>> import tempfile
    >>> from ttamer.torch import vgg
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_pretrained(vgg(11, width=8), folder)
    ...     load_pretrained(folder).network.names[-2:]
    ('conv7', 'full')
    """
    if policy is not None:
        _check_policy(policy, network)
    packed = [name for name, part in network.state_dict().items() if not isinstance(part, Tensor)]
    if packed:
        raise ArgumentError(
            f"{packed[0]} is not a tensor, as in networks with int8 weights: save the network "
            "before it is quantized"
        )
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    (path / CONFIG).unlink(missing_ok=True)
    (path / POLICY).unlink(missing_ok=True)
    with atomic_write(path / WEIGHTS) as part:
        _safetensors().save_model(network, str(part))
    if policy is not None:
        save(policy, path / POLICY)
    config = {
        "format": FORMAT,
        "names": list(network.names),
        "classes": None if classes is None else list(classes),
        "network": network.config,
    }
    with atomic_write(path / CONFIG) as part:
        part.write_text(json.dumps(config, indent=1) + "\n", "utf-8")


def load_pretrained(folder: str | os.PathLike[str], network: EarlyExit | None = None) -> Pretrained:
    """Read a network and its policy from a folder.

    Args:
        folder: A folder that :func:`save_pretrained` wrote.
        network: A network of the same architecture, whose weights are replaced; not needed for
            those that ``vgg``, ``bert``, ``exits_on_bert``, ``mpnet``, ``gpt2`` or ``llama`` built.

    Returns:
        The network in evaluation mode, a family's in the precision that it was saved in, the policy
        and the names of the classes.

    Raises:
        ArgumentError: The folder is not complete, was written by a later version, or does not fit
            the network.
        ArtefactError: The policy cannot be read.

    >>> load_pretrained("no-such-folder")
    Traceback (most recent call last):
    ttamer.errors.ArgumentError: no-such-folder: no readable exits.json (FileNotFoundError); give
    a folder that save_pretrained wrote
    """
    path = Path(folder)
    config = _config(path)
    built = network is None
    if network is None:
        network = _build(path, config["network"])
    names = tuple(config["names"])
    if names != network.names:
        raise ArgumentError(
            f"{path}: the exits are {', '.join(names)}, and those of the network are "
            f"{', '.join(network.names)}; build the network as it was saved"
        )
    _load_weights(path / WEIGHTS, network, convert=built)
    policy = None
    if (path / POLICY).exists():
        found = load(path / POLICY)
        if not isinstance(found, FittedPolicy | FittedLadder):
            raise ArgumentError(
                f"{path / POLICY}: a {type(found).__name__}; it must be a fitted policy or ladder"
            )
        policy = found
        _check_policy(policy, network)
    classes = config.get("classes")
    return Pretrained(network.eval(), policy, None if classes is None else tuple(classes))


def load_runnable(
    folder: str | os.PathLike[str], network: EarlyExit | None, tradeoff: float | None
) -> tuple[EarlyExit, FittedPolicy, tuple[str, ...] | None]:
    """Return the network, one policy and the classes of a folder that has a policy."""
    found = load_pretrained(folder, network)
    policy = found.policy
    if policy is None:
        raise ArgumentError(f"{folder}: has no policy; save one with save_pretrained(policy=)")
    if isinstance(policy, FittedLadder):
        if tradeoff is None:
            raise ArgumentError(f"{folder}: has a ladder of policies; choose one by tradeoff=")
        policy = policy.at(tradeoff)
    return found.network, policy, found.classes


def _check_policy(policy: FittedPolicy | FittedLadder, network: EarlyExit) -> None:
    """Raise an error unless a policy is for exits of a network."""
    if not isinstance(policy, FittedPolicy | FittedLadder):
        raise ArgumentError(
            f"policy is a {type(policy).__name__}; it must be a fitted policy or ladder"
        )
    names = policy.fitted.spec.names
    if not set(names) <= set(network.names):
        raise ArgumentError(
            f"the policy is for {', '.join(names)}, and the exits of the network are "
            f"{', '.join(network.names)}: fit it on a trace of this network"
        )


def _config(path: Path) -> dict[str, Any]:
    """Return the contents of ``exits.json``."""
    advice = "give a folder that save_pretrained wrote"
    try:
        config = json.loads((path / CONFIG).read_text("utf-8"))
        version, names = config["format"], config["names"]
        config["network"]
        valid = isinstance(names, list) and all(isinstance(name, str) for name in names)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(
            f"{path}: no readable {CONFIG} ({type(error).__name__}); {advice}"
        ) from None
    if not isinstance(version, int) or not valid:
        raise ArgumentError(f"{path / CONFIG}: not the description of a network; {advice}")
    if version > FORMAT:
        raise ArgumentError(
            f"{path / CONFIG}: format {version} is newer than {FORMAT}; upgrade ttamer"
        )
    found: dict[str, Any] = config
    return found


def _load_weights(path: Path, network: EarlyExit, *, convert: bool) -> None:
    """Replace the weights of a network by those of a file; ``convert``: in their precision too."""
    tensors = _safetensors()
    try:
        stored = tensors.load_file(str(path))
    except Exception as error:
        raise ArgumentError(f"{path}: cannot be read: {error}") from None
    ours = network.state_dict()
    for name, value in stored.items():
        if name not in ours or ours[name].shape != value.shape:
            shape = tuple(ours[name].shape) if name in ours else "none"
            raise ArgumentError(
                f"{path}: {name} has shape {tuple(value.shape)} in the file and {shape} in the "
                "network; build the network as it was saved"
            )
    if convert:
        for name, own in network.state_dict(keep_vars=True).items():
            if name in stored:  # others share their memory with one of these
                own.data = own.data.to(stored[name].dtype)
    missing, _ = tensors.load_model(network, str(path), strict=False)
    if missing:
        raise ArgumentError(
            f"{path}: {sorted(missing)[0]} is missing; build the network as it was saved"
        )


def _safetensors() -> Any:
    """Return the module that reads and writes weights."""
    with contextlib.suppress(ModuleNotFoundError):
        import safetensors.torch

        return safetensors.torch
    raise MissingExtra("safetensors", "torch")


def _build(path: Path, config: Mapping[str, Any] | None) -> EarlyExit:
    """Return a network of a family with random weights."""
    from ttamer import torch as exits
    from ttamer.torch.networks.tokens import transformers

    if config is None:
        raise ArgumentError(
            f"{path}: the network belongs to no family that can be built by name; build it as it "
            "was saved, and give it as network="
        )
    options = dict(config)
    family, combined = options.pop("family", None), options.pop("combined", False)
    built: EarlyExit
    try:
        if family == "vgg":
            built = exits.vgg(**options)
        else:
            if family in ("bert", "mpnet"):
                options.setdefault("ramps", "dense")  # the only ones before they were recorded
            kind = getattr(transformers(), CONFIGS[family])
            built = getattr(exits, family)(kind.from_dict(options.pop("config")), **options)
        if combined:
            built = CombinedExits(built, int(options["classes"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"{path / CONFIG}: cannot build a network of family {family!r}: {error!r}; build it as "
            "it was saved, and give it as network="
        ) from error
    return built
