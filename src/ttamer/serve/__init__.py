"""A policy server: OpenAI's chat completions in front of a cascade."""

from ttamer.serve.app import create as create, make_app as make_app
from ttamer.serve.settings import Settings as Settings, read_settings as read_settings
