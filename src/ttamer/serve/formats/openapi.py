"""The OpenAPI description served at ``/openapi.json``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ttamer import __version__
from ttamer.serve.formats.openai import CASCADE, ENDPOINTS
from ttamer.serve.formats.schemas import EMBEDDING, LABEL

if TYPE_CHECKING:
    from ttamer.serve.config import Settings
    from ttamer.serve.formats.openai import Endpoint

__all__ = ["description"]

_TEXT = {"type": "string"}
_WHOLE = {"type": "integer"}
_HEADERS = {
    "x-request-id": "The request's id: the client's own where it sent a valid one.",
    "x-ttamer-answered-by": "The node whose answer this is, percent-encoded.",
    "x-ttamer-path": "The nodes asked, in order, percent-encoded, separated by commas.",
    "x-ttamer-cost": "The cost of all calls, in the cascade's units.",
    "x-ttamer-policy": "The policy's SHA-256, 16 digits; +N after the drift loop's N-th change.",
    "x-ttamer-promise": "For an operating point in error: certified, or not-certified.",
}
_SUMMARIES = {
    "/chat/completions": "Answer a chat by the cascade.",
    "/completions": "Continue a text by the cascade.",
    "/classify": "Label a text by the cascade.",
    "/responses": "Answer without state by the cascade.",
    "/messages": "Answer in Anthropic's format by the cascade.",
}
_ERRORS = {
    "400": "The request does not match the schema, or every model refused it.",
    "401": "The API key is missing or wrong.",
    "404": "There is no such model.",
    "408": "The body was not received in time.",
    "413": "The body is too large.",
    "415": "The body is not declared as application/json.",
    "429": "Too many concurrent requests; retry after Retry-After.",
    "502": "No model returned a usable answer.",
    "504": "No model answered in time.",
}


def description(settings: Settings) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of a gateway with these settings."""
    serve = settings.serve
    has_keys = serve.keys_env is not None or serve.keys_file is not None
    security: list[Any] = [{"key": []}] if has_keys else []
    paths: dict[str, Any] = {
        each.route: {"post": _post(each.path, _schema(each, settings), security)}
        for each in ENDPOINTS
    }
    if serve.audit is not None:
        paths["/v1/labels"] = {"post": _labels(security)}
    paths["/v1/models"] = {"get": _get("List the available models.", "ModelList", security)}
    model = _get("Describe one model.", "Model", security)
    model["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": _TEXT}]
    model["responses"]["404"] = _response(_ERRORS["404"], "Error")
    paths["/v1/models/{model}"] = {"get": model}
    if serve.embeddings is not None:
        paths["/v1/embeddings"] = {"post": _embeddings(security)}
    paths["/healthz"] = {"get": _get("Return whether the process runs.", "Health", [])}
    ready = _get("Return whether requests are accepted.", "Health", [])
    ready["responses"]["503"] = _response("Starting, or shutting down.", "Health")
    paths["/readyz"] = {"get": ready}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": settings.spec.name or "ttamer gateway",
            "version": __version__,
            "description": "An OpenAI-compatible gateway in front of a cascade of models.",
        },
        "paths": paths,
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schema(endpoint: Endpoint, settings: Settings) -> dict[str, Any]:
    """Return the request schema of this gateway, with its models and allowed choices."""
    serve, fields = settings.serve, dict(endpoint.schema["properties"])
    names = [settings.spec.name or CASCADE, CASCADE]
    names += settings.models if serve.direct else ()
    fields["model"] = {"type": "string", "enum": list(dict.fromkeys(names))}
    choices = {}
    for name in serve.allow:
        low, high = getattr(serve, f"{name}_range")
        top = {} if high == math.inf else {"maximum": high}
        choices[name] = {"type": "number", "minimum": low, **top}
    limit = {"maxProperties": min(1, len(choices))}
    fields["ttamer"] = {**fields["ttamer"], "properties": choices, **limit}
    return {**endpoint.schema, "properties": fields}


