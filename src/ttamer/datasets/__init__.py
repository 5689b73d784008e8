"""Real traces that come with the package."""

from ttamer.datasets import streams as streams
from ttamer.datasets.facts import about as about, names as names
from ttamer.datasets.loading import (
    Part as Part,
    Sample as Sample,
    describe as describe,
    export as export,
    load as load,
    messages as messages,
    strings as strings,
)
