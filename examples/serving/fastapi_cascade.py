"""The policy inside your own server: plain FastAPI, two functions for models.

The question is whether a number is prime. The small model divides by 2, 3 and 5, and is sure where
one of them divides; the large one tries every divisor. Put yours in their place: any callable from
an input to (prediction, confidence), plain or async.

Run it with: python examples/serving/fastapi_cascade.py
Ask it with: curl 'http://127.0.0.1:8000/prime/7919'
"""

import math

import uvicorn
from fastapi import FastAPI, HTTPException

import ttamer as tt
from ttamer.runtime.cascade import Cascade, CascadeFailed


def small(number: int) -> tuple[str, float]:
    """Three divisions: sure of what they divide, less sure of a larger number they do not."""
    if any(number % divisor == 0 and number != divisor for divisor in (2, 3, 5)):
        return "composite", 1.0
    return "prime", 3.7 / max(math.log(number), 3.7)


def large(number: int) -> tuple[str, float]:
    """Every divisor up to the root."""
    divides = (number % divisor == 0 for divisor in range(2, math.isqrt(number) + 1))
    return ("composite" if any(divides) else "prime"), 1.0


NODES = {"small": small, "large": large}
COSTS = {"small": 3.0, "large": 50.0}


def fitted_policy() -> tt.FittedPolicy:
    """Fit to a log of both models; in production: tt.load("policy.ttamer").at(0.995)."""
    trace = tt.collect(range(2, 3000), NODES, costs=COSTS)  # the large model is the target
    return tt.fit(trace).at(0.995)


def make_app(policy: tt.FittedPolicy) -> FastAPI:
    """Return the application: one route, one cascade for all requests."""
    app = FastAPI(title="Primes, as cheaply as they can be had")
    cascade = Cascade(policy, NODES, deadline=1.0)

    @app.get("/prime/{number}")
    async def prime(number: int) -> dict[str, object]:
        if not 2 <= number <= 10**12:
            raise HTTPException(422, "the number must lie between 2 and 10^12")
        try:
            outcome = await cascade.arun(number)
        except CascadeFailed as failed:
            raise HTTPException(503, str(failed)) from None
        return {
            "answer": outcome.answer,
            "by": outcome.by,
            "path": outcome.path,
            "cost": outcome.cost,
            "why": outcome.why,
        }

    return app


if __name__ == "__main__":
    uvicorn.run(make_app(fitted_policy()), host="127.0.0.1", port=8000)
