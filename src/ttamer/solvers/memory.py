"""How much memory the tables of a walk take, and how much there is."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ttamer.errors import ProblemError
from ttamer.problem.problem import Problem

# The bytes of one entry while a walk is solved: Phi, Phi on arrival, and the choice.
ENTRY_BYTES = 8 + 8 + 4
# The file in which Linux states the limit of a container.
CONTROL_GROUP = Path("/sys/fs/cgroup/memory.max")


def table_bytes(problem: Problem, tradeoffs: int, *, recall: bool) -> int:
    """Return the bytes that the tables of a walk take while it is solved."""
    states = 1 + sum(len(node.losses) for node in problem.nodes)
    columns = len(problem.grid) if recall else 1
    return states * columns * tradeoffs * ENTRY_BYTES


def available_memory() -> float:
    """Return the memory of this machine or container in bytes; ``inf`` where it is not stated."""
    limits = [float("inf")]
    with suppress(AttributeError, OSError, ValueError):  # not a POSIX system
        limits.append(float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    with suppress(OSError, ValueError):  # no such file, or "max"
        limits.append(float(CONTROL_GROUP.read_text("ascii")))
    return min(limits)


def check_memory(problem: Problem, size: int) -> None:
    """Refuse a walk whose tables do not fit into memory, before they are made."""
    limit = available_memory()
    if size > limit:
        raise ProblemError(
            f"the tables of this walk take {size / 1e9:.1f} GB, and this machine has "
            f"{limit / 1e9:.1f} GB: they have one row per state and one column per distinct loss "
            f"({len(problem.grid) - 1} here); round the losses of the nodes to a common grid, use "
            "fewer states, or solve fewer tradeoffs at a time"
        )
