"""A policy fitted to quiet rows, for all tests of the loop."""

from __future__ import annotations

import pytest

import ttamer as tt
from support.shifting import rows_of
from ttamer.drift.loop import LoopSettings, serving_of


@pytest.fixture(scope="session")
def before():
    return rows_of(3000, seed=1)


@pytest.fixture(scope="session")
def settings():
    return LoopSettings(0.08, refit_rows=300, shadow_rows=30)


@pytest.fixture(scope="session")
def serving(before, settings):
    fitted, held = before.split(0.6, 0)
    return serving_of(tt.fit(fitted), held, settings)
