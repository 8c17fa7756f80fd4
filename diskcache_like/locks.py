"""Locks between threads, asyncio tasks and processes, each an entry of a cache that names its owners by tokens.

Only an owner's token releases, so a release that comes too late cannot free the next owner. With `expire` a lock is a
lease, which frees itself when its owner is slow or dead. Who finds it taken notes the generation of the entry's slot
before looking, and sleeps only while that is still there (`coherence.sleepers`): every release changes it.

The entry must not be evicted: where the cache may become full, set its eviction policy to 'none'.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from types import TracebackType
from typing import Any

from .cache import Cache
from .coherence.sleepers import pauses, slices
from .entries import ENOVAL
from .errors import CacheError, LeaseLost, NotOwner, Timeout, TransactionError
from .interrupts import suppress
from .packing import Expiry
from .places import Holder, Place, current_holder

WRITE = 0.1  # seconds that a try may last longer, for those who write something else just now
REMEMBERED = 1000  # leases that ran out whose owners may still come to hear of it; those before get a plain NotOwner


class _Shared:
    """Acquire and release, waiting or awaiting, in terms of the atomic steps `_take` and `_give` of each lock."""

    _noun = "lock"

    def __init__(self, cache: Cache, key: Any, expire: Expiry | None = None, tag: Any = None) -> None:
        self._cache = cache
        self._key = key
        self._expire = expire
        self._tag = tag
        self._place = Place(cache, key)
        # What was acquired through this object and not given back yet, in that order. A list's own steps are atomic.
        self._held: list[tuple[Holder, str]] = []
        self._most = 2 * REMEMBERED  # of them, until it is looked through for those that nobody gives back any more

    def __reduce__(self) -> Any:
        return (type(self), (self._cache, self._key, self._expire, self._tag))

    # Each of the three gets `wait`, the seconds to wait for the shard's write lock, and raises Timeout after them.

    def _take(self, holder: Holder, wait: float | None) -> bool:
        """Become an owner if that is possible now."""
        raise NotImplementedError

    def _give(self, token: str, wait: float | None) -> bool:
        """Give back what `token` owns; return False if it owns nothing any more."""
        raise NotImplementedError

    def _renew(self, token: str, expire: Expiry | None, wait: float | None) -> bool:
        """Start the lease of `token` anew; return False if it owns nothing any more."""
        raise NotImplementedError

    def _owns(self, token: str) -> bool:
        """Tell whether `token` is an owner's."""
        raise NotImplementedError

    def _owners(self) -> Counter[str]:
        """Return the token of each owner, and how many times it has acquired."""
        raise NotImplementedError

    def _until(self) -> float | None:
        """Return when the first lease ends that is in the way, if it has an end."""
        until: float | None = self._cache.get(self._key, expire_time=True)[1]
        return until

    def acquire(self) -> None:
        """Take the lock, waiting as long as it takes."""
        self._acquire(None)

    def try_acquire(self, timeout: float = 0.0) -> bool:
        """Take the lock if that is possible within `timeout` seconds; return whether it was.

        Who writes other entries meanwhile is waited for 0.1 s longer, so that a lock that is free is seldom not got.
        """
        return self._acquire(time.monotonic() + timeout)

    def _acquire(self, deadline: float | None) -> bool:
        holder = current_holder()
        for seconds in slices():
            stamp = self._place.stamp()
            if self._take_by(holder, deadline):
                return True
            if deadline is not None:
                seconds = min(seconds, deadline - time.monotonic())
                if seconds <= 0:
                    return False
            self._refuse_transaction()
            if self._expire is not None:
                seconds = min(seconds, self._place.left(self._until()))
            self._place.sleep(stamp, seconds)
        raise AssertionError("slices never end")

    def _take_by(self, holder: Holder, deadline: float | None) -> bool:
        """Like `_take`, but who holds the shard's write lock beyond the deadline is in the way like an owner."""
        if deadline is None:
            return self._take(holder, None)
        try:
            return self._take(holder, max(deadline + WRITE - time.monotonic(), 0.0))
        except Timeout:
            return False

    def release(self) -> None:
        """Free the lock; raise NotOwner if the caller does not hold it, LeaseLost if it no longer does.

        The caller is the asyncio task that runs, or else the thread.
        """
        holder = self._releaser()
        token = self._pop(holder)
        try:
            owned = self._give(token, None)
        except BaseException:
            self._took(holder, token)
            raise
        self._gave(owned)

    def extend(self, expire: Expiry | None = None) -> None:
        """Start the lease anew, for `expire` seconds (default: as when made); raise NotOwner or LeaseLost."""
        token = self._token(current_holder())
        if not self._renew(token, self._expire if expire is None else expire, None):
            raise self._lost()

    async def aextend(self, expire: Expiry | None = None) -> None:
        """Like `extend`, for the running asyncio task, without blocking the event loop."""
        import asyncio

        token = self._token(current_holder())
        for seconds in pauses():
            try:
                if not self._renew(token, self._expire if expire is None else expire, 0):
                    raise self._lost()
            except Timeout:  # another one writes just now
                await asyncio.sleep(seconds)
            else:
                return

    def held(self) -> bool:
        """Tell whether the calling task or thread holds the lock, its lease not having run out."""
        token = self._last(current_holder())
        return token is not None and self._owns(token)

    async def aacquire(self) -> None:
        """Like `acquire`, for the running asyncio task; the event loop is never blocked."""
        await self._acquire_async(current_holder())

    async def _acquire_async(self, holder: Holder) -> None:
        import asyncio

        for seconds in pauses():
            try:
                if self._take(holder, 0):
                    return
            except Timeout:  # another one writes just now
                pass
            self._refuse_transaction()
            await asyncio.sleep(seconds)

    async def arelease(self) -> None:
        """Like `release`, for the running asyncio task; if that is cancelled, the lock is released all the same."""
        import asyncio

        holder = self._releaser()
        token = self._pop(holder)
        try:
            owned = await self._give_async(token)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._took(holder, token)
            raise
        self._gave(owned)

    async def _give_async(self, token: str) -> bool:
        import asyncio

        for seconds in pauses():
            try:
                return self._give(token, 0)
            except Timeout:
                try:
                    await asyncio.sleep(seconds)
                except asyncio.CancelledError:
                    self._give(token, None)
                    self._place.wake()
                    raise
        raise AssertionError("pauses never end")

    def _refuse_transaction(self) -> None:
        if self._place.in_transaction():
            raise TransactionError(
                f"{self._noun} {self._key!r} is held, and its release cannot be seen from within transact()"
            )

    def _releaser(self) -> Holder:
        """Return the holder whose token the caller gives back."""
        return current_holder()

    def _last(self, holder: Holder) -> str | None:
        """Return the token that `holder` acquired last and has not given back."""
        return next((token for each, token in self._held[::-1] if each is holder), None)

    def _token(self, holder: Holder) -> str:
        """Like `_last`, but raise NotOwner if there is none."""
        token = self._last(holder)
        if token is None:
            raise NotOwner(
                f"cannot release or extend {self._noun} {self._key!r}: it is not held by this task or thread"
            )
        return token

    def _pop(self, holder: Holder) -> str:
        """Take out the token that `holder` acquired last."""
        token = self._token(holder)
        try:
            self._held.remove((holder, token))
        except ValueError:  # another thread gives it back just now
            raise NotOwner(f"{self._noun} {self._key!r} is released by two threads at once") from None
        return token

    def _took(self, holder: Holder, token: str) -> None:
        self._held.append((holder, token))
        if len(self._held) > self._most:
            with suppress(CacheError, TypeError):  # it is taken, whatever is wrong with its entry
                self._forget_lost()

    def _forget_lost(self) -> None:
        """Forget the oldest leases that ran out: who leaves each of them to run out would have them all kept."""
        held = self._held[::-1]  # before the owners: what is added meanwhile is not looked at
        owners, lost = self._owners(), 0
        for each in held:
            if owners[each[1]] > 0:
                owners[each[1]] -= 1
                continue
            lost += 1
            if lost > REMEMBERED:
                with suppress(ValueError):  # given back just now
                    self._held.remove(each)
        self._most = 2 * max(len(self._held), REMEMBERED)

    def _gave(self, owned: bool) -> None:
        self._place.wake()
        if not owned:
            raise self._lost()

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"{self._noun} {self._key!r} was lost while it was held: its lease (expire={self._expire!r}) ran out or "
            "its entry was removed; take a longer lease or extend it in time"
        )

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except NotOwner as lost:
            _tell(lost, error)

    async def __aenter__(self) -> None:
        await self.aacquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.arelease()
        except NotOwner as lost:
            _tell(lost, error)


