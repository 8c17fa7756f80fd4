"""What dictionaries save: the command and its page, the values it draws, and the bound that it compares with."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from benchmarks import command, page
from benchmarks.codecs import answers, dictionaries
from benchmarks.codecs.values import plain_size
from diskcache_like import Disk

SIMILAR = [kind for kind in answers.KINDS if "matrix" not in kind]
FEW = ("--count", "200")


def test_a_run_fills_the_page_with_every_kind(tmp_path: Path) -> None:
    filled = tmp_path / "page.md"
    filled.write_text("Before.\n{}\n{}\nAfter.\n".format(*page.marks(dictionaries.MARK)), encoding="utf-8")
    assert dictionaries.main([*FEW, "--docs", str(filled)]) == command.GOOD
    text = filled.read_text(encoding="utf-8")
    assert text.startswith("Before.\n")
    assert text.endswith("After.\n")
    assert all(f"| {kind} | " in text for kind in answers.KINDS)


def test_a_value_that_comes_back_as_another_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Disk, "fetch", lambda *_: None)
    assert dictionaries.main(FEW) == command.FAILED
    assert "came back as another one" in capsys.readouterr().out


def test_a_page_without_a_place_is_not_measured_for(tmp_path: Path) -> None:
    filled = tmp_path / "page.md"
    filled.write_text("Before.\n", encoding="utf-8")
    assert dictionaries.main([*FEW, "--docs", str(filled)]) == command.UNUSABLE
    assert filled.read_text(encoding="utf-8") == "Before.\n"


@pytest.mark.parametrize("kind", SIMILAR)
def test_similar_values_shrink_three_times_more_with_a_dictionary(kind: str, tmp_path: Path) -> None:
    line = dictionaries.measure(kind, dictionaries.COUNT, tmp_path)
    assert round(line.without / line.trained, 1) >= 3
    assert line.bound < min(line.most, line.trained)


@pytest.mark.parametrize("kind", SIMILAR)
def test_values_are_small_and_the_same_in_every_run(kind: str) -> None:
    values, bits = answers.values_of(kind, 100)
    assert answers.values_of(kind, 100) == (values, bits)
    assert 200 <= min(map(plain_size, values)) <= max(map(plain_size, values)) <= 2_000


def test_the_dice_counts_what_it_draws() -> None:
    dice = answers.Counting(1)
    for draw, bits in (
        (lambda: dice.choice("abcd"), 2.0),
        (lambda: dice.randrange(8), 3.0),
        (lambda: dice.randrange(8, 16), 3.0),
        (lambda: dice.sample("abcd", 2), math.log2(12)),
        (lambda: dice.uniform(0, 2.56), 8.0),
        (lambda: dice.choices("a", cum_weights=[1]), 0.0),
        (dice.random, 0.0),
    ):
        dice.bits = 0.0
        draw()
        assert dice.bits == pytest.approx(bits)
    dice.bits = 0.0
    drawn = dice.choices("ab", cum_weights=[1, 4], k=1_000)
    assert dice.bits == pytest.approx(drawn.count("a") * 2 + drawn.count("b") * math.log2(4 / 3))
    assert answers.Counting(5).choices("abc", cum_weights=[1, 2, 3], k=9) == random.Random(5).choices("abc", k=9)


def test_the_bound_is_below_what_a_code_of_all_values_takes() -> None:
    """Of 2^n equally likely values the best code without prefixes takes n - 2 + (n + 2) / 2^n bits in the mean."""
    for bits in range(1, 20):
        assert 8 * answers.least_bytes(bits) <= bits - 2 + (bits + 2) / 2**bits
    assert answers.least_bytes(800) > 98
