"""Locks between threads, asyncio tasks and processes, each an entry of a cache that names its owners by tokens.

Only an owner's token releases, so a release that comes too late cannot free the next owner. With `expire` a lock is a
lease, which frees itself when its owner is slow or dead. A caller reads the generation of the entry's slot before it
looks at the entry, and if the lock is taken, sleeps only while the generation is the same (`coherence.futex`): every
release changes it.

The entry must not be evicted: where the cache may become full, set its eviction policy to 'none'.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from ..cache import Cache, atomic_key, refuse_in_transaction_of_face, without_face
from ..coherence.futex import pauses, slices
from ..entries.loading import ENOVAL
from ..entries.row_codec import Expiry
from ..errors import CacheError, LeaseLost, NotOwner, Timeout, TransactionError
from ..system.signals import suppress
from ..system.tasks import sleep
from .owners import Owner, current_owner

if TYPE_CHECKING:
    from ..aio import AsyncCache

RUNS_CALLERS_CODE = True  # for `interrupts_a_call` of system/signal_safe.py

WRITE = 0.1  # seconds that a try may last longer while others write something else
REMEMBERED = 1000  # leases that ran out and still raise LeaseLost; the owners of older ones get a plain NotOwner


class _Shared:
    """Acquire and release, in threads or tasks, by the atomic steps `_take` and `_give` of each kind of lock."""

    _noun = "lock"

    def __init__(self, cache: Cache | AsyncCache, key: Any, expire: Expiry | None = None, tag: Any = None) -> None:
        self._cache = without_face(cache)
        self._key = key
        self._expire = expire
        self._tag = tag
        self._atomic = atomic_key(self._cache, key)
        # What was acquired through this object and not released yet, oldest first. Single steps on a list are atomic.
        self._held: list[tuple[Owner, str]] = []
        self._most = 2 * REMEMBERED  # entries in `_held` above which `_forget_lost` runs

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._key!r})"

    def __reduce__(self) -> Any:
        return (type(self), (self._cache, self._key, self._expire, self._tag))

    # In these three, `wait` is the seconds to wait for the shard's write lock, after which they raise Timeout.

    def _take(self, owner: Owner, wait: float | None) -> bool:
        """Become an owner if that is possible now."""
        raise NotImplementedError

    def _give(self, token: str, wait: float | None) -> bool:
        """Release what `token` owns; return False if it no longer owns anything."""
        raise NotImplementedError

    def _renew(self, token: str, expire: Expiry | None, wait: float | None) -> bool:
        """Restart the lease of `token`; return False if it no longer owns anything."""
        with self._atomic.transaction(wait):
            return self._owns(token) and self._cache.touch(self._key, expire, retry=True)

    def _owns(self, token: str) -> bool:
        """Tell whether `token` belongs to an owner."""
        raise NotImplementedError

    def _owners(self) -> Counter[str]:
        """Return the token of each owner, and how many times it has acquired the lock."""
        raise NotImplementedError

    def _until(self) -> float | None:
        """Return when the first lease ends that keeps others out; None for never."""
        until: float | None = self._cache.get(self._key, expire_time=True)[1]
        return until

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock and return whether that was possible, as `threading.Lock.acquire` does.

        It waits for `timeout` seconds at most, -1 for as long as it takes. With `blocking=False` it does what
        `try_acquire` does. Raises ValueError for another negative timeout, and for one with `blocking=False`.
        """
        if timeout != -1 and (not blocking or not timeout >= 0):
            raise ValueError(
                f"timeout is {timeout!r}, expected -1 to wait without limit, or seconds, 0 or more, if blocking"
            )
        if not blocking:
            return self.try_acquire()
        return self._acquire(None if timeout == -1 else time.monotonic() + timeout)

    def try_acquire(self, timeout: float = 0.0) -> bool:
        """Take the lock if that is possible within `timeout` seconds; return whether it was.

        It waits up to 0.1 s longer for those who write other entries, so that it seldom fails to get a free lock.
        """
        return self._acquire(time.monotonic() + timeout)

    def _acquire(self, deadline: float | None) -> bool:
        owner = current_owner()
        for seconds in slices():
            generation = self._atomic.generation()
            try:
                if self._take(owner, None if deadline is None else max(deadline + WRITE - time.monotonic(), 0.0)):
                    return True
            except Timeout:  # somebody held the shard's write lock beyond the deadline
                pass
            if deadline is not None:
                seconds = min(seconds, deadline - time.monotonic())
                if seconds <= 0:
                    return False
            self._refuse_transaction()
            if self._expire is not None:
                seconds = min(seconds, self._atomic.left(self._until()))
            self._atomic.sleep(generation, seconds)
        raise AssertionError("slices never end")

    def release(self) -> None:
        """Free the lock; raise NotOwner if the caller does not hold it, LeaseLost if it no longer does.

        The caller is the asyncio task that runs, or else the thread.
        """
        self._release(self._releaser(), None)

    def _release(self, owner: Owner, wait: float | None) -> None:
        token = self._pop(owner)
        try:
            owned = self._give(token, wait)
        except BaseException:
            self._took(owner, token)
            raise
        self._atomic.wake()
        if not owned:
            raise self._lost()

    def extend(self, expire: Expiry | None = None) -> None:
        """Restart the lease, for `expire` seconds (default: those of the lock); raise NotOwner or LeaseLost."""
        token = self._token(current_owner())
        if not self._renew(token, self._expire if expire is None else expire, None):
            raise self._lost()

    async def aextend(self, expire: Expiry | None = None) -> None:
        """Do what `extend` does for the running asyncio task, without blocking the event loop."""
        token = self._token(current_owner())
        for seconds in pauses():
            try:
                if not self._renew(token, self._expire if expire is None else expire, 0):
                    raise self._lost()
            except Timeout:  # somebody else is writing
                self._refuse_transaction_of_face()
                await sleep(seconds)
            else:
                return

    def held(self) -> bool:
        """Tell whether the calling task or thread holds the lock and its lease has not run out."""
        token = self._last(current_owner())
        return token is not None and self._owns(token)

    async def aacquire(self) -> None:
        """Do what `acquire` does for the running asyncio task, without blocking the event loop."""
        owner = current_owner()
        for seconds in pauses():
            try:
                if self._take(owner, 0):
                    return
            except Timeout:  # somebody else is writing
                pass
            self._refuse_transaction()
            await sleep(seconds)

    async def arelease(self) -> None:
        """Do what `release` does for the running asyncio task; if that is cancelled, release the lock all the same."""
        from ..system.threads import in_new_thread  # late: it needs asyncio, which takes long to import

        owner = self._releaser()
        try:
            self._release(owner, 0)
        except Timeout:  # somebody else is writing; the thread waits for that, however often the task is cancelled
            self._refuse_transaction_of_face()
            await in_new_thread(partial(self._release, owner, None))

    def _refuse_transaction_of_face(self) -> None:
        refuse_in_transaction_of_face(self._cache, f"{self._noun} {self._key!r}")

    def _refuse_transaction(self) -> None:
        self._refuse_transaction_of_face()
        if self._atomic.in_transaction():
            raise TransactionError(
                f"{self._noun} {self._key!r} is held, and its release cannot be seen from within transact()"
            )

    def _releaser(self) -> Owner:
        """Return the owner whose token the caller releases."""
        return current_owner()

    def _last(self, owner: Owner) -> str | None:
        """Return the token that `owner` acquired last and has not released."""
        return next((token for each, token in self._held[::-1] if each is owner), None)

    def _token(self, owner: Owner) -> str:
        """Do what `_last` does, but raise NotOwner if there is none."""
        token = self._last(owner)
        if token is None:
            raise NotOwner(
                f"cannot release or extend {self._noun} {self._key!r}: it is not held by this task or thread"
            )
        return token

    def _pop(self, owner: Owner) -> str:
        """Remove and return the token that `owner` acquired last."""
        token = self._token(owner)
        try:
            self._held.remove((owner, token))
        except ValueError:  # another thread is releasing it
            raise NotOwner(f"{self._noun} {self._key!r} is released by two threads at once") from None
        return token

    def _took(self, owner: Owner, token: str) -> None:
        self._held.append((owner, token))
        if len(self._held) > self._most:
            with suppress(CacheError, TypeError):  # the lock is taken, whatever is wrong with its entry
                self._forget_lost()

    def _forget_lost(self) -> None:
        """Forget the oldest leases that ran out; otherwise they pile up if a caller lets every lease run out."""
        held = self._held[::-1]  # copied before asking for the owners, so that nothing newer is taken for lost
        owners, lost = self._owners(), 0
        for each in held:
            if owners[each[1]] > 0:
                owners[each[1]] -= 1
                continue
            lost += 1
            if lost > REMEMBERED:
                with suppress(ValueError):  # released just now
                    self._held.remove(each)
        self._most = 2 * max(len(self._held), REMEMBERED)

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"{self._noun} {self._key!r} was lost while it was held: its lease (expire={self._expire!r}) ran out or "
            "its entry was removed; take a longer lease or extend it in time"
        )

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            self.release()
        except NotOwner as lost:
            _tell(lost, error)

    async def __aenter__(self) -> None:
        await self.aacquire()

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            await self.arelease()
        except NotOwner as lost:
            _tell(lost, error)


