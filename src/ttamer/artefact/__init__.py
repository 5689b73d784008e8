"""The policy artefact, a ``.ttamer`` file: save, load, inspect (docs/format.md)."""

from ttamer.artefact.file import (
    Artefact as Artefact,
    inspect as inspect,
    load as load,
    open_artefact as open_artefact,
    save as save,
)
