"""CPython's own tests for sequences, deques and mappings, run against Deque and Index as far as they apply.

They come from the standard library's `test` package. A test that does not apply is skipped, and says why; it is named
in a table here. The totals are printed at the end.
"""

from __future__ import annotations

import gc
import math
import tempfile
import unittest
from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, ClassVar
from unittest import mock

import pytest

from diskcache_like import Deque, Index
from diskcache_like.structures.durable import DurableCache

mapping_tests = pytest.importorskip("test.mapping_tests", reason="this Python comes without its own tests")
list_tests = pytest.importorskip("test.list_tests", reason="this Python comes without its own tests")
seq_tests = pytest.importorskip("test.seq_tests", reason="this Python comes without its own tests")
test_deque = pytest.importorskip("test.test_deque", reason="this Python comes without its own tests")

LOCAL = "stores instances of classes made inside the test, which cannot be pickled"
COPIES = "values come back as copies, never as the object that was stored"
CHANGED = (
    "others may change a deque on disk at any time, so a change during a walk is no error, and what is new is left out"
)
PRODUCT = "a sum or product would need a directory that nobody asked for; += and *= work in place"
DIRECTORY = "repr names the directory, as DiskCache's does, and not the items"
UNLIMITED = "maxlen of an unlimited deque is infinity, as DiskCache's is, and it can be set"
LIKE_DEQUE = "a Deque can be sorted no more than collections.deque, and its pop takes no position"
SHARED = "copies and pickles are other handles on the same items, as DiskCache's are"
OBJECT = "is about the objects that collections.deque is made of"
NO_COPY = "an Index has neither copy nor fromkeys, as DiskCache's has none"
WORDING = "expects the wording of list's error"
LONG = "makes 500 deques with up to 500 items each; the model of test_deque.py reverses as well"


class QuickCache(DurableCache):
    """A cache that is quick to make."""

    def __init__(self, directory: Any = None, *positional: Any, **options: Any) -> None:
        super().__init__(directory, *positional, **{"durability": "process", "generation_slots": 1 << 10, **options})


class Adapted(unittest.TestCase):
    """Give each test a place for what it makes, close that, and skip what does not apply."""

    not_applicable: ClassVar[dict[str, str]] = {}
    seen: ClassVar[Counter[str]] = Counter()
    place: ClassVar[str] = ""
    made: ClassVar[list[DurableCache]] = []

    def setUp(self) -> None:
        reason = self.not_applicable.get(self._testMethodName)
        if reason is not None:
            Adapted.seen["not applicable"] += 1
            self.skipTest(reason)
        Adapted.seen["run"] += 1
        gc.freeze()  # some of them collect garbage a hundred times, which takes long in a process that has run many tests
        self.addCleanup(gc.unfreeze)
        Adapted.place = self.enterContext(tempfile.TemporaryDirectory())
        self.addCleanup(self.close)
        super().setUp()

    def _callTestMethod(self, method: Any) -> None:  # noqa: N802 - unittest's name
        super()._callTestMethod(method)  # type: ignore[misc]
        Adapted.seen["passed"] += 1

    @staticmethod
    def close() -> None:
        while Adapted.made:
            Adapted.made.pop().close()

    @staticmethod
    def cache() -> DurableCache:
        """Return the cache for one more deque or index of the running test."""
        Adapted.made.append(QuickCache(tempfile.mkdtemp(dir=Adapted.place)))
        return Adapted.made[-1]


class SmallDeque(Deque):
    """A Deque that is made like a `collections.deque`.

    What lists can and a Deque cannot is added in terms of what it can, because many tests use it in passing.
    """

    def __init__(self, iterable: Iterable[Any] = (), maxlen: int | None = None) -> None:
        if hasattr(self, "_cache"):  # called again: the standard library's starts anew
            self.clear()
            self._set_up(self._cache, iterable, maxlen)
        else:
            self._set_up(Adapted.cache(), iterable, maxlen)

    def copy(self) -> SmallDeque:
        """Return a deque of its own with the same items."""
        return SmallDeque(self, None if math.isinf(self.maxlen) else int(self.maxlen))

    def __getitem__(self, index: Any) -> Any:
        return SmallDeque(list(self)[index]) if isinstance(index, slice) else super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._change(lambda items: items.__setitem__(index, value), index, super().__setitem__, value)

    def __delitem__(self, index: Any) -> None:
        self._change(lambda items: items.__delitem__(index), index, super().__delitem__)

    def _change(self, change: Any, index: Any, directly: Any, *value: Any) -> None:
        if not isinstance(index, slice):
            directly(index, *value)
            return
        items = list(self)
        change(items)
        self.clear()
        self.extend(items)

    def __mul__(self, times: int) -> SmallDeque:
        found = SmallDeque(self)
        found *= times
        return found

    __rmul__ = __mul__

    def __add__(self, other: Any) -> SmallDeque:
        if not isinstance(other, SmallDeque):
            return NotImplemented
        found = SmallDeque(self)
        found += other
        return found


