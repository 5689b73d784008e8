"""What a gateway of several processes has accepted, for those that are started again."""

from __future__ import annotations

import hashlib

import pytest

from ttamer.errors import ArtefactError
from ttamer.serve.config import read_settings
from ttamer.serve.policies import load_artefact
from ttamer.serve.processes.accepted import AcceptedFiles


def write(path, content: bytes) -> str:
    """Write bytes as an artefact ends; return its version."""
    checksum = hashlib.sha256(content)
    path.write_bytes(content + checksum.digest())
    return checksum.hexdigest()


def test_before_the_first_the_files_of_the_command_are_read(served, tmp_path):
    accepted = AcceptedFiles(tmp_path)
    assert accepted.is_empty
    assert accepted.settings(str(served.cascade)) == read_settings(served.cascade)
    assert accepted.instead_of(served.artefact) is None


def test_settings_and_artefact_stay_while_their_files_change(make_served, tmp_path):
    served = make_served(2, serve={"timeout": 7.5}, node={"small": {"retries": 2}})
    accepted, before = AcceptedFiles(tmp_path), read_settings(served.cascade)
    _, version = load_artefact(served.artefact, before.spec.names)
    content = served.artefact.read_bytes()
    accepted.copy(served.artefact, version)
    accepted.accept(before.spec, version)
    assert accepted.instead_of(served.artefact) is None
    served.cascade.write_text("spoilt")
    served.artefact.write_bytes(b"spoilt")
    assert accepted.settings(str(served.cascade)) == before
    assert accepted.instead_of(served.artefact).read_bytes() == content
    served.artefact.unlink()
    assert accepted.instead_of(served.artefact).read_bytes() == content


def test_an_artefact_that_changed_since_it_was_loaded_is_refused(served, tmp_path):
    loaded = write(served.artefact, b"one")
    write(served.artefact, b"two")
    with pytest.raises(ArtefactError, match="changed while it was loaded"):
        AcceptedFiles(tmp_path).copy(served.artefact, loaded)


def test_the_last_artefact_is_kept_and_private(served, tmp_path):
    accepted, spec = AcceptedFiles(tmp_path), read_settings(served.cascade).spec
    versions = []
    for content in (b"one", b"two", b"three"):
        versions.append(write(served.artefact, content))
        accepted.copy(served.artefact, versions[-1])
        accepted.accept(spec, versions[-1])
        accepted.accept(spec, versions[-1])  # of another process
    kept = sorted((tmp_path / "artefacts").iterdir())
    assert [each.stem for each in kept] == [versions[-1]]
    files = [*kept, tmp_path / "accepted.json"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
