"""Costs of the parts of a network, counted or measured, and the cascade they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ttamer.trace.spec import CascadeNode, CascadeSpec

if TYPE_CHECKING:
    from ttamer.trace.spec import Target

__all__ = ["Costs"]


@dataclass(frozen=True)
class Costs:
    """What running each part of a network costs one input."""

    names: tuple[str, ...]
    """Of the exits."""
    segments: tuple[float, ...]
    """Of leading from the exit before to this one."""
    ramps: tuple[float, ...]
    """Of asking this exit once there: its ramp, and in measured costs the decision too."""
    unit: str
    """Of these numbers: ``"flops"``, ``"seconds"``."""

    @property
    def full(self) -> float:
        """What the network as it was costs: all segments, and the head."""
        return sum(self.segments) + self.ramps[-1]

    def spec(self, *, target: Target = "label", skip: bool = False) -> CascadeSpec:
        """Return the cascade, costs as shares of the network as it was.

        Every exit is asked on the way (``order = "fixed"``), or with ``skip`` a policy may pass
        ramps that are not worth their cost.
        """
        nodes = tuple(
            CascadeNode(name, (segment + ramp) / self.full)
            for name, segment, ramp in zip(self.names, self.segments, self.ramps, strict=True)
        )
        if not skip or len(nodes) == 1:  # with one exit there is none to pass
            return CascadeSpec(nodes, "fixed", target)
        passing = {
            name: segment / self.full
            for name, segment in zip(self.names[:-1], self.segments, strict=False)
        }
        costs = {node.name: node.cost for node in nodes}
        return CascadeSpec.of(costs, order="skip", target=target, passing=passing)
