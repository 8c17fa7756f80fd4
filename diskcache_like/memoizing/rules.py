"""Rules: how a value is computed, for how long it is kept, and what callers get while it cannot be computed."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple

from ..encoding.classes import PROCESS_REGISTRY
from ..encoding.made_keys import HIDDEN
from ..encoding.record import ETAG_LIMIT, Metadata
from ..encoding.tags import join_hidden, pack_tags, split_tags
from ..errors import ExpiryError, SettingError, TagError
from ..settings.lifetimes import Expiry, moment_of, seconds_of

RENEWAL_PAUSE = 1.0  # seconds after a renewal has failed before another one begins
ERROR_PAUSE = 30.0  # seconds for which an old value is served after an error before it is tried again
Lifetime = Expiry


def _lifetime(name: str, given: Any) -> float:
    """Return the seconds of an option; raise ExpiryError, with its name, for what is no lifetime."""
    with contextlib.suppress(ExpiryError):
        seconds = seconds_of(given)
        if seconds >= 0:
            return seconds
    raise ExpiryError(f"{name} is {given!r}, expected seconds, 0 or more, a timedelta, or text such as '90s' or '2h5m'")


def _check_expiry(name: str, given: Any) -> None:
    """Raise ExpiryError for what is no expiry."""
    if isinstance(given, datetime):
        moment_of(given)
    else:
        _lifetime(name, given)


def _seconds_until(given: Any, now: float) -> float:
    """Return the seconds from a moment until an expiry."""
    return moment_of(given) - now if isinstance(given, datetime) else seconds_of(given)


def _is_amount(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and given >= 0  # NaN is not


def _is_number_of_calls(given: Any) -> bool:
    return type(given) is int and given >= 1


def hidden_tag(scope: str) -> bytes:
    """Return the hidden tag of a memoized function's results."""
    return bytes((HIDDEN, 2)) + blake2b(scope.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class Breaker(NamedTuple):
    """When to stop calling what fails: after `errors` errors within `window` seconds, for `open` seconds.

    Then `probes` calls at a time are let through, the first of which that succeeds closes it. The state is in the
    cache, so all processes share it.
    """

    errors: int = 5
    window: float = 60.0
    open: float = 30.0
    probes: int = 1


@dataclass(frozen=True)
class StoredError:
    """An error of a computation that was kept instead of a result."""

    kind: str
    arguments: tuple[Any, ...]


# Entries hold this name, so it stays as it is, wherever the class goes.
PROCESS_REGISTRY.add(StoredError, "diskcache_like.operations.rules.StoredError")


class Computing:
    """What `get_or_set` hands to a function that takes an argument: the old value, and how to keep the new one."""

    def __init__(self, old: Any, age: float | None, etag: bytes) -> None:
        self.old = old  # the value that was there, None if there is none
        self.age = age  # seconds since it was computed
        self.etag = etag  # that was kept with it; assign another to keep it with the new one
        self.expire: Any = ...  # assign a lifetime to have it instead of that of the call
        self.tags: Iterable[Any] | None = None  # assign tags to have them instead of those of the call
        self.store = True  # assign False to return the result without keeping it
        self.renewed = False

    def not_modified(self) -> Any:
        """Keep the old value, which must be there, and its tags for another lifetime; return what this returns."""
        self.renewed = True
        return self.old


@dataclass(frozen=True)
class Rules:
    """The options of `get_or_set` and `memoize`, checked; see there for what they mean."""

    expire: Any = None
    tags: Any = None
    stale_while_revalidate: Any = 0
    stale_if_error: Any = 0
    soft_timeout: float | None = None
    hard_timeout: float | None = None
    beta: float | None = None
    jitter: float = 0.0
    when: Callable[[Any], bool] | None = None
    none_expire: Any = ...
    cache_errors: Any = ()  # a tuple of classes, once it is checked
    error_expire: Any = None
    max_concurrent: int | None = None
    breaker: Breaker | None = None
    on_error: str = "warn"
    admit: str = "always"
    sliding: bool = False
    valid: Callable[[Any], bool] | None = None
    hidden: bytes = b""  # tag of a memoized function
    asks: bool = False  # the function takes a `Computing`

    def __post_init__(self) -> None:
        for name in ("stale_while_revalidate", "stale_if_error"):
            window = getattr(self, name)
            if isinstance(window, bool):  # it looks like a switch, and would be a second
                raise ExpiryError(f"{name} is {window!r}, expected for how long, such as 60 or '5m'")
            object.__setattr__(self, name, _lifetime(name, window))
        for name, seconds in (("expire", self.expire), ("none_expire", self.none_expire)):
            if seconds is not ... and not callable(seconds):
                _check_expiry(name, seconds)
        _check_expiry("error_expire", self.error_expire)
        self._check_functions()
        if self.sliding and (self.expire is None or self._varies):
            raise SettingError(
                f"sliding=True needs an expire that every hit can renew, such as 600; it is {self.expire!r}"
            )
        self._check_numbers()
        self._check_words()
        if not callable(self.tags):
            if isinstance(self.tags, Iterator):  # it gives them only once
                object.__setattr__(self, "tags", tuple(self.tags))
            pack_tags(tags=self.tags)
        given = self.cache_errors
        errors: Any = given if isinstance(given, tuple) else (given,)
        if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in errors):
            raise SettingError(f"cache_errors is {given!r}, expected a class of exceptions or a tuple of them")
        object.__setattr__(self, "cache_errors", errors)

    def _check_functions(self) -> None:
        for name in ("when", "valid"):
            given = getattr(self, name)
            if not (given is None or callable(given)):
                raise SettingError(f"{name} is {given!r}, expected a function of the result, or None")

    def _check_words(self) -> None:
        for name, one, other in (("on_error", "warn", "raise"), ("admit", "always", "second-miss")):
            if getattr(self, name) not in (one, other):
                raise SettingError(f"{name} is {getattr(self, name)!r}, expected {one!r} or {other!r}")

    def _check_numbers(self) -> None:
        for name in ("soft_timeout", "hard_timeout", "beta"):
            number = getattr(self, name)
            if number is not None and not _is_amount(number):
                raise SettingError(f"{name} is {number!r}, expected a number, 0 or more, or None")
        if not _is_amount(self.jitter) or self.jitter > 1:
            raise SettingError(f"jitter is {self.jitter!r}, expected a part from 0 to 1")
        most = self.max_concurrent
        if most is not None and not _is_number_of_calls(most):
            raise SettingError(f"max_concurrent is {most!r}, expected a number of calls, 1 or more, or None")
        breaker: Any = self.breaker
        if breaker is not None and not (
            isinstance(breaker, Breaker)
            and _is_number_of_calls(breaker.errors)
            and _is_number_of_calls(breaker.probes)
            and _is_amount(breaker.window)
            and _is_amount(breaker.open)
        ):
            raise SettingError(
                f"breaker is {breaker!r}, expected a Breaker of at least 1 error and 1 probe, and of seconds, 0 or more"
            )

    @property
    def looks_at_hits(self) -> bool:
        """Tell whether there is more to do with a value that is there than to return it."""
        return self.sliding or self.valid is not None

    def accepts(self, value: Any) -> bool:
        """Tell whether a value that is there may be used."""
        return self.valid is None or bool(self.valid(value))

    @property
    def is_bare(self) -> bool:
        """Tell whether an old value is never of use."""
        return not (self.stale_while_revalidate or self.stale_if_error or self.beta)

    @cached_property
    def is_plain(self) -> bool:
        """Tell whether nothing matters but for how long a result is kept."""
        others = self.cache_errors or self.max_concurrent or self.breaker or self.asks or self.looks_at_hits
        timeouts = self.soft_timeout, self.hard_timeout
        return self.is_bare and self.keeps and self.admits_all and not others and timeouts == (None, None)

    @property
    def admits_all(self) -> bool:
        """Tell whether a result is stored although its key was not asked for before."""
        return self.admit == "always"

    @cached_property
    def keeps(self) -> bool:
        """Tell whether a result may be kept at all."""
        return self._varies or seconds_of(self.expire) > 0

    @cached_property
    def patience(self) -> float:
        """Return for how many seconds others wait for a computation at least."""
        return 0.0 if self._varies or math.isinf(seconds := seconds_of(self.expire)) else seconds

    @property
    def _varies(self) -> bool:
        """Tell whether the lifetime is known only when there is a result."""
        return callable(self.expire) or isinstance(self.expire, datetime)

    def lifetime_of(self, value: Any, given: Any = ...) -> Any:
        """Return the lifetime of a result, for which its function may have given one."""
        if given is ...:
            given = self.none_expire if value is None and self.none_expire is not ... else self.expire
        return given(value) if callable(given) else given

    def metadata(
        self, value: Any, context: Computing, now: float, cost: float, default: float | None = None
    ) -> Metadata | None:
        """Return how a result is kept, None if it is not kept. `default`: the lifetime where none is given."""
        if not context.store or (self.when is not None and not self.when(value)):
            return None
        given = self.lifetime_of(value, context.expire)
        return self._kept(default if given is None else given, value, context, now, cost)

    def error_metadata(self, context: Computing, now: float, default: float | None = None) -> Metadata | None:
        """Return how an error is kept."""
        given = self.expire if self.error_expire is None else self.error_expire
        if callable(given):
            return None
        return self._kept(default if given is None else given, None, context, now, 0.0, windows=False)

    def _kept(
        self, given: Any, value: Any, context: Computing, now: float, cost: float, windows: bool = True
    ) -> Metadata | None:
        seconds = _seconds_until(given, now)
        if not seconds > 0:
            return None
        seconds *= 1 - random.random() * self.jitter
        etag: Any = context.etag
        if not isinstance(etag, bytes) or len(etag) > ETAG_LIMIT:
            raise TagError(f"etag is {etag!r:.80}, expected {ETAG_LIMIT} bytes at most")
        packed = self._packed_tags(value, context)
        if math.isinf(seconds):
            return Metadata(None, packed, None, now, 0.0, etag)
        window = max(self.stale_while_revalidate, self.stale_if_error) if windows else 0
        retain_until = now + seconds + window if window else None
        return Metadata(now + seconds, packed, retain_until, now, cost * (self.beta or 0.0), etag)

    def _packed_tags(self, value: Any, context: Computing) -> bytes:
        tags = self.tags if context.tags is None else context.tags
        if callable(tags):
            return self._with_hidden(tags(value))
        return self._fixed_tags if context.tags is None else self._with_hidden(tags)

    @cached_property
    def _fixed_tags(self) -> bytes:
        """Return the tags of a result, packed, where neither it nor its function has a say in them."""
        return self._with_hidden(self.tags)

    def _with_hidden(self, tags: Any) -> bytes:
        packed = pack_tags(tags=tags)
        return join_hidden({*split_tags(packed), self.hidden}) if self.hidden else packed
