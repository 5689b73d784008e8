"""The routes of the gateway, as metrics and logs name them."""

from __future__ import annotations

from ttamer.serve.drift import ACTIONS
from ttamer.serve.formats.openai import ENDPOINTS
from ttamer.serve.observability.metrics import OTHER

__all__ = ["ASKING", "DRIFT", "EMBEDDINGS", "MODELS", "POLLED", "ROUTES", "route_of"]

ASKING = tuple(endpoint.route for endpoint in ENDPOINTS)
"""The routes that ask nodes."""
POLLED = ("/healthz", "/readyz", "/metrics", "/status", "/status.json", "/openapi.json")
"""The routes that are polled: counted always, and logged only where they are refused."""
MODELS = "/v1/models"
"""The route of the models; below it is one route for each."""
EMBEDDINGS = "/v1/embeddings"
"""The route of embeddings, where they have an upstream."""
DRIFT = {f"/admin/drift/{action}": action for action in ACTIONS}
"""The routes by which an operator controls the drift loop."""
ROUTES = (*ASKING, *POLLED, MODELS, EMBEDDINGS, "/v1/labels", "/admin/reload", "/admin/rollback",
          *DRIFT)  # fmt: skip
"""All routes."""


def route_of(path: str) -> str:
    """Return the route of a path, as metrics and logs name it.

    >>> route_of("/v1/models/small"), route_of("/else")
    ('/v1/models', 'other')
    """
    if path.startswith(f"{MODELS}/"):
        return MODELS
    return path if path in ROUTES else OTHER
