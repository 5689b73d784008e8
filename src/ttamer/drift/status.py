"""Where the loop stands, in plain values: for the status page, and for whoever asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ttamer.drift.safest import AskLast

if TYPE_CHECKING:
    from ttamer.drift.loop import Loop

__all__ = ["status_of"]

MOST_EVENTS = 20


def status_of(loop: Loop) -> dict[str, Any]:
    """Return what a page shows of a loop: its state, how near an alarm is, and what it did last.

    ``tests`` says of each test the e-value, the threshold, and ``progress`` from 0 to 1, which can
    be drawn as a bar; ``waiting`` how many audited rows it has of those it waits for.
    """
    settings = loop.settings
    waiting = None
    if loop.state == "suspected":
        waiting = {"rows": loop.rows_since_change, "of": loop.rows_needed, "for": "re-fit"}
    elif loop.state == "shadowing":
        waiting = {"rows": loop.rows_in_shadow, "of": settings.shadow_rows, "for": "swap"}
    return {
        "state": loop.state,
        "held": loop.held,
        "serving": str(loop.serving),
        "promised": {
            "kind": settings.kind,
            "at_most": settings.at_most,
            "confidence": settings.confidence,
            "certified": _certified(loop),
        },
        "false_alarms": settings.false_alarms,
        "row": loop.number,
        "audited": loop.audited,
        "tests": [
            {
                "test": each.test,
                "e_value": each.e_value,
                "threshold": each.threshold,
                "progress": each.progress,
            }
            for each in loop.watch.evidence()
        ],
        "waiting": waiting,
        "can_roll_back": loop.former is not None,
        "events": [event.to_dict() for event in list(loop.events)[: -MOST_EVENTS - 1 : -1]],
    }


def _certified(loop: Loop) -> bool | None:
    """Say whether what serves is known to keep the promise; None where nothing is known."""
    policy, promise = loop.policy, loop.serving.promise
    if isinstance(policy, AskLast) and policy.spec.target == "last":
        return True  # its own answer is what is right
    return None if promise is None else promise.certified
