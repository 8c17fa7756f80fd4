"""Misuse: what a caller meant who wrote an argument or a setting that does not exist, or gave one of a wrong kind."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar

from ..errors import SettingError, named

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

# What other caches call things, behind what is called so here.
_ELSEWHERE: Final = {
    "size_limit": "max_size maxbytes max_bytes size limit cachesize",
    "max_entries": "maxsize max_items maxitems maxlen max_len max_length capacity",
    "expire": "ttl timeout expiry expires expiration ex lifetime max_age seconds",
    "timeout": "wait lock_timeout busy_timeout",
    "eviction_policy": "policy eviction evict",
    "directory": "path dir folder cache_dir directory_path location",
    "compressor": "compress compression",
    "serializer": "codec serialization",
    "key": "key_func keyfunc make_key key_builder",
    "ignore": "exclude skip",
    "when": "cache_if condition unless",
    "tags": "tag",
    "tag": "tags",
    "name": "prefix",
}
# What no cache takes when it is opened, and where it belongs.
_PLACES: Final = {
    "expire": "give expire= to set, memoize or another operation that writes, or default_expire= for all of them",
    "tag": "give tag= to set, memoize or another operation that writes",
    "tags": "give tags= to set, memoize or another operation that writes",
    "shards": "use FanoutCache(directory, shards=...)",
    "maxlen": "use Deque(directory=..., maxlen=...)",
}
_NEAR: Final = 0.85  # how alike a name and a setting are, from 0 to 1, if the one is the other misspelt


class NoOthers(TypedDict):
    """The keyword arguments that an operation takes beside those that it names: none."""


def hint(name: object, known: Collection[str]) -> str:
    """Return which of the `known` names was meant, as a part of a sentence; '' where nobody can tell."""
    import difflib  # late: only errors need it

    word = str(name).lower()
    meant = [own for own, others in _ELSEWHERE.items() if own in known and word in others.split()]
    meant = meant or difflib.get_close_matches(word, known, 1)
    return f": did you mean {meant[0]!r}?" if meant else ""


def place(name: object) -> str:
    """Return where an argument belongs that a cache is opened with by mistake, '' if that is unknown."""
    words = [str(name), *(own for own, others in _ELSEWHERE.items() if str(name).lower() in others.split())]
    return next((_PLACES[word] for word in words if word in _PLACES), "")


def unexpected(function: Callable[..., Any], given: Iterable[str], others: Iterable[str] = ()) -> TypeError:
    """Return the error for keyword arguments that a function does not take; `others`: what it takes, unnamed."""
    parameters = inspect.signature(function).parameters.values()
    named = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD and each.name != "self"]
    known = [*named, *others]
    name = next(each for each in given if each not in known)
    found = hint(name, known) or ","
    return TypeError(f"{function.__name__} has no argument {name!r}{found} expected some of {', '.join(known)}")


# What an argument has to be. Each of these returns it, or raises TypeError with its name and what is expected.


def wrong(name: str, given: object, what: str) -> TypeError:
    """Return the error for an argument that is not what is expected."""
    return TypeError(f"{name} is {named(given):.80}, expected {what}")


def several(name: str, given: Iterable[T], what: str, characters: bool = False) -> Iterable[T]:
    """Return an iterable; one text is none, unless its `characters` may be meant."""
    is_text = isinstance(given, str | bytes)
    if (is_text and not characters) or not any(hasattr(type(given), way) for way in ("__iter__", "__getitem__")):
        raise wrong(name, given, what)
    return given


def in_pairs(name: str, given: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield (key, value) pairs; for a member that is too short or long it raises ValueError, as `dict` does."""
    for pair in given:
        try:
            key, value = pair
        except (TypeError, ValueError) as error:
            kind = ValueError if isinstance(error, ValueError) else TypeError
            raise kind(f"{name} has {named(pair):.80}, expected (key, value) pairs, or a mapping") from None
        yield key, value


def whole(name: str, given: object, what: str = "a whole number") -> int:
    """Return an integer."""
    try:
        return operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        raise wrong(name, given, what) from None


def called(name: str, given: F, what: str) -> F:
    """Return what can be called."""
    if not callable(given):
        raise wrong(name, given, what)
    return given


class Spelled:
    """An object whose settings are assigned as attributes, and that refuses what is nearly the name of one.

    Subclasses may have any other attributes of their own.
    """

    _ASSIGNED: Mapping[str, str] = {}  # names that are settings, or would be taken for some; how each is assigned

    if not TYPE_CHECKING:  # or type checkers would accept every name

        def __setattr__(self, name: str, value: object) -> None:
            if not name.startswith("_") and not hasattr(type(self), name):
                import difflib  # late: only public attributes need it, which are assigned rarely

                for meant in difflib.get_close_matches(name.lower(), self._ASSIGNED, 1, _NEAR):
                    if name not in vars(self):  # where it is one of a Disk's own settings
                        what = f"{type(self).__name__} has no attribute {name!r} to assign"
                        raise SettingError(f"{what}: {self._ASSIGNED[meant].format(name=meant)}")
            super().__setattr__(name, value)
