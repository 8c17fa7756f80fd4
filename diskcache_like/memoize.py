"""Memoize: a function's results kept in a cache, under keys made from its bound arguments.

The key of a call is the function's name and the arguments as its signature binds them, so that ``f(1)``, ``f(x=1)``
and ``f(1, 2)`` with the default given are one entry. For lambdas and nested functions, whose names say little, a digest
of the code and of what it closes over is part of the name; a named function keeps its key when it is edited.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import Callable, Iterable
from datetime import timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, Protocol, Self, TypeVar, overload

from . import keys
from .coherence.sleepers import pauses
from .errors import KeyEncodeError, Timeout

if TYPE_CHECKING:
    from .cache import Cache
    from .packing import Expiry

LONG_KEY = 1024  # bytes of an encoded key from which on its digest is the key
SHORT = LONG_KEY // 32  # characters up to which a text in a key with few parts is no reason to look further
FEW = 8  # parameters of a function whose key need not be looked into any further if each of them is short
_PLAIN = frozenset((int, bool, type(None)))  # types of arguments that are keys by themselves, and short
_MISSING = object()

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")
T = TypeVar("T")


class CacheInfo(NamedTuple):
    """What `cache_info` tells."""

    hits: int
    misses: int
    maxsize: int | None
    currsize: int


class Memoized(Protocol[P, R_co]):
    """What the decorator makes of a function: one with the same signature, and more."""

    __name__: str
    __qualname__: str

    @property
    def __wrapped__(self) -> Callable[P, R_co]:
        """Return the function itself."""
        ...

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Return the cached result, or call the function and keep what it returns."""
        ...

    @overload
    def __get__(self, instance: None, owner: type, /) -> Self: ...
    @overload
    def __get__(self: Memoized[Concatenate[S, Q], T], instance: S, owner: type | None = None, /) -> Callable[Q, T]: ...

    def __cache_key__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Return the key under which the result of a call with these arguments is kept."""
        ...

    def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Remove the result of a call with these arguments; return whether there was one. Atomic."""
        ...

    def cache_info(self) -> CacheInfo:
        """Return hits, misses, maxsize and currsize, as `functools.lru_cache` names them.

        Hits and misses are the calls of this one wrapper in this process. `maxsize` is None, since no number of entries
        is the limit; `currsize` is the number of entries in the whole cache, of all functions and processes.
        """
        ...


def seconds_of(expire: Expiry | None) -> float:
    """Return the seconds that a result is kept; infinity for None."""
    return math.inf if expire is None else expire.total_seconds() if isinstance(expire, timedelta) else expire


def full_name(func: Callable[..., Any]) -> str:
    """Return the module and qualified name of a function."""
    return f"{func.__module__}.{func.__qualname__}"


def function_name(function: Callable[..., Any]) -> str:
    """Return the name that results of `function` are kept under.

    Functions that share a module and qualified name but not their code or closure get different names.
    """
    return _name(function, [])


def _name(function: Callable[..., Any], met: list[Callable[..., Any]]) -> str:
    """Return the name of a function, `met` being those on the way to it: nested functions may close over themselves."""
    name = full_name(function)
    code = getattr(function, "__code__", None)
    if code is None or ("<lambda>" not in name and "<locals>" not in name):
        return name
    met.append(function)
    digest = blake2b(digest_size=16)
    _digest_code(code, digest.update)
    for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        digest.update(variable.encode() + _digest_of_cell(cell, met))
    return f"{name}:{digest.hexdigest()}"


