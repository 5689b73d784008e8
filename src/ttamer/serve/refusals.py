"""Requests that are not answered, as errors in OpenAI's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from ttamer.llm.client import KNOWN_CODES, UpstreamFailed
from ttamer.runtime.reply import CascadeFailed


class Refused(Exception):
    """A request that is not answered.

    >>> Refused(503, "overloaded", "busy", retry_after=1).response().headers["retry-after"]
    '1'
    """

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None,
        retry_after: float = 0,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.code, self.param, self.retry_after = status, code, param, retry_after

    @property
    def body(self) -> dict[str, Any]:
        """The error object."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "code": self.code, "param": self.param}
        return {"error": error}

    def response(self) -> Response:
        """Return the response."""
        headers = {"retry-after": str(max(1, round(self.retry_after)))} if self.retry_after else {}
        return json_response(self.body, self.status, headers)

    @classmethod
    def of(cls, error: CascadeFailed, failures: Mapping[str, UpstreamFailed]) -> Refused:
        """Return what a client is told where no node answered; never an upstream's own text."""
        causes = list(failures.values())
        if causes and all(cause.kind == "ineligible" for cause in causes):
            details = "; ".join(str(cause) for cause in causes)
            return cls(400, "not_supported", f"no model takes this request: {details}")
        if error.late or any(cause.kind == "timeout" for cause in causes):
            return cls(504, "timeout", "no answer within the time limit")
        wrong = [cause for cause in causes if cause.refuses_request]
        if wrong and all(cause in wrong or cause.kind == "ineligible" for cause in causes):
            code = next((cause.code for cause in wrong if cause.code), "")
            text = KNOWN_CODES.get(code, "every model refused the request as invalid")
            return cls(400, code or "refused", text)
        wait = max((cause.retry_after for cause in causes), default=0.0)
        if causes and all(cause.kind in ("busy", "open", "queue") for cause in causes):
            return cls(503, "overloaded", "every model is busy; try again", retry_after=wait or 1)
        return cls(502, "no_answer", "no model gave an answer", retry_after=wait)


def json_response(
    body: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response with a JSON body."""
    return Response(msgspec.json.encode(body), status, headers, "application/json")
