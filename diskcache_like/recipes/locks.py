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
from typing import TYPE_CHECKING, Any, Unpack

from ..cache import Cache, atomic_key, refuse_in_transaction_of_face, without_face
from ..coherence.futex import pauses, slices
from ..encoding.record import Metadata
from ..entries.atomic_key import REMOVE, Decision
from ..entries.loading import ENOVAL
from ..entries.row_codec import with_expiry
from ..errors import CacheError, LeaseLost, NotOwner, Timeout, TransactionError, foreign
from ..settings.lifetimes import Expiry
from ..settings.misuse import NoOthers, unexpected, wrong
from ..system.signals import suppress
from ..system.tasks import sleep
from .owners import Owner, current_owner

if TYPE_CHECKING:
    from ..aio import AsyncCache


WRITE = 0.1  # seconds that a try may last longer while others write something else
REMEMBERED = 1000  # leases that ran out and still raise LeaseLost; the owners of older ones get a plain NotOwner


class _Shared:
    """Acquire and release, in threads or tasks, as each kind of lock decides by `_taken` and `_given`."""

    _noun = "lock"

    def __init__(
        self,
        cache: Cache | AsyncCache,
        key: Any,
        expire: Expiry | None = None,
        tag: Any = None,
        **others: Unpack[NoOthers],
    ) -> None:
        if others:
            raise unexpected(type(self), others)
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

    # In these, `wait` is the seconds to wait for the shard's write lock, after which they raise Timeout.

    def _take(self, owner: Owner, wait: float | None) -> bool:
        """Become an owner if that is possible now."""
        token = self._new_token(owner)
        # A look first, so that whoever waits for the lock does not take the write lock.
        if self._taken(self._cache.get(self._key, ENOVAL), token) is None:
            return False
        if not self._atomic.update(lambda found, _: self._taken(found, token), wait):
            return False
        self._held.append((owner, token))
        if len(self._held) > self._most:
            with suppress(CacheError, TypeError):  # the lock is taken, whatever is wrong with its entry
                self._forget_lost()
        return True

    def _renew(self, token: str, wait: float | None, expire: Expiry | None) -> bool:
        """Restart the lease of `token`; return False if it no longer owns anything."""
        lease = self._expire if expire is None else expire
        return self._atomic.update(lambda found, metadata: self._renewed(found, metadata, token, lease), wait)

    # What becomes of the entry, as each kind of lock decides: None if it stays as it is.

    def _new_token(self, owner: Owner) -> str:
        """Return the token by which an owner is to hold the lock."""
        return secrets.token_hex(16)

    def _taken(self, found: Any, token: str) -> Decision:
        """Decide what the entry is once `token` owns it, too, if that is possible."""
        raise NotImplementedError

    def _given(self, found: Any, metadata: Metadata, token: str) -> Decision:
        """Decide what is left once what `token` owns is released, if it owns anything."""
        raise NotImplementedError

    def _renewed(self, found: Any, metadata: Metadata, token: str, expire: Expiry | None) -> Decision:
        """Decide what the entry is once the lease of `token` begins anew, if it owns anything."""
        if token not in self._owners_in(found):
            return None
        return found, with_expiry(metadata, self._atomic.expiry(expire))

    def _owns(self, token: str) -> bool:
        """Tell whether `token` belongs to an owner."""
        return token in self._owners_in(self._cache.get(self._key, ENOVAL))

    def _owners_in(self, found: Any) -> dict[str, int]:
        """Return the token of each owner in an entry's value, and how many times it has acquired the lock."""
        raise NotImplementedError

    def _metadata(self) -> Metadata:
        """Return the metadata of an entry whose lease begins now."""
        return self._atomic.metadata(self._expire, self._tag)

    def _until(self) -> float | None:
        """Return when the first lease ends that keeps others out; None for never."""
        until: float | None = self._cache.get(self._key, expire_time=True)[1]
        return until

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock and return whether that was possible, as `threading.Lock.acquire` does.

        It waits for `timeout` seconds at most, -1 for as long as it takes. With `blocking=False` it does what
        `try_acquire` does. Raises ValueError for another negative timeout, and for one with `blocking=False`.
        """
        deadline = None if timeout == -1 else _deadline(timeout)
        if deadline is not None and (not blocking or not timeout >= 0):
            raise ValueError(
                f"timeout is {timeout!r}, expected -1 to wait without limit, or seconds, 0 or more, if blocking"
            )
        return self._acquire(deadline) if blocking else self.try_acquire()

    def try_acquire(self, timeout: float = 0.0) -> bool:
        """Take the lock if that is possible within `timeout` seconds; return whether it was.

        It waits up to 0.1 s longer for those who write other entries, so that it seldom fails to get a free lock.
        """
        return self._acquire(_deadline(timeout))

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
        token = self._token(owner)
        try:
            self._held.remove((owner, token))
        except ValueError:  # another thread is releasing it
            raise NotOwner(f"{self._noun} {self._key!r} is released by two threads at once") from None
        try:
            owned = self._atomic.update(lambda found, metadata: self._given(found, metadata, token), wait)
        except BaseException:
            self._held.append((owner, token))
            raise
        self._atomic.wake()
        if not owned:
            raise self._lost()

    def extend(self, expire: Expiry | None = None) -> None:
        """Restart the lease, for `expire` seconds (default: those of the lock); raise NotOwner or LeaseLost."""
        token = self._token(current_owner())
        if not self._renew(token, None, expire):
            raise self._lost()

    async def aextend(self, expire: Expiry | None = None) -> None:
        """Do what `extend` does for the running asyncio task, without blocking the event loop."""
        token = self._token(current_owner())
        for seconds in pauses():
            try:
                if not self._renew(token, 0, expire):
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

    def _forget_lost(self) -> None:
        """Forget the oldest leases that ran out; otherwise they pile up if a caller lets every lease run out."""
        held = self._held[::-1]  # copied before asking for the owners, so that nothing newer is taken for lost
        owners, lost = Counter(self._owners_in(self._cache.get(self._key, ENOVAL))), 0
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


def _deadline(timeout: float) -> float:
    try:
        return time.monotonic() + timeout
    except TypeError:
        raise wrong("timeout", timeout, "seconds") from None


class Lock(_Shared):
    """A lock between threads, asyncio tasks and processes under one key of a cache.

    With `expire` (seconds) it is a lease: it frees itself when the owner neither releases nor extends it in time, and
    the owner's `release` or `extend` then raises LeaseLost. Waiting ends with the release; waiters get the lock in no
    particular order. Use `async with` in coroutines.
    """

    def locked(self) -> bool:
        """Tell whether anyone holds the lock."""
        return self._key in self._cache

    def _taken(self, found: Any, token: str) -> Decision:
        return (token, self._metadata()) if found is ENOVAL else None

    def _given(self, found: Any, metadata: Metadata, token: str) -> Decision:
        return REMOVE if found == token else None

    def _owners_in(self, found: Any) -> dict[str, int]:
        return {str(found): 1}


class RLock(_Shared):
    """A lock like `Lock` that its owner, a thread or an asyncio task, may acquire again and again.

    It is free once it was released as many times. Each acquisition restarts the lease. Two objects with the same
    cache and key are the same lock.
    """

    def _new_token(self, owner: Owner) -> str:
        return owner.name

    def _taken(self, found: Any, token: str) -> Decision:
        name, count = self._state(found)
        return ((token, count + 1), self._metadata()) if name in (None, token) else None

    def _given(self, found: Any, metadata: Metadata, token: str) -> Decision:
        name, count = self._state(found)
        if name != token:
            return None
        return ((name, count - 1), metadata) if count > 1 else REMOVE  # the lease stays as it is

    def _state(self, found: Any) -> tuple[str | None, int]:
        """Return the name of the owner, and how many times it has acquired, from an entry's value."""
        if found is ENOVAL or found is None:
            return None, 0
        try:
            name, count = found
            return str(name), int(count)
        except (TypeError, ValueError):
            raise foreign(self._noun, self._key, found) from None

    def _owners_in(self, found: Any) -> dict[str, int]:
        name, count = self._state(found)
        return {str(name): count}

    def _token(self, owner: Owner) -> str:
        if self._last(owner) is None and self._owns(owner.name):
            self._held.append((owner, owner.name))  # acquired through another object with the same key
        return super()._token(owner)


