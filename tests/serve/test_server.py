"""What libraries log goes through the gateway's own log, without what was filled in."""

from __future__ import annotations

import io
import json
import logging
import socket
import warnings

import pytest

from ttamer.serve.logging import JsonLog
from ttamer.serve.server import _log_to, listen


@pytest.fixture
def root():
    """The root logger, put back as it was."""
    logger = logging.getLogger()
    before = logger.handlers[:], logger.level
    yield logger
    logging.captureWarnings(False)
    logger.handlers[:], level = before
    logger.setLevel(level)


def test_every_library_logs_one_way(root):
    stream = io.StringIO()
    _log_to(JsonLog(stream).handler())
    logging.getLogger("some.library").error("no luck with %s", "a secret prompt")
    logging.getLogger("some.library").info("all is well")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("of a secret prompt", stacklevel=1)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["logger"], line["level"]) for line in lines] == [
        ("some.library", "error"),
        ("py.warnings", "warning"),
    ]
    assert lines[0]["message"] == "no luck with %s"
    assert "secret" not in stream.getvalue()
    assert len(root.handlers) == 1


def test_small_writes_are_sent_at_once():
    with (
        listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as taken,
    ):
        assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