def _tell(lost: NotOwner, error: BaseException | None) -> None:
    """Raise `lost`, or add it as a note to the error that ended the body."""
    if error is None:
        raise lost
    error.add_note(str(lost))


class Lock(_Shared):
    """A lock between threads, asyncio tasks and processes under one key of a cache.

    With `expire` (seconds) it is a lease: it frees itself when the owner neither releases nor extends it in time, and
    the owner's `release` or `extend` then raises LeaseLost. Waiting ends with the release; waiters get the lock in no
    particular order. Use `async with` in coroutines.
    """

    def locked(self) -> bool:
        """Tell whether anyone holds the lock."""
        return self._key in self._cache

    def _is_free(self, found: Any) -> bool:
        """Tell whether an entry's value, ENOVAL for no entry, means that nobody holds the lock."""
        return found is ENOVAL

    def _new_token(self, owner: Owner) -> str:
        return secrets.token_hex(16)

    def _take(self, owner: Owner, wait: float | None) -> bool:
        get, key = self._cache.get, self._key
        found = get(key, ENOVAL)
        if not self._is_free(found):
            return False
        token = self._new_token(owner)
        if found is ENOVAL and wait is None:  # one statement instead of a transaction
            if not self._cache.add(key, token, expire=self._expire, tag=self._tag, retry=True):
                return False
        else:
            with self._atomic.transaction(wait):
                if not self._is_free(get(key, ENOVAL)):
                    return False
                self._cache.set(key, token, expire=self._expire, tag=self._tag, retry=True)
        self._took(owner, token)
        return True

    def _give(self, token: str, wait: float | None) -> bool:
        with self._atomic.transaction(wait):
            return self._owns(token) and self._cache.delete(self._key, retry=True)

    def _owns(self, token: str) -> bool:
        return bool(self._cache.get(self._key) == token)

    def _owners(self) -> Counter[str]:
        return Counter([str(self._cache.get(self._key))])


