"""The command line: export, import and copy."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import numpy
import pytest

from diskcache_like import Cache, Deque, FanoutCache, SecretError
from diskcache_like.cli import main

from ..support.cache_kinds import NEEDS_CIPHER, SECRET
from ..support.command_line import LIMIT, Shell


@pytest.fixture
def cache(stocked: Cache) -> Cache:
    return stocked


def test_what_is_exported_is_imported_again(shell: Shell, cache: Cache, tmp_path: Path) -> None:
    file, other = tmp_path / "exported", tmp_path / "other"
    shell.run("export", "--output", file)
    assert main.main(["import", str(other), "--input", str(file)]) == 0
    with Cache(other) as imported:
        assert list(imported) == list(cache)
        for key in imported:
            assert imported[key] == cache[key]
            assert imported.get(key, tag=True) == cache.get(key, tag=True)
            ours, theirs = (one.get(key, expire_time=True)[1] for one in (imported, cache))
            assert ours == (None if theirs is None else pytest.approx(theirs, abs=LIMIT))


def test_each_entry_is_a_line_that_says_what_json_can(shell: Shell, cache: Cache) -> None:
    cache.clear()
    cache.set("plain", {"n": [1, None]}, tag="t")
    cache["tuple"] = 1, 2
    cache[b"bytes"] = 1
    plain, *others = map(json.loads, shell.run("export").splitlines())
    assert plain == {"key": "plain", "value": {"n": [1, None]}, "expire_time": None, "tags": ["t"]}
    assert [list(other) for other in others] == [["packed"], ["packed"]]


def test_it_holds_whatever_a_cache_holds(
    shell: Shell, cache: Cache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    array = numpy.arange(30_000)
    cache["array"] = array
    cache["object"] = slice(1, 2)
    cache[Decimal("1.50")] = {1: (2, {3})}
    cache["bytes"] = b"\xff" * 100_000
    cache.push("first", prefix="jobs")
    file, other = tmp_path / "file", tmp_path / "other"
    shell.run("export", "--output", file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert main.main(["import", str(other), "--input", str(file)]) == 0
    with Cache(other) as imported:
        assert list(imported) == list(cache)
        assert list(map(type, imported)) == list(map(type, cache))
        assert imported["array"].tolist() == array.tolist()
        assert imported["object"] == slice(1, 2)
        assert imported[Decimal("1.5")] == {1: (2, {3})}
        assert imported["bytes"] == cache["bytes"]
        assert imported.pull(prefix="jobs")[1] == "first"


def test_a_pickle_that_another_secret_signed_is_not_imported(
    shell: Shell, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.clear()
    cache["object"] = slice(1, 2)
    shell.run("export", "--output", tmp_path / "file")
    monkeypatch.setenv("DISKCACHE_LIKE_SECRET", SECRET)
    shell.directory = tmp_path / "other"
    shell.run("import", "--input", tmp_path / "file", code=2)
    assert "secret" in shell.err


def test_export_counts_what_it_cannot_read(shell: Shell, cache: Cache, tmp_path: Path) -> None:
    cache["large"] = "x" * 100_000
    (value_file,) = Path(cache.directory).rglob("*.val")
    value_file.unlink()
    shell.run("export", "--output", tmp_path / "file", code=1)
    assert "4 entries written, 1 left out" in shell.err


def test_expired_entries_are_not_imported(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text('{"key": "a", "value": 1, "expire_time": 5.0, "tags": []}\n')
    assert shell.json("import", "--input", file) == [{"stored": 0, "expired": 1, "left_out": 0}]


@pytest.mark.parametrize(
    "data",
    [
        b"not json\n",
        b"[1, 2]\n",
        b'{"key": 1}\n',
        b'{"key": "a", "value": 1, "expire_time": "soon", "tags": []}\n',
        b'{"packed": 1}\n',
        b'{"packed": "not base64"}\n',
        b'{"packed": "wQ=="}\n',
        b'{"packed": "AQ=="}\n',
        b'{"packed": "AQ==", "key": 1}\n',
    ],
)
def test_a_malformed_file_is_refused_with_the_number_of_the_entry(data: bytes, shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(data)
    shell.run("import", "--input", file, code=2)
    assert ("entry 1 of the file" in shell.err) != ("is not what `export` writes" in shell.err)


def test_a_file_that_is_none_makes_no_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("not json\n")
    assert main.main(["import", str(tmp_path / "new"), "--input", str(file)]) == 2
    told = capsys.readouterr().err
    assert f"{str(file)!r} is not what `export` writes" in told
    assert "those before" not in told
    assert not (tmp_path / "new").exists()


def test_a_cache_is_not_copied_into_itself(shell: Shell, cache: Cache) -> None:
    for target in (shell.directory, shell.directory / "inner"):
        shell.run("copy", target, code=2)
        assert "inside" in shell.err
    assert not (shell.directory / "inner").exists()


def test_copy_takes_limits_and_codec_along_or_others(shell: Shell, cache: Cache, tmp_path: Path) -> None:
    cache.reset("size_limit", 1 << 25)
    target = tmp_path / "target"
    assert shell.json("copy", target) == [{"copied": 4, "left_out": 0, "children": []}]
    with Cache(target) as copied:
        assert copied.reset("size_limit") == 1 << 25
        assert list(copied) == list(cache)
    wide = tmp_path / "wide"
    shell.run("copy", wide, "--shards", 2, "--compressor", "zlib", "--set", "size_limit=30000000")
    with FanoutCache(wide) as copied:
        assert len(copied._shards.stores) == 2
        assert copied.reset("size_limit") == 30_000_000
        assert {key: copied[key] for key in copied} == {key: cache[key] for key in cache}


@NEEDS_CIPHER
def test_a_copy_of_an_encrypted_cache_is_encrypted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache(tmp_path / "source", secret=SECRET, encrypt=True) as source:
        source["key"] = "nobody shall read this"
    monkeypatch.setenv("DISKCACHE_LIKE_SECRET", SECRET)
    assert main.main(["copy", str(tmp_path / "source"), str(tmp_path / "target")]) == 0
    with Cache(tmp_path / "target", encrypt=True) as target:
        assert target["key"] == "nobody shall read this"
    assert not any(b"nobody" in path.read_bytes() for path in (tmp_path / "target").rglob("*") if path.is_file())
    with pytest.raises(SecretError):
        Cache(tmp_path / "target", secret="another secret than that")
    monkeypatch.delenv("DISKCACHE_LIKE_SECRET")
    Cache(tmp_path / "clear").close()
    monkeypatch.setenv("DISKCACHE_LIKE_SECRET", SECRET)
    assert main.main(["copy", str(tmp_path / "source"), str(tmp_path / "clear")]) == 2


def test_a_copy_has_the_shards_and_the_length_limit_of_its_original(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FanoutCache(tmp_path / "wide", shards=3) as wide:
        wide["key"] = 1
    assert main.main(["copy", str(tmp_path / "wide"), str(tmp_path / "other")]) == 0
    with FanoutCache(tmp_path / "other") as copied:
        assert len(copied._shards.stores) == 3
    Deque("abc", str(tmp_path / "deque"), maxlen=3).cache.close()
    assert main.main(["copy", str(tmp_path / "deque"), str(tmp_path / "ends")]) == 0
    ends = Deque(directory=str(tmp_path / "ends"))
    assert (list(ends), ends.maxlen) == (["a", "b", "c"], 3)


def test_copy_tells_of_children_that_it_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FanoutCache(tmp_path / "source", shards=2) as source:
        source["key"] = 1
        source.cache("child")["key"] = 2
    assert main.main(["copy", str(tmp_path / "source"), str(tmp_path / "target")]) == 1
    assert "not copied: cache/child" in capsys.readouterr().err


def test_copy_refuses_a_setting_that_is_none(shell: Shell, tmp_path: Path) -> None:
    shell.run("copy", tmp_path / "target", "--set", "size_limt=1", code=2)
    assert "size_limt" in shell.err
    assert "size_limit" in shell.err
    assert not (tmp_path / "target").exists()


def test_an_empty_file_has_no_entries(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert shell.json("import", "--input", file) == [{"stored": 0, "expired": 0, "left_out": 0}]
