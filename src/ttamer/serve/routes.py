"""The doors of the gateway: their paths, as metrics and logs name them."""

from __future__ import annotations

from ttamer.serve.adapting import ACTIONS
from ttamer.serve.chat import KINDS

__all__ = ["ASKING", "DRIFT", "OTHER", "POLLED", "ROUTES"]

ASKING = tuple(f"/v1{kind.path}" for kind in KINDS)
"""What asks nodes."""
POLLED = ("/healthz", "/readyz", "/metrics", "/status", "/status.json", "/openapi.json")
"""What machines look at again and again: counted, and logged only where it is refused."""
DRIFT = {f"/admin/drift/{action}": action for action in ACTIONS}
"""What a person can do with the drift loop."""
ROUTES = (*ASKING, *POLLED, "/v1/models", "/v1/labels", "/admin/reload", "/admin/rollback", *DRIFT)
OTHER = "other"
"""Where there is nothing: what a path says is the caller's own text, and is not repeated."""
