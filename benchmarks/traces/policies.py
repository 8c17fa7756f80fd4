"""Eviction policies as small simulators, whose caches hold a number of entries of any size.

The one method of each tells whether a key is there, and stores the key if not. In a queue, the oldest key comes first.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Protocol

AGING = 10  # lengths of the cache: after so many requests all counts are halved


class Policy(Protocol):
    """What all policies offer."""

    def request(self, key: int, /) -> bool: ...


class Queue(OrderedDict[int, int]):
    """Keys in order, each with a number that its policy gives a meaning to."""

    def oldest(self) -> int:
        """Remove the oldest key and return it."""
        return self.popitem(last=False)[0]


class Fifo:
    """Evict the key that was stored first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.kept = Queue()

    def request(self, key: int) -> bool:
        if key in self.kept:
            return True
        if len(self.kept) == self.size:
            self.kept.oldest()
        self.kept[key] = 0
        return False


class Lru(Fifo):
    """Evict the key that was not used for longest."""

    def request(self, key: int) -> bool:
        if hit := super().request(key):
            self.kept.move_to_end(key)
        return hit


class Lfu:
    """Evict the key that was used least often, of several the one whose count has not changed for longest.

    All counts are halved from time to time, as in J. T. Robinson and M. V. Devarakonda, "Data Cache Management Using
    Frequency-Based Replacement", SIGMETRICS 1990; there when their mean is too high, here after `AGING`.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.counts: dict[int, int] = {}
        self.queues: dict[int, Queue] = {}  # by count
        self.lowest = self.time = 0

    def request(self, key: int) -> bool:
        self.time += 1
        if self.time % (AGING * self.size) == 0:
            self._halve()
        count = self.counts.get(key)
        if count is not None:
            del self.queues[count][key]
            self._drop_if_empty(count)
            self._put(key, count + 1)
            return True
        if len(self.counts) == self.size:
            self.lowest = min(self.queues) if self.lowest not in self.queues else self.lowest
            del self.counts[self.queues[self.lowest].oldest()]
            self._drop_if_empty(self.lowest)
        self._put(key, 1)
        return False

    def _put(self, key: int, count: int) -> None:
        self.counts[key] = count
        self.queues.setdefault(count, Queue())[key] = 0
        self.lowest = min(self.lowest, count)

    def _drop_if_empty(self, count: int) -> None:
        if not self.queues[count]:
            del self.queues[count]

    def _halve(self) -> None:
        old, self.queues, self.lowest = sorted(self.queues.items()), {}, 0
        for count, queue in old:
            for key in queue:
                self._put(key, count // 2)


class Sieve:
    """Evict the first unmarked key that a hand meets, which takes the marks away and leaves marked keys in their place.

    Y. Zhang and others, "SIEVE is Simpler than LRU", NSDI 2024. The list is cut in two at the hand: `passed` has what
    is older, `ahead` what is newer and comes next. A key's number is its mark.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.passed, self.ahead = Queue(), Queue()

    def request(self, key: int) -> bool:
        for part in (self.passed, self.ahead):
            if key in part:
                part[key] = 1
                return True
        if len(self.passed) + len(self.ahead) == self.size:
            self.evict()
        self.ahead[key] = 0
        return False

    def evict(self) -> None:
        """Let the hand go until a key has gone; behind the newest key comes the oldest again."""
        marked = 1
        while marked:
            key, marked = self.ahead.popitem(last=False)
            if marked:
                self.passed[key] = 0
            if not self.ahead:
                self.passed, self.ahead = self.ahead, self.passed


class Ghosts(Queue):
    """The keys that have gone last."""

    def remember(self, key: int, most: int) -> None:
        """Add a key, and forget what is too much."""
        self[key] = 0
        while len(self) > most:
            self.oldest()