def _tell(lost: NotOwner, error: BaseException | None) -> None:
    """Raise `lost`, but only note it on an error that is on its way already."""
    if error is None:
        raise lost
    error.add_note(str(lost))


class Lock(_Shared):
    """A lock between threads, asyncio tasks and processes under one key of a cache.

    With `expire` (seconds) it is a lease: it frees itself when the owner neither releases nor extends it in time, and
    the owner's `release` or `extend` then raises LeaseLost. Waiting ends with the release; no order is kept among those
    who wait. Use `async with` in coroutines.
    """

    def locked(self) -> bool:
        """Tell whether anyone holds the lock."""
        return self._key in self._cache

    def _is_free(self, found: Any) -> bool:
        """Tell whether an entry's value, or ENOVAL, means that nobody holds the lock."""
        return found is ENOVAL

    def _new_token(self, holder: Holder) -> str:
        return secrets.token_hex(16)

    def _take(self, holder: Holder, wait: float | None) -> bool:
        get, key = self._cache.get, self._key
        found = get(key, ENOVAL)
        if not self._is_free(found):
            return False
        token = self._new_token(holder)
        if found is ENOVAL and wait is None:  # one statement instead of a transaction
            if not self._cache.add(key, token, expire=self._expire, tag=self._tag, retry=True):
                return False
        else:
            with self._place.atomic(wait):
                if not self._is_free(get(key, ENOVAL)):
                    return False
                self._cache.set(key, token, expire=self._expire, tag=self._tag, retry=True)
        self._took(holder, token)
        return True

    def _give(self, token: str, wait: float | None) -> bool:
        with self._place.atomic(wait):
            return self._owns(token) and self._cache.delete(self._key, retry=True)

    def _renew(self, token: str, expire: Expiry | None, wait: float | None) -> bool:
        with self._place.atomic(wait):
            return self._owns(token) and self._cache.touch(self._key, expire, retry=True)

    def _owns(self, token: str) -> bool:
        return bool(self._cache.get(self._key) == token)

    def _owners(self) -> Counter[str]:
        return Counter([str(self._cache.get(self._key))])


