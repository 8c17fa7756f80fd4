"""Globs match what Redis matches."""

from __future__ import annotations

import random

import pytest

from diskcache_like.encoding.globs import head_of, pattern_of


def matches(glob: str, text: str) -> bool:
    return pattern_of(glob).match(text) is not None


@pytest.mark.parametrize(
    ("glob", "those", "others"),
    [
        ("", [""], ["a"]),
        ("*", ["", "a", "a\nb", "猫"], []),
        ("user:*", ["user:", "user:1", "user:\n"], ["user", "users:1", "a user:1"]),
        ("h?llo", ["hello", "h\nllo", "h猫llo"], ["hllo", "heello"]),
        ("h[ae]llo", ["hello", "hallo"], ["hillo", "h[llo"]),
        ("h[^e]llo", ["hallo", "h^llo"], ["hello", "hllo"]),
        ("h[a-cx]llo", ["hallo", "hcllo", "hxllo"], ["hdllo", "h-llo"]),
        ("h[c-a]llo", ["hallo", "hbllo"], ["hdllo"]),
        ("[!a]", ["!", "a"], ["b", "^"]),
        (r"a\*b", ["a*b"], ["ab", r"a\*b"]),
        (r"[\]x]", ["]", "x"], ["\\"]),
        (r"[\^a]", ["^", "a"], ["b"]),
        ("[a-]]", ["a", "]", "^"], ["-", "b"]),
        ("[]", [], ["", "[]", "]"]),
        ("[^]", ["a", "]"], ["", "^]"]),
        ("[ab", ["a", "b"], ["[ab", ""]),
        ("a\\", ["a\\"], ["a"]),
        ("*a*b", ["ab", "xaxb", "aab", "abab"], ["ba", "abx"]),
        ("a*a", ["aa", "aba"], ["a"]),
        ("a.c|d", ["a.c|d"], ["abc", "d"]),
        ("**", ["", "ab"], []),
    ],
)
def test_as_redis_has_them(glob: str, those: list[str], others: list[str]) -> None:
    assert [text for text in those if not matches(glob, text)] == []
    assert [text for text in others if matches(glob, text)] == []


def slowly(glob: str, text: str) -> bool:
    if not glob:
        return not text
    if glob[0] == "*":
        return any(slowly(glob[1:], text[start:]) for start in range(len(text) + 1))
    return bool(text) and glob[0] in ("?", text[0]) and slowly(glob[1:], text[1:])


def test_as_the_definition_says() -> None:
    chance = random.Random(5)
    for _ in range(5_000):
        glob = "".join(chance.choices("ab*?", k=chance.randrange(7)))
        text = "".join(chance.choices("ab", k=chance.randrange(9)))
        assert matches(glob, text) == slowly(glob, text), (glob, text)
        if matches(glob, text):
            assert text.startswith(head_of(glob))


def test_no_glob_takes_long() -> None:
    assert not matches("a*" * 50 + "b", "a" * 60_000)