def _post(path: str, schema: dict[str, Any], security: list[Any]) -> dict[str, Any]:
    answer = _response("The answer.", _ANSWERS[path])
    answer["headers"] = {
        name: {"description": text, "schema": _TEXT} for name, text in _HEADERS.items()
    }
    if path != "/classify":
        answer["content"]["text/event-stream"] = {"schema": _object({"data": _TEXT})}
    error = "MessageError" if path == "/messages" else "Error"
    errors = {code: _response(text, error) for code, text in _ERRORS.items()}
    errors["429"]["headers"] = {"retry-after": {"schema": _WHOLE}}
    return _operation(path, _SUMMARIES[path], schema, security, {"200": answer, **errors})


def _labels(security: list[Any]) -> dict[str, Any]:
    summary = "Send the right answer to a request; it is used where the request was audited."
    answer = _response("Whether an audit uses the label.", "Labelled")
    responses = {"200": answer, **_errors("400", "401", "408", "413", "415")}
    return _operation("/labels", summary, LABEL, security, responses)


def _embeddings(security: list[Any]) -> dict[str, Any]:
    summary, answer = "Embed texts, by the embeddings upstream.", "The vectors."
    errors = _errors("400", "401", "408", "413", "415", "429", "502")
    responses = {"200": _response(answer, "Embeddings"), **errors}
    return _operation("/embeddings", summary, EMBEDDING, security, responses)


def _errors(*codes: str) -> dict[str, Any]:
    return {code: _response(_ERRORS[code], "Error") for code in codes}


def _operation(
    path: str,
    summary: str,
    schema: dict[str, Any],
    security: list[Any],
    responses: dict[str, Any],
) -> dict[str, Any]:
    return {
        "summary": summary,
        "operationId": path.strip("/").replace("/", "_"),
        "security": security,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": responses,
    }


def _get(summary: str, schema: str, security: list[Any]) -> dict[str, Any]:
    responses = {"200": _response("OK", schema)}
    if security:
        responses["401"] = _response(_ERRORS["401"], "Error")
    return {"summary": summary, "security": security, "responses": responses}


def _response(text: str, schema: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"description": text, "content": content}


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    properties = {**required, **optional}
    return {"type": "object", "required": list(required), "properties": properties}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_ANSWERS = {
    "/chat/completions": "ChatCompletion",
    "/completions": "Completion",
    "/classify": "Classification",
    "/responses": "Response",
    "/messages": "Message",
}
_HEAD = {"id": _TEXT, "object": _TEXT, "created": _WHOLE, "model": _TEXT}
_MODEL = _object({"id": _TEXT, "object": _TEXT, "owned_by": _TEXT})
_MESSAGE = _object({"role": _TEXT}, content={"type": ["string", "null"]})
_CHOICE = {"index": _WHOLE, "finish_reason": {"type": ["string", "null"]}}
_SCHEMAS = {
    "ChatCompletion": _object(
        {**_HEAD, "choices": _list(_object({**_CHOICE, "message": _MESSAGE}))},
        usage={"type": "object"},
    ),
    "Completion": _object(
        {**_HEAD, "choices": _list(_object({**_CHOICE, "text": _TEXT}))}, usage={"type": "object"}
    ),
    "Classification": _object(
        {
            **_HEAD,
            "label": _TEXT,
            "confidence": {"type": "number"},
            "cost": {"type": "number"},
            "path": _list(_TEXT),
            "why": _TEXT,
        }
    ),
    "Model": _MODEL,
    "ModelList": _object({"object": _TEXT, "data": _list(_MODEL)}),
    "Response": _object(
        {
            "id": _TEXT,
            "object": _TEXT,
            "created_at": _WHOLE,
            "status": _TEXT,
            "model": _TEXT,
            "output": _list({"type": "object"}),
        },
        usage={"type": ["object", "null"]},
    ),
    "Message": _object(
        {
            "id": _TEXT,
            "type": _TEXT,
            "role": _TEXT,
            "model": _TEXT,
            "content": _list({"type": "object"}),
            "stop_reason": {"type": ["string", "null"]},
            "usage": {"type": "object"},
        }
    ),
    "MessageError": _object({"type": _TEXT, "error": _object({"type": _TEXT, "message": _TEXT})}),
    "Embeddings": _object({"object": _TEXT, "data": _list({"type": "object"}), "model": _TEXT}),
    "Labelled": _object({"request": _TEXT, "audited": {"type": "boolean"}}),
    "Health": _object({"status": _TEXT}),
    "Error": _object(
        {
            "error": _object(
                {
                    "message": _TEXT,
                    "type": _TEXT,
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                }
            )
        }
    ),
}