class SmallIndex(Index):
    """An Index that the running test closes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._cache = Adapted.cache()
        self.update(*args, **kwargs)


def short_ranges(module: Any) -> AbstractContextManager[Any]:
    """Let no range in a module of CPython's have more than 50 items: it makes dozens of deques of each."""
    return mock.patch.object(module, "range", lambda *ends: range(*ends)[:50], create=True)


class TestLists(Adapted, list_tests.CommonTest):  # type: ignore[misc, name-defined]
    """What lists do, and with them all sequences that can be changed."""

    type2test = SmallDeque
    not_applicable: ClassVar[dict[str, str]] = {
        "test_contains_order": LOCAL,
        "test_copy": COPIES,
        "test_exhausted_iterator": CHANGED,
        "test_free_after_iterating": OBJECT,
        "test_index": LOCAL,
        "test_pop": LIKE_DEQUE,
        "test_remove": LOCAL,
        "test_repr": DIRECTORY,
        "test_repr_deep": DIRECTORY,
        "test_setitem": WORDING,
        "test_sort": LIKE_DEQUE,
    }

    def test_constructors(self) -> None:
        with short_ranges(seq_tests):
            super().test_constructors()


class TestDeque(Adapted, test_deque.TestBasic):  # type: ignore[misc, name-defined]
    """What deques do."""

    not_applicable: ClassVar[dict[str, str]] = {
        "test_add": PRODUCT,
        "test_comparisons": "a Deque is equal to any sequence with equal items, as DiskCache's is",
        "test_container_iterator": OBJECT,
        "test_contains": CHANGED,
        "test_contains_count_stop_crashes": LOCAL,
        "test_copy": COPIES,
        "test_count": LOCAL,
        "test_deepcopy": SHARED,
        "test_imul": UNLIMITED,
        "test_index": CHANGED,
        "test_iterator_pickle": OBJECT,
        "test_maxlen": DIRECTORY,
        "test_maxlen_attribute": UNLIMITED,
        "test_mul": PRODUCT,
        "test_pickle_recursive": COPIES,
        "test_remove": COPIES,
        "test_repr": DIRECTORY,
        "test_reverse": LONG,
        "test_reversed_new": OBJECT,
        "test_sizeof": OBJECT,
    }

    def setUp(self) -> None:
        super().setUp()
        self.enterContext(mock.patch.object(test_deque, "deque", SmallDeque))
        self.enterContext(mock.patch.object(test_deque, "BIG", 1100))

    def test_getitem(self) -> None:
        """With 40 items instead of 200, and so 25 times faster."""
        with mock.patch.object(test_deque, "range", lambda *ends: range(*(min(end, 40) for end in ends)), create=True):
            super().test_getitem()


class TestIterables(Adapted, test_deque.TestVariousIteratorArgs):  # type: ignore[misc, name-defined]
    """What deques are made of."""

    not_applicable: ClassVar[dict[str, str]] = {
        "test_iter_with_altered_data": CHANGED,
        "test_runtime_error_on_empty_deque": CHANGED,
    }

    def setUp(self) -> None:
        super().setUp()
        self.enterContext(mock.patch.object(test_deque, "deque", SmallDeque))

    def test_constructor(self) -> None:
        with short_ranges(test_deque):
            super().test_constructor()


class TestMapping(Adapted, mapping_tests.TestHashMappingProtocol):  # type: ignore[misc, name-defined]
    """What mappings do."""

    type2test = SmallIndex
    not_applicable: ClassVar[dict[str, str]] = {
        "test_copy": NO_COPY,
        "test_eq": LOCAL,
        "test_fromkeys": NO_COPY,
        "test_popitem": "popitem takes the end to remove from, as OrderedDict's does",
        "test_repr": DIRECTORY,
        "test_repr_deep": DIRECTORY,
        "test_setdefault": COPIES,
    }

    # What the last class adds to these stores instances of classes made inside the test.

    def test_getitem(self) -> None:
        mapping_tests.TestMappingProtocol.test_getitem(self)

    def test_pop(self) -> None:
        mapping_tests.TestMappingProtocol.test_pop(self)


def test_totals(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    """Say how many of CPython's tests ran in this process."""
    seen = Adapted.seen
    totals = ", ".join(f"{seen[name]} {name}" for name in ("run", "passed", "not applicable"))
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    with capsys.disabled():
        if reporter is not None:
            reporter.write_line(f"\nCPython's own tests: {totals}")
    assert seen["passed"] == seen["run"], totals


@pytest.mark.parametrize("suite", [TestLists, TestDeque, TestIterables, TestMapping])
def test_each_test_that_does_not_apply_exists(suite: type[Adapted]) -> None:
    assert [name for name in suite.not_applicable if not hasattr(suite, name)] == []