class RLock(_Shared):
    """A lock like `Lock` that its owner, a thread or an asyncio task, may acquire again and again.

    It is free when it was released as many times. Each acquisition starts the lease anew. Two objects with the same
    cache and key are the same lock.
    """

    def _state(self) -> tuple[str | None, int]:
        """Return the owner and how many times it has acquired."""
        return self._told(self._cache.get(self._key))

    def _told(self, found: Any) -> tuple[str | None, int]:
        """Return what an entry's value, or None, says of owner and count."""
        if found is None:
            return None, 0
        try:
            owner, count = found
            return str(owner), int(count)
        except (TypeError, ValueError):
            raise _foreign(self._noun, self._key, found) from None

    def _take(self, holder: Holder, wait: float | None) -> bool:
        if self._state()[0] not in (None, holder.name):
            return False
        with self._place.atomic(wait):
            owner, count = self._state()
            if owner not in (None, holder.name):
                return False
            self._store(holder.name, count + 1, self._expire)
        self._took(holder, holder.name)
        return True

    def _store(self, owner: str, count: int, expire: Expiry | None) -> None:
        self._cache.set(self._key, (owner, count), expire=expire, tag=self._tag, retry=True)

    def _give(self, token: str, wait: float | None) -> bool:
        with self._place.atomic(wait):
            found, until = self._cache.get(self._key, expire_time=True)
            owner, count = self._told(found)
            if owner != token:
                return False
            if count > 1:  # and the lease is left as it is
                self._store(token, count - 1, None if until is None else max(until - self._cache._clock(), 0.0))
            else:
                self._cache.delete(self._key, retry=True)
            return True

    def _renew(self, token: str, expire: Expiry | None, wait: float | None) -> bool:
        with self._place.atomic(wait):
            return self._owns(token) and self._cache.touch(self._key, expire, retry=True)

    def _owns(self, token: str) -> bool:
        return self._state()[0] == token

    def _owners(self) -> Counter[str]:
        owner, count = self._state()
        return Counter({str(owner): count})

    def _token(self, holder: Holder) -> str:
        if self._last(holder) is None and self._owns(holder.name):
            self._took(holder, holder.name)  # acquired through another object with the same key
        return super()._token(holder)


