"""What the recorded work of the power-loss proofs promises its judge."""

from pathlib import Path
from random import Random
from unittest.mock import MagicMock

import pytest

from prove.power.recorded_work import OPERATIONS, Work


@pytest.mark.parametrize("name", ["set", "stream", "add", "set many"])
def test_no_key_has_the_same_value_twice(name: str, tmp_path: Path) -> None:
    """The judge tells by its value alone which write of a key a loss of power left."""
    work = Work("one", tmp_path, tmp_path / "log", Random(1), {}, (0, 300))
    work.cache = MagicMock()
    for _ in range(60):
        OPERATIONS[name][0](work)
        work.expected.clear()  # so that `add` writes
    assert any(len(values) > 1 for values in work.ever.values())
    for values in work.ever.values():
        assert len({*values}) == len(values)