class S3Fifo:
    """Evict from a small queue of new keys what was not used twice, and from the main one what was not used again.

    J. Yang and others, "FIFO Queues are All You Need for Cache Eviction", SOSP 2023, algorithm 1. A key's number is how
    often it was used, 3 at most; it begins anew in the main queue.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.small, self.main, self.ghosts = Queue(), Queue(), Ghosts()

    def request(self, key: int) -> bool:
        for queue in (self.small, self.main):
            if key in queue:
                queue[key] = min(queue[key] + 1, 3)
                return True
        if len(self.small) + len(self.main) == self.size:
            self._evict()
        known = self.ghosts.pop(key, None) is not None
        (self.main if known else self.small)[key] = 0
        return False

    def _evict(self) -> None:
        while True:
            if not self.main or len(self.small) >= self.size / 10:
                key, used = self.small.popitem(last=False)
                if used <= 1:
                    self.ghosts.remember(key, self.size * 9 // 10)
                    return
                self.main[key] = 0
            else:
                key, used = self.main.popitem(last=False)
                if not used:
                    return
                self.main[key] = used - 1


class Arc:
    """Divide the cache between keys that were used once and keys that were used again, as the ghosts of both ask for.

    N. Megiddo and D. S. Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003, figure 4.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.once, self.again, self.once_gone, self.again_gone = Queue(), Queue(), Queue(), Queue()
        self.target = 0.0  # length of `once`

    def request(self, key: int) -> bool:
        if self.once.pop(key, None) is not None or key in self.again:
            self.again[key] = 0
            self.again.move_to_end(key)
            return True
        once, again = len(self.once_gone), len(self.again_gone)
        if key in self.once_gone:
            self.target = min(self.target + max(again / once, 1), self.size)
            self._replace(False)
            del self.once_gone[key]
            self.again[key] = 0
        elif key in self.again_gone:
            self.target = max(self.target - max(once / again, 1), 0)
            self._replace(True)
            del self.again_gone[key]
            self.again[key] = 0
        else:
            self._make_room()
            self.once[key] = 0
        return False

    def _make_room(self) -> None:
        seen = len(self.once) + len(self.once_gone)
        every = seen + len(self.again) + len(self.again_gone)
        if seen == self.size:
            if self.once_gone:
                self.once_gone.oldest()
                self._replace(False)
            else:
                self.once.oldest()
        elif every >= self.size:
            if every == 2 * self.size:
                self.again_gone.oldest()
            self._replace(False)

    def _replace(self, again: bool) -> None:
        """Make a ghost of a key; `again`: of the key that is asked for there is one in `again_gone`."""
        length = len(self.once)
        if length and (length > self.target or (again and length == self.target)):
            self.once_gone[self.once.oldest()] = 0
        else:
            self.again_gone[self.again.oldest()] = 0