class BoundedSemaphore(_Shared):
    """A semaphore with `value` slots between threads, asyncio tasks and processes under one key of a cache.

    With `expire` (seconds) each slot is a lease of its own: the slots of dead owners come back one by one, and an owner
    that is late gets LeaseLost. One release too many raises NotOwner. Through the same object, a thread or task may
    release what another one acquired.
    """

    _noun = "semaphore"

    def __init__(
        self,
        cache: Cache | AsyncCache,
        key: Any,
        value: int = 1,
        expire: Expiry | None = None,
        tag: Any = None,
        **others: Unpack[NoOthers],
    ) -> None:
        super().__init__(cache, key, expire, tag, **others)
        given: object = value
        if not isinstance(given, int) or given < 1:
            raise ValueError(
                f"value is {value!r}, expected a whole number, 1 or more: a semaphore without slots is never acquired"
            )
        self._value = value

    def __reduce__(self) -> Any:
        return (type(self), (self._cache, self._key, self._value, self._expire, self._tag))

    def _slots(self, found: Any) -> list[tuple[str, float | None]]:
        """Return token and end of the lease of every live owner, from an entry's value."""
        if found is ENOVAL:
            return []
        now = self._atomic.now()
        try:
            slots = [(token, until) for token, until in found if until is None or until > now]
        except (TypeError, ValueError):
            raise foreign(self._noun, self._key, found) from None
        if not all(
            isinstance(token, str) and (until is None or isinstance(until, int | float)) for token, until in slots
        ):
            raise foreign(self._noun, self._key, found)
        return slots

    def _stored(self, slots: list[tuple[str, float | None]]) -> Decision:
        """Return what becomes of the entry with these owners: it lives as long as the last of them."""
        if not slots:
            return REMOVE
        ends = [until for _, until in slots if until is not None]
        metadata = self._atomic.metadata(None, self._tag)
        return slots, metadata if len(ends) < len(slots) else with_expiry(metadata, max(ends))

    def _until(self) -> float | None:
        slots = self._slots(self._cache.get(self._key, ENOVAL))
        return min((until for _, until in slots if until is not None), default=None)

    def _taken(self, found: Any, token: str) -> Decision:
        slots = self._slots(found)
        if len(slots) >= self._value:
            return None
        return self._stored([*slots, (token, self._atomic.expiry(self._expire))])

    def _given(self, found: Any, metadata: Metadata, token: str) -> Decision:
        slots = self._slots(found)
        others = [slot for slot in slots if slot[0] != token]
        return self._stored(others) if len(others) < len(slots) else None

    def _renewed(self, found: Any, metadata: Metadata, token: str, expire: Expiry | None) -> Decision:
        slots = dict(self._slots(found))
        if token not in slots:
            return None
        slots[token] = self._atomic.expiry(expire)
        return self._stored(list(slots.items()))

    def _owners_in(self, found: Any) -> dict[str, int]:
        return {token: 1 for token, _ in self._slots(found)}

    def _releaser(self) -> Owner:
        # A thread or task that holds no slot releases another's, as `threading.BoundedSemaphore` allows.
        owner = current_owner()
        if self._last(owner) is None:
            for other, _ in self._held[::-1]:
                if other.process == owner.process:  # a forked child does not own what its parent acquired
                    return other
        return owner
