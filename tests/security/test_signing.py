"""Tags bind every byte to its part and to the secret; the per-user secret is made once, privately, and guarded."""

from __future__ import annotations

import os
import pickle
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskcache_like.crypto.signing as signing_module
from diskcache_like.crypto.signing import Signer, load_secret
from diskcache_like.encoding.pickling import dumps_pickle, loads_pickle, resolve_pickle_policy
from diskcache_like.errors import DecodeError, SecretError, SettingError, ValueEncodeError

SECRET = b"0123456789abcdef"
ROOT = str(Path(signing_module.__file__).parents[1])


# Tags.


@given(st.lists(st.binary(max_size=20), max_size=7), st.lists(st.binary(max_size=20), max_size=7))
def test_parts_have_one_tag_and_other_parts_another(one: list[bytes], other: list[bytes]) -> None:
    signer = Signer(SECRET)
    tag = signer.tag(*one)
    assert len(tag) == 16
    assert signer.verify(tag, *one)
    assert signer.verify(tag, *other) == (one == other)


def test_bytes_cannot_move_between_parts() -> None:
    signer = Signer(SECRET)
    spellings = [
        (b"ab", b"c"),
        (b"a", b"bc"),
        (b"abc", b""),
        (b"", b"abc"),
        (b"abc",),
        (b"ab", b"", b"c"),
        (b"ab", b"c", b""),
    ]
    assert len({signer.tag(*parts) for parts in spellings}) == len(spellings)


def test_secrets_that_differ_make_tags_that_differ() -> None:
    secrets = [SECRET, SECRET + b"\0", SECRET * 4, SECRET * 5, SECRET * 50]
    assert len({Signer(secret).tag(b"x") for secret in secrets}) == len(secrets)
    assert len({Signer(secret).key_check() for secret in secrets}) == len(secrets)
    assert Signer(SECRET * 50).tag(b"x") == Signer(SECRET * 50).tag(b"x")


def test_a_changed_or_cut_tag_is_refused() -> None:
    signer = Signer(SECRET)
    tag = signer.tag(b"key", b"payload")
    for wrong in (b"", tag[:-1], tag + b"\0", bytes((tag[0] ^ 1,)) + tag[1:]):
        assert not signer.verify(wrong, b"key", b"payload")
    assert signer.verify(memoryview(tag), memoryview(b"key"), b"payload")


def test_tags_never_change() -> None:
    """Whoever has to change this test turns every signed entry into a miss."""
    signer = Signer(SECRET)
    assert signer.tag(b"key", b"payload").hex() == "869e14d55ada071cf9612d88c7bc487d"
    assert signer.key_check().hex() == "20390a7308fdd4ef25f9eeb4d7ac38f9"


def test_a_signer_shows_nothing_of_its_secret() -> None:
    signer = Signer(SECRET)
    assert "0123" not in repr(signer)
    assert all("0123" not in repr(getattr(signer, name)) for name in signer.__slots__)


def test_threads_may_share_a_signer() -> None:
    signer = Signer(SECRET)
    payload = b"x" * 10_000  # long enough for hashlib to release the interpreter lock
    expected = signer.tag(b"key", payload)
    wrong: list[bytes] = []

    def work() -> None:
        wrong.extend(tag for _ in range(50) if (tag := signer.tag(b"key", payload)) != expected)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Where the secret comes from.


def home(path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(path)}


def secret_file(path: Path) -> Path:
    return path / "diskcache_like" / "secret"


def test_the_argument_wins_over_the_environment(tmp_path: Path) -> None:
    environ = {**home(tmp_path), "DISKCACHE_LIKE_SECRET": "from the environment"}
    given_secret = load_secret(b"from the argument", environ)
    inherited = load_secret(None, environ)
    assert given_secret.explicit
    assert inherited.explicit
    assert given_secret.signer.key_check() == Signer(b"from the argument").key_check()
    assert inherited.signer.key_check() == Signer(b"from the environment").key_check()
    assert not list(tmp_path.iterdir())


def test_text_is_its_utf_8() -> None:
    assert load_secret("é" * 8, {}).signer.key_check() == Signer(("é" * 8).encode()).key_check()
    assert (
        load_secret(None, {"DISKCACHE_LIKE_SECRET": "\udcff" * 16}).signer.key_check()
        == Signer(b"\xff" * 16).key_check()
    )


@pytest.mark.parametrize("argument", [b"", "", b"x" * 15, "x" * 15])
def test_a_short_secret_is_refused(argument: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"^secret needs at least 16 bytes"):
        load_secret(argument, home(tmp_path))
    with pytest.raises(SettingError, match=r"^DISKCACHE_LIKE_SECRET needs at least 16 bytes"):
        load_secret(None, {**home(tmp_path), "DISKCACHE_LIKE_SECRET": "x" * (len(argument))})
    with pytest.raises(SettingError):
        Signer(b"x" * len(argument))


def test_a_secret_of_another_type_is_refused() -> None:
    with pytest.raises(SettingError, match="int"):
        load_secret(5, {})  # type: ignore[arg-type]