class WTinyLfu:
    """Let a key from a window into the main part if it was asked for more often than the key that would have to go.

    G. Einziger, R. Friedman and B. Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", ACM Transactions on
    Storage 13 (2017). The window, an LRU, has 1 % of the entries; of the rest 80 % are protected. Requests are counted
    exactly, up to 15, where the paper has a sketch; all counts are halved after `AGING`.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.room = max(size // 100, 1)
        self.most = (size - self.room) * 8 // 10
        self.window, self.probation, self.protected = Queue(), Queue(), Queue()
        self.counts = Counter[int]()
        self.time = 0

    def request(self, key: int) -> bool:
        self._count(key)
        for queue in (self.window, self.protected):
            if key in queue:
                queue.move_to_end(key)
                return True
        if self.probation.pop(key, None) is not None:
            self.protected[key] = 0
            if len(self.protected) > self.most:
                self.probation[self.protected.oldest()] = 0
            return True
        self.window[key] = 0
        if len(self.window) > self.room:
            self._admit(self.window.oldest())
        return False

    def _count(self, key: int) -> None:
        self.time += 1
        if self.time % (AGING * self.size) == 0:
            self.counts = Counter({one: count // 2 for one, count in self.counts.items() if count > 1})
        self.counts[key] = min(self.counts[key] + 1, 15)

    def _admit(self, key: int) -> None:
        if len(self.probation) + len(self.protected) == self.size - self.room:
            main = self.probation or self.protected
            if not main or self.counts[key] <= self.counts[next(iter(main))]:
                return
            main.oldest()
        self.probation[key] = 0


class SecondChance:
    """Keep new keys in probation, and let the main part have those that are used again after a while.

    A policy for a cache in a database: a use writes a mark and moves nothing. A key's number is 1 if it is marked, and
    in probation, before that, minus the time when it was stored. There a use marks it only if half a queue's length was
    stored since, so that a burst does not count. What leaves probation unmarked leaves a ghost, for which its key is
    stored in the main part. Of that part the oldest goes if it is unmarked, and else moves to the end.
    """

    def __init__(self, size: int) -> None:
        self.size = self.free = size
        self.most = max(size // 10, min(500, size // 2))
        self.probation, self.main, self.ghosts = Queue(), Queue(), Ghosts()
        self.time = 0  # counts what was stored in probation

    def request(self, key: int) -> bool:
        if key in self.main:
            self.main[key] = 1
            return True
        stored = self.probation.get(key)
        if stored is not None:
            if stored <= 0 and self.time + stored >= self.most / 2:
                self.probation[key] = 1
            return True
        if self.free:
            self.free -= 1
            self.main[key] = 0
            return False
        self.evict()
        self.store(key, self.ghosts.pop(key, None) is not None)
        return False

    def store(self, key: int, known: bool) -> None:
        """Store a new key in a cache that is full; `known`: its ghost was there."""
        if known:
            self.main[key] = 0
        else:
            self.time += 1
            self.probation[key] = -self.time

    def evict(self) -> None:
        """Let one key go."""
        while len(self.probation) > self.most:
            key, number = self.probation.popitem(last=False)
            if number <= 0:
                self.ghosts.remember(key, self.size)
                return
            self.main[key] = 0
        self.evict_from_main()

    def evict_from_main(self) -> None:
        while True:
            key, marked = self.main.popitem(last=False)
            if not marked:
                return
            self.main[key] = 0


class Optimum:
    """Keep what will be asked for soonest, and nothing that will not be asked for again.

    L. A. Belady, "A Study of Replacement Algorithms for a Virtual-Storage Computer", IBM Systems Journal 5 (1966). It
    is made with all requests, and must be given the same ones. A key that is kept is known by the place of its next
    request, which is therefore a hit.
    """

    def __init__(self, size: int, keys: Sequence[int]) -> None:
        self.size = size
        self.place = -1
        self.kept = set[int]()
        self.furthest: list[int] = []  # a heap of places, negative; those that have passed lie at the bottom
        self.following = [len(keys)] * len(keys)
        last: dict[int, int] = {}
        for place in range(len(keys) - 1, -1, -1):
            self.following[place] = last.get(keys[place], len(keys))
            last[keys[place]] = place

    def request(self, key: int) -> bool:
        self.place += 1
        hit = self.place in self.kept
        self.kept.discard(self.place)
        following = self.following[self.place]
        if following < len(self.following):
            self.kept.add(following)
            heappush(self.furthest, -following)
            if len(self.kept) > self.size:
                self.kept.remove(-heappop(self.furthest))
        return hit


POLICIES: dict[str, Callable[[int], Policy]] = {
    "FIFO": Fifo,
    "LRU": Lru,
    "LFU": Lfu,
    "SIEVE": Sieve,
    "S3-FIFO": S3Fifo,
    "ARC": Arc,
    "W-TinyLFU": WTinyLfu,
    "second chance": SecondChance,
}
OPTIMUM = "optimum"
NAMES = (*POLICIES, OPTIMUM)


def hit_ratio(name: str, size: int, keys: Sequence[int]) -> float:
    """Return which share of the requests a policy hits with so many entries."""
    policy = Optimum(size, keys) if name == OPTIMUM else POLICIES[name](size)
    return sum(map(policy.request, keys)) / len(keys)