class RLock(_Shared):
    """A lock like `Lock` that its owner, a thread or an asyncio task, may acquire again and again.

    It is free once it was released as many times. Each acquisition restarts the lease. Two objects with the same
    cache and key are the same lock.
    """

    def _state(self) -> tuple[str | None, int]:
        """Return the name of the owner and how many times it has acquired."""
        return self._parsed(self._cache.get(self._key))

    def _parsed(self, found: Any) -> tuple[str | None, int]:
        """Return what an entry's value, or None, says of the owner's name and the count."""
        if found is None:
            return None, 0
        try:
            name, count = found
            return str(name), int(count)
        except (TypeError, ValueError):
            raise _foreign(self._noun, self._key, found) from None

    def _take(self, owner: Owner, wait: float | None) -> bool:
        if self._state()[0] not in (None, owner.name):
            return False
        with self._atomic.transaction(wait):
            name, count = self._state()
            if name not in (None, owner.name):
                return False
            self._store(owner.name, count + 1, self._expire)
        self._took(owner, owner.name)
        return True

    def _store(self, name: str, count: int, expire: Expiry | None) -> None:
        self._cache.set(self._key, (name, count), expire=expire, tag=self._tag, retry=True)

    def _give(self, token: str, wait: float | None) -> bool:
        with self._atomic.transaction(wait):
            found, until = self._cache.get(self._key, expire_time=True)
            name, count = self._parsed(found)
            if name != token:
                return False
            if count > 1:  # the lease stays as it is
                self._store(token, count - 1, None if until is None else max(until - self._atomic.now(), 0.0))
            else:
                self._cache.delete(self._key, retry=True)
            return True

    def _owns(self, token: str) -> bool:
        return self._state()[0] == token

    def _owners(self) -> Counter[str]:
        name, count = self._state()
        return Counter({str(name): count})

    def _token(self, owner: Owner) -> str:
        if self._last(owner) is None and self._owns(owner.name):
            self._took(owner, owner.name)  # acquired through another object with the same key
        return super()._token(owner)


