"""The doors of the gateway: their paths, as metrics and logs name them."""

from __future__ import annotations

from ttamer.serve.chat import KINDS

__all__ = ["ASKING", "OTHER", "POLLED", "ROUTES"]

ASKING = tuple(f"/v1{kind.path}" for kind in KINDS)
"""What asks nodes."""
POLLED = ("/healthz", "/readyz", "/metrics", "/status", "/status.json", "/openapi.json")
"""What machines look at again and again: counted, and logged only where it is refused."""
ROUTES = (*ASKING, *POLLED, "/v1/models", "/admin/reload", "/admin/rollback")
OTHER = "other"
"""Where there is nothing: what a path says is the caller's own text, and is not repeated."""
