"""Keys: which requests are admitted, and that no key is kept or shown."""

from __future__ import annotations

import gc
import hmac
import pickle

import pytest
from hypothesis import given, strategies as st

from ttamer.serve.admission import Client, Keys, KeysError

ONE, TWO = "correct-horse-battery", "staple/0123456789+="


def test_each_key_is_admitted():
    keys = Keys([ONE, TWO])
    assert keys.client(f"Bearer {ONE}")
    assert keys.client(f"bearer {TWO}")
    assert len(keys) == 2


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", ONE, f"Basic {ONE}", f"Bearer  {ONE}", f"Bearer {ONE} ",
     f" Bearer {ONE}", f"Bearer {ONE}\n", f"Bearer\t{ONE}", f"Bearer {ONE},{TWO}",
     f"Bearer {ONE}x", f"Bearer {ONE[:-1]}", f"Bearer {ONE.upper()}", f"Bearer {ONE}\x00",
     "Bearer é", f"Bearer {'a' * 513}", f"Bearer {ONE} {TWO}"],
)  # fmt: skip
def test_nothing_else_is(header):
    assert Keys([ONE, TWO]).client(header) is None


@given(st.text())
def test_no_guess_is(text):
    keys = Keys([ONE])
    assert (keys.client(f"Bearer {text}") is not None) == (text == ONE)
    assert keys.client(text) is None


def test_all_keys_are_compared_each_time_in_constant_time(monkeypatch):
    compared = []
    real = hmac.compare_digest

    def counting(one, two):
        compared.append((one, two))
        return real(one, two)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    keys = Keys([ONE, TWO])
    for header in (f"Bearer {ONE}", f"Bearer {TWO}", "Bearer no", "garbage", None):
        compared.clear()
        keys.client(header)
        assert len(compared) == 2
        assert all(len(one) == len(two) == 32 for one, two in compared)


def test_the_keys_themselves_are_not_kept():
    secret = "".join(["only", "-once-", "made-", "0123456789"])
    keys = Keys([secret])
    assert secret.encode() not in pickle.dumps(keys._clients)
    assert secret not in repr(keys)
    assert all(secret not in str(held) for held in gc.get_referents(keys))


def test_from_the_environment():
    keys = Keys.from_env("K", {"K": f" {ONE} ,{TWO},"})
    assert len(keys) == 2
    assert keys.client(f"Bearer {TWO}")
    with pytest.raises(KeysError, match="variable K is not set"):
        Keys.from_env("K", {})
    with pytest.raises(KeysError, match="K: there are no keys"):
        Keys.from_env("K", {"K": " , "})


def test_from_the_process_s_own_environment(monkeypatch):
    monkeypatch.setenv("TTAMER_TEST_KEYS", ONE)
    assert Keys.from_env("TTAMER_TEST_KEYS").client(f"Bearer {ONE}")


def test_from_a_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"# ours\n{ONE}\n\n  {TWO}\n{ONE}\n", "utf-8")
    assert len(Keys.from_file(path)) == 2
    with pytest.raises(KeysError, match=r"nobody: cannot be read: No such file"):
        Keys.from_file(tmp_path / "nobody")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(KeysError, match="is not text"):
        Keys.from_file(path)


@pytest.mark.parametrize("bad", ["short", "with space in it ok", "é" * 20, "a" * 513, "a,b" * 9])
def test_a_bad_key_is_refused_and_not_reported(bad):
    with pytest.raises(KeysError, match="key 2 must be") as caught:
        Keys([ONE, bad])
    assert bad not in str(caught.value)


def test_keys_have_clients_and_roles():
    keys = Keys([ONE], client=Client("web", ("ask",))) | Keys([TWO])
    assert keys.client(f"Bearer {ONE}") == Client("web", ("ask",))
    assert keys.client(f"Bearer {TWO}") == Client("key 1")
    with pytest.raises(KeysError, match="two clients have the same"):
        keys | Keys([ONE])