class BoundedSemaphore(_Shared):
    """A semaphore with `value` slots between threads, asyncio tasks and processes under one key of a cache.

    With `expire` (seconds) each slot is a lease of its own: the slots of dead owners come back one by one, and an owner
    that is late gets LeaseLost. One release too many raises NotOwner. Through the same object, a thread or task may
    release what another one acquired.
    """

    _noun = "semaphore"

    def __init__(
        self, cache: Cache | AsyncCache, key: Any, value: int = 1, expire: Expiry | None = None, tag: Any = None
    ) -> None:
        super().__init__(cache, key, expire, tag)
        if value < 1:
            raise ValueError(f"value is {value!r}, expected 1 or more: a semaphore without slots is never acquired")
        self._value = value

    def __reduce__(self) -> Any:
        return (type(self), (self._cache, self._key, self._value, self._expire, self._tag))

    def _slots(self) -> list[tuple[str, float | None]]:
        """Return token and end of the lease of every live owner."""
        found = self._cache.get(self._key, ())
        now = self._atomic.now()
        try:
            return [(token, until) for token, until in found if until is None or until > now]
        except (TypeError, ValueError):
            raise _foreign(self._noun, self._key, found) from None

    def _store(self, slots: list[tuple[str, float | None]]) -> None:
        """Store the owners; the entry lives as long as the last of them."""
        ends = [until for _, until in slots if until is not None]
        if slots:
            expire = None if len(ends) < len(slots) else max(max(ends) - self._atomic.now(), 0.0)
            self._cache.set(self._key, slots, expire=expire, tag=self._tag, retry=True)
        else:
            self._cache.delete(self._key, retry=True)

    def _until(self) -> float | None:
        return min((until for _, until in self._slots() if until is not None), default=None)

    def _take(self, owner: Owner, wait: float | None) -> bool:
        if len(self._slots()) >= self._value:
            return False
        token = secrets.token_hex(16)
        with self._atomic.transaction(wait):
            slots = self._slots()
            if len(slots) >= self._value:
                return False
            self._store([*slots, (token, self._atomic.expiry(self._expire))])
        self._took(owner, token)
        return True

    def _give(self, token: str, wait: float | None) -> bool:
        with self._atomic.transaction(wait):
            slots = self._slots()
            others = [slot for slot in slots if slot[0] != token]
            if len(others) == len(slots):
                return False
            self._store(others)
            return True

    def _renew(self, token: str, expire: Expiry | None, wait: float | None) -> bool:
        with self._atomic.transaction(wait):
            slots = dict(self._slots())
            if token not in slots:
                return False
            slots[token] = self._atomic.expiry(expire)
            self._store(list(slots.items()))
            return True

    def _owns(self, token: str) -> bool:
        return token in dict(self._slots())

    def _owners(self) -> Counter[str]:
        return Counter(token for token, _ in self._slots())

    def _releaser(self) -> Owner:
        # A thread or task that holds no slot releases another's, as `threading.BoundedSemaphore` allows.
        owner = current_owner()
        if self._last(owner) is None:
            for other, _ in self._held[::-1]:
                if other.process == owner.process:  # a forked child does not own what its parent acquired
                    return other
        return owner


def _foreign(noun: str, key: Any, found: Any) -> TypeError:
    return TypeError(
        f"value of key {key!r} is {found!r}, expected that of a {noun}; use another key for one of the two"
    )
