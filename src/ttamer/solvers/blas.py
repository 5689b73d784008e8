"""One BLAS thread while solving.

The matrices are small: with two threads, waiting for each other costs several times the product.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache

from threadpoolctl import ThreadpoolController


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()  # finding the libraries takes longer than a solve


def one_thread() -> AbstractContextManager[object]:
    """Return a context in which BLAS uses one thread."""
    return _controller().limit(limits=1, user_api="blas")  # type: ignore[no-any-return]
