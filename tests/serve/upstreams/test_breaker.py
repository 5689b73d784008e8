"""When a circuit breaker stops calls, and when it allows one."""

from __future__ import annotations

import pytest

from support.waiting import Clock
from ttamer.serve.upstreams.breaker import CircuitBreaker


def test_a_breaker_opens_probes_and_closes():
    clock = Clock()
    breaker = CircuitBreaker(3, clock=clock)
    breaker.failed("cut")
    breaker.failed("error")
    breaker.failed("error")
    assert breaker.allow(), "calls that fail at the same time are no outage"
    clock.now = 1.0
    breaker.failed("connect")
    assert breaker.is_open
    assert not breaker.allow()
    clock.now = 4.0
    assert breaker.seconds_left == 2.0
    clock.now = 6.0
    probe = breaker.allow()
    assert probe, "one call tests the server"
    assert not breaker.allow(), "and no other"
    breaker.failed("connect", probe)
    clock.now = 15.9
    assert not breaker.allow(), "the pause is twice as long"
    clock.now = 16.0
    probe = breaker.allow()
    assert probe
    breaker.abandoned(probe)
    assert breaker.allow(), "a cancelled probe leaves room for another"
    breaker.succeeded()
    assert not breaker.is_open
    assert breaker.allow()
    assert breaker.allow()


@pytest.mark.parametrize("end", ["abandoned", "failed"])
def test_a_call_that_began_before_the_breaker_opened_ends_no_probe(end):
    clock = Clock()
    breaker = CircuitBreaker(1, clock=clock)
    old, late = breaker.allow(), breaker.allow()
    breaker.failed("timeout", late)
    clock.now = 5.0
    first = breaker.allow()
    assert first
    if end == "failed":
        breaker.failed("timeout", old)
    else:
        breaker.abandoned(old)
    clock.now = 100.0
    assert not breaker.allow(), "the first probe has not ended"
    breaker.failed("timeout", first)
    clock.now = 109.9
    assert not breaker.allow(), "the failure of the probe, and only that, doubled the pause"
    clock.now = 110.0
    assert breaker.allow()


def test_a_probe_of_an_earlier_outage_is_no_probe_of_the_next():
    clock = Clock()
    breaker = CircuitBreaker(1, clock=clock)
    breaker.failed("timeout", breaker.allow())
    clock.now = 5.0
    first = breaker.allow()
    breaker.succeeded()  # of a call that began before
    breaker.failed("timeout", breaker.allow())
    clock.now = 10.0
    second = breaker.allow()
    breaker.abandoned(first)
    assert not breaker.allow(), "the second probe has not ended"
    breaker.abandoned(second)
    assert breaker.allow()


def test_failures_of_a_request_do_not_open_a_breaker():
    breaker = CircuitBreaker(2)
    for kind in ("refused", "garbage", "too_large", "connect", "refused", "connect"):
        breaker.failed(kind)
    assert not breaker.is_open
