"""What the tests of serving share."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from support.fake_models import FakeModel
from support.served import NAMES, SKILLS, Served, write_cascade
from ttamer.serve import make_app, read_settings


@pytest.fixture
def serve(tmp_path):
    """Serve a cascade in this process: ``serve(2, serve={...}, node={"small": {...}})``."""

    runners = contextlib.ExitStack()

    def make(nodes: int = 2, *, policy=True, force=False, **tables) -> Served:
        cascade, file = write_cascade(tmp_path, nodes, **tables)
        models = {name: FakeModel(name, SKILLS[name]) for name in NAMES[nodes]}
        app = make_app(
            read_settings(cascade),
            str(file) if policy else "",
            force=force,
            connect=lambda settings, session: models[settings.name],
        )
        return Served(app, models, tmp_path, runners.enter_context(asyncio.Runner()))

    with runners:
        yield make
