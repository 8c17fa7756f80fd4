"""What the work of the proofs promises its judges."""

from random import Random
from unittest.mock import MagicMock

import pytest

from prove.workload import Work


@pytest.mark.parametrize("name", ["set", "stream", "add", "set_many"])
def test_no_key_has_the_same_value_twice(name: str) -> None:
    """A judge tells by its value alone which write of a key a loss of power left."""
    work = Work(MagicMock, Random(1), (0, 300))
    work.evicts = True  # so that nobody minds what the mock answers
    for _ in range(60):
        getattr(work, name)()
        work.may_be = {work.lane.queue: [()]}  # so that `add` writes
    written = {key: [value for value in values if isinstance(value, str | bytes)] for key, values in work.ever.items()}
    assert any(len(values) > 1 for values in written.values())
    for values in written.values():
        values = [value for value in values if value != "missing"]
        assert len({*values}) == len(values)