def test_the_users_secret_is_made_when_first_needed(tmp_path: Path) -> None:
    secret = load_secret(None, home(tmp_path))
    assert not secret.explicit
    assert not list(tmp_path.iterdir())
    check = secret.signer.key_check()
    path = secret_file(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert len(path.read_bytes()) >= 32
    assert [entry.name for entry in path.parent.iterdir()] == ["secret"]
    assert load_secret(None, home(tmp_path)).signer.key_check() == check
    assert load_secret(None, {"DISKCACHE_LIKE_SECRET": path.read_text()}).signer.key_check() == check


@pytest.mark.parametrize("umask", [0, 0o777])
def test_the_users_secret_is_private_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    if umask:
        secret_file(tmp_path / "open").parent.mkdir(mode=0o700, parents=True)
    before = os.umask(umask)
    try:
        assert load_secret(None, home(tmp_path / "open")).signer.key_check()
    finally:
        os.umask(before)
    assert stat.S_IMODE(secret_file(tmp_path / "open").stat().st_mode) == 0o600
    assert stat.S_IMODE(secret_file(tmp_path / "open").parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("config", [{}, {"XDG_CONFIG_HOME": ""}, {"XDG_CONFIG_HOME": "relative/config"}])
def test_without_a_configured_place_it_lies_in_the_home(config: Mapping[str, str], tmp_path: Path) -> None:
    assert load_secret(None, {"HOME": str(tmp_path), **config}).signer.key_check()
    assert secret_file(tmp_path / ".config").exists()


def test_a_line_end_after_the_secret_is_ignored(tmp_path: Path) -> None:
    path = secret_file(tmp_path)
    path.parent.mkdir(mode=0o700)
    path.touch(0o600)
    path.write_bytes(b"x" * 32 + b"\n")
    assert load_secret(None, home(tmp_path)).signer.key_check() == Signer(b"x" * 32).key_check()


def make_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir(mode=0o700)


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.chmod(0o640), "0640"),
        (lambda path: path.chmod(0o602), "0602"),
        (lambda path: path.write_bytes(b"x" * 31), "31 bytes"),
        (lambda path: path.write_bytes(b""), "0 bytes"),
        (lambda path: path.write_bytes(b"x" * 5000), "bytes"),
        (make_link, "symbolic link"),
        (make_directory, "regular file"),
        (make_pipe, "regular file"),
        (lambda path: path.parent.chmod(0o770), "written by others"),
    ],
)
def test_a_file_that_others_could_have_seen_or_made_is_refused(
    spoil: Callable[[Path], object], reason: str, tmp_path: Path
) -> None:
    assert load_secret(None, home(tmp_path)).signer.key_check()
    path = secret_file(tmp_path)
    spoil(path)
    with pytest.raises(SecretError, match=reason) as caught:
        _ = load_secret(None, home(tmp_path)).signer
    assert str(path.parent) in str(caught.value)


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_secret(None, home(tmp_path)).signer.key_check()
    owner = os.geteuid()
    answers = iter([owner, owner + 1, owner + 1])
    monkeypatch.setattr(os, "geteuid", lambda: next(answers, owner))
    with pytest.raises(SecretError, match=f"belongs to user {owner}"):
        _ = load_secret(None, home(tmp_path)).signer


def test_a_place_that_cannot_be_used_is_reported_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "diskcache_like").write_bytes(b"a file where the directory should be")
    with pytest.raises(SecretError, match="DISKCACHE_LIKE_SECRET"):
        _ = load_secret(None, home(tmp_path)).signer


RACE = """
import sys
from diskcache_like.crypto.signing import load_secret
sys.stdin.readline()
for number in range(60):
    print(load_secret(None, {"XDG_CONFIG_HOME": f"{sys.argv[1]}/{number}"}).signer.key_check().hex())
"""


def test_processes_that_race_to_make_the_secret_agree(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RACE, str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": ROOT}
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True)
        for _ in range(2)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    outputs = [racer.communicate()[0] for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0].split())) == 60
    assert {entry.name for entry in tmp_path.glob("*/diskcache_like/*")} == {"secret"}


# Pickle policy.


@pytest.mark.parametrize(
    ("setting", "variable", "policy"),
    [
        (None, None, "signed"),
        (None, "", "signed"),
        ("trusted", None, "trusted"),
        ("never", "trusted", "never"),
        ("signed", "trusted", "signed"),
        (None, "trusted", "trusted"),
        (None, "signed", "signed"),
        ("trusted", "never", "never"),
        (None, "never", "never"),
    ],
)
def test_the_policy_is_never_if_the_environment_says_so(setting: str | None, variable: str | None, policy: str) -> None:
    environ = {} if variable is None else {"DISKCACHE_LIKE_PICKLE": variable}
    assert resolve_pickle_policy(setting, environ) == policy


def test_the_environment_of_the_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISKCACHE_LIKE_PICKLE", "never")
    assert resolve_pickle_policy("trusted") == "never"


@pytest.mark.parametrize(("setting", "variable"), [("yes", None), ("", None), (None, "Never"), ("trusted", "off")])
def test_an_unknown_policy_is_refused(setting: str | None, variable: str | None) -> None:
    environ = {} if variable is None else {"DISKCACHE_LIKE_PICKLE": variable}
    with pytest.raises(SettingError, match="'signed', 'never', 'trusted'"):
        resolve_pickle_policy(setting, environ)


class Sealed:
    def __reduce__(self) -> Any:
        raise OSError("sealed")


def test_what_cannot_be_pickled_is_named() -> None:
    deep: Any = 1
    for _ in range(10_000):
        deep = (deep,)
    for value, named in ((Sealed(), r"test_signing\.Sealed"), (lambda: 1, "function"), (deep, "tuple")):
        with pytest.raises(ValueEncodeError, match=named):
            dumps_pickle(value)


def test_pickles_come_back() -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert loads_pickle(memoryview(dumps_pickle({"a": int}, protocol))) == {"a": int}


@pytest.mark.parametrize(
    "data", [b"", b"x", b"cno_such_module\nname\n.", b"cbuiltins\nno_such_name\n.", b"\x80\x05\x8e" + b"\x7f" * 8]
)
def test_what_cannot_be_unpickled_is_a_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError, match="pickle"):
        loads_pickle(data)