def _digest_code(code: types.CodeType, update: Callable[[bytes], None]) -> None:
    """Digest what a code object does, without the file and lines that it stands in."""
    update(code.co_code)
    update(repr((code.co_names, code.co_varnames, code.co_freevars, code.co_flags)).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _digest_code(constant, update)
        elif isinstance(constant, frozenset):
            update(repr(sorted(map(repr, constant))).encode())  # the order of a set differs between processes
        else:
            update(repr((type(constant).__name__, constant)).encode())


def _digest_of_cell(cell: types.CellType, met: list[Callable[..., Any]]) -> bytes:
    """Return bytes for a closed-over value."""
    try:
        value = cell.cell_contents
    except ValueError:
        return b"empty"  # the function's own name, not bound yet
    return _digest_of(value, met)


def _digest_of(value: Any, met: list[Callable[..., Any]]) -> bytes:
    """Return bytes for a value: the value where it can be a key, else a function's code or the type."""
    while _is_memoized(value):
        value = value.__wrapped__  # its wrapper closes over counts, which change
    if isinstance(value, types.FunctionType):
        number = next((number for number, each in enumerate(met) if each is value), None)
        return (_name(value, met) if number is None else f"function {number}").encode()
    try:
        return keys.encode_key(value)
    except (KeyEncodeError, ValueError):
        return f"{type(value).__module__}.{type(value).__qualname__}".encode()


def _is_memoized(value: Any) -> bool:
    """Tell whether a value is what a decorator of this package returned, and not what another one made of that."""
    if not (isinstance(value, types.FunctionType) and hasattr(value, "__wrapped__")):
        return False
    return value.__globals__["__name__"] in (__name__, f"{__package__}.stampede")


def key_maker(
    function: Callable[..., Any], name: str, typed: bool, ignore: Iterable[int | str]
) -> Callable[..., tuple[Any, ...]]:
    """Return a function of the same signature that returns the key of a call.

    It is compiled from the parameter names, as dataclasses does for `__init__`, because `Signature.bind` costs more
    than a cache hit. Long keys are replaced by their digest. Raises TypeError for arguments that the function would not
    take.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return _bounded(_any_signature(name, typed, frozenset(ignore)))
    ignored = frozenset(ignore)
    mark = "__"  # begins the names of what is not a parameter: no parameter's name begins with it
    while any(parameter.startswith(mark) for parameter in signature.parameters):
        mark += "_"
    namespace: dict[str, Any] = {f"{mark}name": name, f"{mark}type": type, f"{mark}types": _types_of}
    heads, parts = _parameters(signature, ignored, namespace, mark)
    # Each parameter is one field, *args and **kwargs too, or else an argument of one could pass for one of the other.
    fields = "".join(f"{part}, " for part, _ in parts)
    types_ = ", ".join(part_types for _, part_types in parts)
    tail = f", ({types_},)" if typed and parts else ""
    source = f"def __key__({', '.join(heads)}):\n    return ({mark}name, ({fields}){tail})"
    exec(compile(source, f"<key of {name}>", "exec"), namespace)  # noqa: S102 - built from identifiers only
    maker: Callable[..., tuple[Any, ...]] = namespace["__key__"]
    return _bounded(maker, plain=not typed and len(parts) <= FEW)


def _parameters(
    signature: inspect.Signature, ignored: frozenset[int | str], namespace: dict[str, Any], mark: str
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the parameter list of the key function, and the expressions that make up the key, each with its types'.

    A position in `ignored` is one of the call: it can name one of *args, but nothing that is given by keyword only.
    """
    heads: list[str] = []
    parts: list[tuple[str, str]] = []
    seen_star = slash_due = False
    for position, parameter in enumerate(signature.parameters.values()):
        kind, name = parameter.kind, parameter.name
        if slash_due and kind is not parameter.POSITIONAL_ONLY:
            heads.append("/")
        slash_due = kind is parameter.POSITIONAL_ONLY
        if kind is parameter.KEYWORD_ONLY and not seen_star:
            heads.append("*")
            seen_star = True
        kept = name not in ignored
        if kind is parameter.VAR_POSITIONAL:
            seen_star = True
            heads.append(f"*{name}")
            namespace[f"{mark}rest"] = _rest(position, ignored)
            parts += [(f"{mark}rest({name})", f"{mark}types({mark}rest({name}))")] if kept else []
        elif kind is parameter.VAR_KEYWORD:
            heads.append(f"**{name}")
            namespace[f"{mark}named"] = _named(ignored)
            parts += (
                [(f"{mark}named({name})", f"{mark}types(value for _, value in {mark}named({name}))")] if kept else []
            )
        else:
            default = parameter.default is not parameter.empty
            namespace[f"{mark}default_{name}"] = parameter.default
            heads.append(f"{name}={mark}default_{name}" if default else name)
            kept = kept and (position not in ignored or kind is parameter.KEYWORD_ONLY)
            parts += [(name, f"{mark}type({name}).__qualname__")] if kept else []
    return [*heads, "/"] if slash_due else heads, parts


def _rest(first: int, ignored: frozenset[int | str]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return a function that takes the ignored positions out of *args, whose first one is at `first`."""
    positions = {word - first for word in ignored if isinstance(word, int) and word >= first}
    if not positions:
        return tuple
    return lambda args: tuple(value for position, value in enumerate(args) if position not in positions)


def _named(ignored: frozenset[int | str]) -> Callable[[dict[str, Any]], tuple[tuple[str, Any], ...]]:
    """Return a function that makes sorted pairs of **kwargs without the ignored names."""
    return lambda kwargs: tuple(sorted((item for item in kwargs.items() if item[0] not in ignored), key=_first))


def _first(item: tuple[str, Any]) -> str:
    return item[0]


def _types_of(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(type(value).__qualname__ for value in values)


def _any_signature(name: str, typed: bool, ignored: frozenset[int | str]) -> Callable[..., tuple[Any, ...]]:
    """Return the key function for a callable that does not tell its signature."""

    def key(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        positional = tuple(value for position, value in enumerate(args) if position not in ignored)
        named = tuple(sorted((word, value) for word, value in kwargs.items() if word not in ignored))
        made = (name, positional, named)
        return (*made, _types_of(positional), _types_of(value for _, value in named)) if typed else made

    return key


def memoize(
    cache: Cache,
    name: str | None,
    typed: bool,
    expire: Expiry | None,
    tag: Any,
    ignore: Iterable[int | str],
    key: Callable[..., Any] | None,
) -> Callable[[Callable[P, R]], Memoized[P, R]]:
    """Return a decorator that keeps a function's results in `cache`.

    `name`: instead of the function's own. `typed`: arguments of different types are different. `expire`: seconds; 0
    keeps nothing. `tag`: for `evict`. `ignore`: positions and names of arguments that do not count. `key`: function of
    the call's arguments that returns the key's variable part. Works on coroutine functions too: the coroutine's result
    is kept. Exceptions are not kept. What the decorated function offers: `Memoized`.
    """
    if callable(name):
        raise TypeError("name cannot be a function: write @cache.memoize() with parentheses")

    def decorate(function: Callable[P, R]) -> Memoized[P, R]:
        memoized: Memoized[P, R] = _wrapper(cache, function, call_key(function, name, typed, ignore, key), expire, tag)
        return memoized

    return decorate


def call_key(
    function: Callable[..., Any],
    name: str | None,
    typed: bool,
    ignore: Iterable[int | str],
    key: Callable[..., Any] | None,
) -> Callable[..., tuple[Any, ...]]:
    """Return a function that makes the key of a call of `function` from its arguments; parameters as for `memoize`."""
    if callable(name):
        raise TypeError("name cannot be a function: write the decorator with its arguments in parentheses")
    base = function_name(function) + _owner(function) if name is None else name
    if key is None:
        ignored = (ignore,) if isinstance(ignore, int | str) else tuple(ignore)
        return key_maker(function, base, typed, ignored)
    given = key

    def make(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return (base, given(*args, **kwargs))

    return _bounded(make)


def _owner(function: Callable[..., Any]) -> str:
    """Return what tells a bound method from the same one of another object or class; nothing for a function."""
    owner = getattr(function, "__self__", None)
    if owner is None or isinstance(owner, types.ModuleType):  # a function, of C in a module
        return ""
    if isinstance(owner, type):
        return f" of {owner.__module__}.{owner.__qualname__}"
    return f" of {blake2b(_digest_of(owner, []), digest_size=16).hexdigest()}"


def finish(
    wrapper: Any, cache: Cache, cache_key: Callable[..., Any], counts: Callable[[], tuple[int, int]]
) -> Memoized[P, R]:
    """Give a wrapper, made with functools.wraps, what `Memoized` promises; `counts` returns hits and misses."""

    def cache_info() -> CacheInfo:
        return CacheInfo(*counts(), None, len(cache))

    def invalidate(*args: Any, **kwargs: Any) -> bool:
        return cache.delete(cache_key(*args, **kwargs), retry=True)

    wrapper.__cache_key__, wrapper.cache_info, wrapper.invalidate = cache_key, cache_info, invalidate
    memoized: Memoized[P, R] = wrapper
    return memoized


def _bounded(make: Callable[..., tuple[Any, ...]], plain: bool = False) -> Callable[..., tuple[Any, ...]]:
    """Return a key function whose long keys, such as whole documents, are replaced by their digest.

    `plain`: the key is a name and a tuple of arguments, few of them, so that a look at these alone may do.
    """

    def cache_key(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        made = make(*args, **kwargs)
        if plain:
            for part in made[1]:
                kind = type(part)
                if kind not in _PLAIN and not (kind is str and len(part) <= SHORT):
                    break
            else:
                return made
        if keys.is_direct(made) and _surely_short(made):
            return made
        encoded = keys.encode_long(made)
        if len(encoded) <= LONG_KEY:
            return made
        return (made[0], blake2b(encoded, digest_size=32).digest())

    return cache_key


def _surely_short(made: Any) -> bool:
    """Tell cheaply that an encoded key cannot be long: few parts, none of them a long string."""
    if type(made) is tuple:
        return len(made) <= 16 and all(map(_surely_short, made))
    return not isinstance(made, str | bytes) or len(made) <= SHORT


async def when_free(cache: Cache, key: Any, write: Callable[[], object]) -> None:
    """Run `write` as a transaction on the shard of `key` once nobody else writes there; never block the event loop.

    Waiting in `write` itself would stop every task of the loop for as long as another process holds the lock.
    """
    import asyncio

    store = cache._locate(key)[2]
    for seconds in pauses():
        try:
            with store.transaction(0):
                write()
            return
        except Timeout:
            await asyncio.sleep(seconds)


def _wrapper(
    cache: Cache, function: Callable[..., Any], cache_key: Callable[..., Any], expire: Expiry | None, tag: Any
) -> Any:
    keeps = seconds_of(expire) > 0
    get = cache.get
    hits = misses = 0

    def keep(key: Any, result: Any) -> None:
        if keeps:
            cache.set(key, result, expire, tag=tag, retry=True)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal hits, misses
            key = cache_key(*args, **kwargs)
            result = get(key, _MISSING)
            if result is not _MISSING:
                hits += 1
                return result
            misses += 1
            result = await function(*args, **kwargs)
            await when_free(cache, key, lambda: keep(key, result))
            return result

    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal hits, misses
            key = cache_key(*args, **kwargs)
            result = get(key, _MISSING)
            if result is not _MISSING:
                hits += 1
                return result
            misses += 1
            result = function(*args, **kwargs)
            keep(key, result)
            return result

    return finish(wrapper, cache, cache_key, lambda: (hits, misses))
