"""The routes of the gateway, as metrics and logs name them."""

from __future__ import annotations

from ttamer.serve.drift import ACTIONS
from ttamer.serve.openai import ENDPOINTS

__all__ = ["ASKING", "DRIFT", "OTHER", "POLLED", "ROUTES"]

ASKING = tuple(f"/v1{endpoint.path}" for endpoint in ENDPOINTS)
"""The routes that ask nodes."""
POLLED = ("/healthz", "/readyz", "/metrics", "/status", "/status.json", "/openapi.json")
"""The routes that are polled: counted always, and logged only where they are refused."""
DRIFT = {f"/admin/drift/{action}": action for action in ACTIONS}
"""The routes by which an operator controls the drift loop."""
ROUTES = (*ASKING, *POLLED, "/v1/models", "/v1/labels", "/admin/reload", "/admin/rollback", *DRIFT)
"""All routes."""
OTHER = "other"
"""Stands for every other path, which is the client's own text and is not repeated."""
