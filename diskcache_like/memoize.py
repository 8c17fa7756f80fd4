"""Memoize: a function's results kept in a cache, under keys made from its bound arguments.

The key of a call is the function's name and the arguments as its signature binds them, so that ``f(1)``, ``f(x=1)``
and ``f(1, 2)`` with the default given are one entry. For lambdas and nested functions, whose names say little, a digest
of the code and of what it closes over is part of the name; a named function keeps its key when it is edited.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol

from . import keys
from .errors import KeyEncodeError

if TYPE_CHECKING:
    from .cache import Cache
    from .entries import Expiry

LONG_KEY = 1024  # bytes of an encoded key from which on its digest is the key
_MISSING = object()


class Memoized(Protocol):
    """What the decorator adds to a function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the cached result, or call the function and keep what it returns."""
        ...

    def __cache_key__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the key under which the result of a call with these arguments is kept."""
        ...


def full_name(function: Callable[..., Any]) -> str:
    """Return the module and qualified name of a function."""
    return f"{function.__module__}.{function.__qualname__}"


def function_name(function: Callable[..., Any]) -> str:
    """Return the name that results of `function` are kept under.

    Functions that share a module and qualified name but not their code or closure get different names.
    """
    name = full_name(function)
    code = getattr(function, "__code__", None)
    if code is None or ("<lambda>" not in name and "<locals>" not in name):
        return name
    digest = blake2b(digest_size=16)
    _digest_code(code, digest.update)
    for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        digest.update(variable.encode() + _digest_of_cell(cell))
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


def _digest_of_cell(cell: types.CellType) -> bytes:
    """Return bytes for a closed-over value: the value where it can be a key, else a function's code or the type."""
    try:
        value = cell.cell_contents
    except ValueError:
        return b"empty"  # the function's own name, not bound yet
    if isinstance(value, types.FunctionType):
        return function_name(value).encode()
    try:
        return keys.encode_key(value)
    except (KeyEncodeError, ValueError):
        return f"{type(value).__module__}.{type(value).__qualname__}".encode()


def key_maker(
    function: Callable[..., Any], name: str, typed: bool, ignore: Iterable[int | str]
) -> Callable[..., tuple[Any, ...]]:
    """Return a function of the same signature that returns the key of a call.

    It is compiled from the parameter names, as dataclasses does for `__init__`, because `Signature.bind` costs more
    than a cache hit. Raises TypeError for arguments that the function would not take.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return _any_signature(name, typed, frozenset(ignore))
    ignored = frozenset(ignore)
    namespace: dict[str, Any] = {"__name": name, "__type": type, "__types": _types_of}
    heads, parts = _parameters(signature, ignored, namespace)
    # Each parameter is one field, *args and **kwargs too, or else an argument of one could pass for one of the other.
    fields = [f"({part},)" for part, _ in parts]
    types_ = ", ".join(part_types for _, part_types in parts)
    tail = f", ({types_},)" if typed and parts else ""
    body = " + ".join(fields) or "()"
    source = f"def __key__({', '.join(heads)}):\n    return (__name, {body}{tail})"
    exec(compile(source, f"<key of {name}>", "exec"), namespace)  # noqa: S102 - built from identifiers only
    maker: Callable[..., tuple[Any, ...]] = namespace["__key__"]
    return maker


def _parameters(
    signature: inspect.Signature, ignored: frozenset[int | str], namespace: dict[str, Any]
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
            namespace["__rest"] = _rest(position, ignored)
            parts += [(f"__rest({name})", f"__types(__rest({name}))")] if kept else []
        elif kind is parameter.VAR_KEYWORD:
            heads.append(f"**{name}")
            namespace["__named"] = _named(ignored)
            parts += [(f"__named({name})", f"__types(value for _, value in __named({name}))")] if kept else []
        else:
            default = parameter.default is not parameter.empty
            namespace[f"__default_{name}"] = parameter.default
            heads.append(f"{name}=__default_{name}" if default else name)
            kept = kept and (position not in ignored or kind is parameter.KEYWORD_ONLY)
            parts += [(name, f"__type({name}).__qualname__")] if kept else []
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
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that keeps a function's results in `cache`.

    `name`: instead of the function's own. `typed`: arguments of different types are different. `expire`: seconds; 0
    keeps nothing. `tag`: for `evict`. `ignore`: positions and names of arguments that do not count. `key`: function of
    the call's arguments that returns the key's variable part. Works on coroutine functions too: the coroutine's result
    is kept. Exceptions are not kept.
    """
    if callable(name):
        raise TypeError("name cannot be a function: write @cache.memoize() with parentheses")
    ignored = (ignore,) if isinstance(ignore, int | str) else tuple(ignore)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        base = function_name(function) if name is None else name
        if key is None:
            make = key_maker(function, base, typed, ignored)
        else:
            given = key

            def make(*args: Any, **kwargs: Any) -> Any:
                return (base, given(*args, **kwargs))

        return _wrapper(cache, function, _bounded(make), expire, tag)

    return decorate


def _bounded(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a key function whose long keys, such as whole documents, are replaced by their digest."""

    def cache_key(*args: Any, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
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
    return not isinstance(made, str | bytes) or len(made) <= LONG_KEY // 32


def _wrapper(
    cache: Cache, function: Callable[..., Any], cache_key: Callable[..., Any], expire: Expiry | None, tag: Any
) -> Callable[..., Any]:
    keeps = expire is None or (expire.total_seconds() if isinstance(expire, timedelta) else expire) > 0
    get = cache.get

    def keep(key: Any, result: Any) -> None:
        if keeps:
            cache.set(key, result, expire, tag=tag, retry=True)

    if inspect.iscoroutinefunction(function):
        coroutine: Callable[..., Awaitable[Any]] = function

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            key = cache_key(*args, **kwargs)
            result = get(key, _MISSING)
            if result is _MISSING:
                result = await coroutine(*args, **kwargs)
                keep(key, result)
            return result

    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            key = cache_key(*args, **kwargs)
            result = get(key, _MISSING)
            if result is _MISSING:
                result = function(*args, **kwargs)
                keep(key, result)
            return result

    wrapper.__cache_key__ = cache_key  # type: ignore[attr-defined]
    return wrapper