class BoundedSemaphore(_Shared):
    """A semaphore with `value` slots between threads, asyncio tasks and processes under one key of a cache.

    With `expire` (seconds) each slot is a lease of its own: the slots of dead owners come back one by one, and one that
    is late learns of it by LeaseLost. A release too many raises NotOwner. What one thread or task acquired another may
    release, through the same object.
    """

    _noun = "semaphore"

    def __init__(self, cache: Cache, key: Any, value: int = 1, expire: Expiry | None = None, tag: Any = None) -> None:
        super().__init__(cache, key, expire, tag)
        if value < 1:
            raise ValueError(f"value is {value!r}, expected 1 or more: a semaphore without slots is never acquired")
        self._value = value

    def __reduce__(self) -> Any:
        return (type(self), (self._cache, self._key, self._value, self._expire, self._tag))

    def _slots(self) -> list[tuple[str, float | None]]:
        """Return token and end of the lease of every live owner."""
        found = self._cache.get(self._key, ())
        now = self._cache._clock()
        try:
            return [(token, until) for token, until in found if until is None or until > now]
        except (TypeError, ValueError):
            raise _foreign(self._noun, self._key, found) from None

    def _store(self, slots: list[tuple[str, float | None]]) -> None:
        """Store the owners; the entry lives as long as the last of them."""
        ends = [until for _, until in slots if until is not None]
        lasts = len(ends) < len(slots)
        if slots:
            expire = None if lasts else max(max(ends) - self._cache._clock(), 0.0)
            self._cache.set(self._key, slots, expire=expire, tag=self._tag, retry=True)
        else:
            self._cache.delete(self._key, retry=True)

    def _until(self) -> float | None:
        ends = [until for _, until in self._slots() if until is not None]
        return min(ends, default=None)

    def _take(self, holder: Holder, wait: float | None) -> bool:
        if len(self._slots()) >= self._value:
            return False
        token = secrets.token_hex(16)
        with self._place.atomic(wait):
            slots = self._slots()
            if len(slots) >= self._value:
                return False
            self._store([*slots, (token, self._cache._expiry(self._expire))])
        self._took(holder, token)
        return True

    def _give(self, token: str, wait: float | None) -> bool:
        with self._place.atomic(wait):
            slots = self._slots()
            others = [slot for slot in slots if slot[0] != token]
            if len(others) == len(slots):
                return False
            self._store(others)
            return True

    def _renew(self, token: str, expire: Expiry | None, wait: float | None) -> bool:
        with self._place.atomic(wait):
            slots = dict(self._slots())
            if token not in slots:
                return False
            slots[token] = self._cache._expiry(expire)
            self._store(list(slots.items()))
            return True

    def _owns(self, token: str) -> bool:
        return token in dict(self._slots())

    def _owners(self) -> Counter[str]:
        return Counter(token for token, _ in self._slots())

    def _releaser(self) -> Holder:
        # A thread or task that holds none gives back another's, as one may with `threading.BoundedSemaphore`.
        holder = current_holder()
        if self._last(holder) is None:
            for other, _ in self._held[::-1]:
                if other.process == holder.process:  # not what a forked child only remembers
                    return other
        return holder


def _foreign(noun: str, key: Any, found: Any) -> TypeError:
    return TypeError(
        f"value of key {key!r} is {found!r}, expected that of a {noun}; use another key for one of the two"
    )
