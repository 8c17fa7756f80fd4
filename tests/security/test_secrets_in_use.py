"""Secrets and pickle policies in use: what a cache made with one gives to handles that have another, or none."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, FanoutCache, SecretError, SignatureError, SignatureWarning, ValueEncodeError

ONE, OTHER = "one secret of sixteen", "another of sixteen bytes"


class Thing:
    """No plain data, so it is pickled."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)


@pytest.fixture(autouse=True)
def own_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("DISKCACHE_LIKE_PICKLE", "DISKCACHE_LIKE_SECRET"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=[Cache, FanoutCache])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def made(tmp_path: Path, kind: Any) -> Iterator[Path]:
    with kind(tmp_path / "cache", secret=ONE) as cache:
        cache["data"] = [1, 2]
        cache["thing"] = Thing(3)
    yield tmp_path / "cache"
    with kind(tmp_path / "cache", secret=ONE) as cache:
        assert (cache["data"], cache["thing"]) == ([1, 2], Thing(3)), "whatever was tried, nothing is lost"
        assert cache.check() == []


@pytest.mark.parametrize("secret", [OTHER, OTHER.encode(), None])
def test_a_cache_with_a_secret_opens_with_that_one_only(made: Path, kind: Any, secret: Any) -> None:
    with pytest.raises(SecretError, match=str(made)):
        kind(made, secret=secret) if secret is not None else kind(made)


def test_the_environment_gives_the_secret_where_no_argument_does(
    made: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISKCACHE_LIKE_SECRET", ONE)
    with kind(made) as cache:
        assert cache["thing"] == Thing(3)
    with pytest.raises(SecretError):
        kind(made, secret=OTHER)
    monkeypatch.setenv("DISKCACHE_LIKE_SECRET", OTHER)
    with kind(made, secret=ONE) as cache:
        assert cache["thing"] == Thing(3)


def test_a_cache_without_a_secret_refuses_one(tmp_path: Path, kind: Any) -> None:
    with kind(tmp_path / "cache") as cache:
        cache["data"] = 1
    with pytest.raises(SecretError, match="without one"):
        kind(tmp_path / "cache", secret=ONE)
    with kind(tmp_path / "cache") as cache:
        assert cache["data"] == 1


def test_never_in_the_environment_beats_trusted(tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with kind(tmp_path / "cache", pickle="trusted") as cache:
        cache["thing"], cache["data"] = Thing(1), "data"
        assert cache["thing"] == Thing(1)
    monkeypatch.setenv("DISKCACHE_LIKE_PICKLE", "never")
    monkeypatch.setattr("pickle.loads", lambda *_: pytest.fail("something was unpickled"))
    with kind(tmp_path / "cache", pickle="trusted") as cache:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SignatureWarning)
            assert cache.get("thing") is None
            assert cache.get_many(["thing", "data"]) == {"data": "data"}
        with pytest.raises(ValueEncodeError, match="never"):
            cache["thing"] = Thing(2)
        with pytest.raises(ValueEncodeError, match="never"):
            cache.set_many({"data": "new", "thing": Thing(2)})
        assert cache["data"] == "data"
    monkeypatch.undo()
    with kind(tmp_path / "cache", pickle="trusted") as cache:
        assert cache["thing"] == Thing(1), "a policy removes nothing"


def test_objects_of_another_user_are_missing_and_warned_about_once(
    tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kind(tmp_path / "cache") as cache:
        for number in range(5):
            cache[number] = Thing(number)
        cache["data"] = (1, 2)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another user's"))
    with kind(tmp_path / "cache") as cache, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [cache.get(number) for number in range(5)] == [None] * 5
        assert cache["data"] == (1, 2)
        assert [warning.category for warning in caught] == [SignatureWarning]
    with kind(tmp_path / "cache", strict=True) as cache:
        with pytest.raises(SignatureError):
            cache.get(1)
        assert cache["data"] == (1, 2)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with kind(tmp_path / "cache") as cache:
        assert [cache[number] for number in range(5)] == [Thing(number) for number in range(5)]


def test_plain_data_needs_no_secret_and_makes_none(tmp_path: Path, kind: Any) -> None:
    with kind(tmp_path / "cache") as cache:
        cache.set_many({"text": "x", 1: [2.5], (b"key",): {"nested": {1, 2}}})
        assert cache["text"] == "x"
        assert not (tmp_path / "config").exists()
        cache["thing"] = Thing(1)
        assert (tmp_path / "config").exists()


def test_the_same_object_is_one_key_under_one_secret(made: Path, kind: Any) -> None:
    with kind(made, secret=ONE) as cache:
        cache[Thing(7)] = "seven"
        assert cache[Thing(7)] == "seven"
        assert Thing(7) in list(cache)
        del cache[Thing(7)]
