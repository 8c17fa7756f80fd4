"""Identities: names that tell functions and classes apart, with a digest of their code where a name does not.

What its module has under its name is known by that name, so it stays the same when it is edited. A digest of its code,
its defaults and what it closes over is part of the identity of anything else: a lambda, a nested function, a wrapper,
what was typed into a notebook, and what took over the name of something that the process had known by it before. In
`__main__` the script is part of the name, since every script has its functions in a module of that name.
"""

from __future__ import annotations

import functools
import os
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from hashlib import blake2b
from itertools import chain
from typing import Any

from ..encoding import keys
from ..encoding.values import NotSerializable, encode_value
from ..errors import KeyEncodeError

_LAYERS = 20  # decorators around a function, at most
_DESCRIPTORS = property, classmethod, staticmethod, functools.cached_property
_INNER = "fget", "fset", "fdel", "__func__", "func"  # where descriptors keep their functions

# What a class has that says nothing of what it does, says again what other attributes do, or differs between processes.
_OF_EVERY_CLASS = frozenset(
    f"__{name}__"
    for name in (
        *("annotations", "annotations_cache", "attrs_props", "classcell", "dataclass_fields", "dataclass_params"),
        *("dict", "doc", "firstlineno", "hash", "match_args", "module", "pydantic_core_schema", "pydantic_decorators"),
        *("pydantic_serializer", "pydantic_validator", "qualname", "static_attributes", "weakref"),
    )
) | {"_abc_impl"}

# The functions that decorators of this package returned. They are called what they wrap, and what they close over is
# left out of digests: it changes.
decorated: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()
_first: dict[str, Any] = {}  # what was first known by each name in this process
_identities: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


class Untold(TypeError):
    """Nothing tells a function or class from others; `why` says so without advice."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"{why}, so nothing tells it from others of its name: give the function a name of its own with name=, or"
            " make its keys with key="
        )
        self.why = why


def full_name(func: Callable[..., Any]) -> str:
    """Return the module and qualified name of a function."""
    return f"{func.__module__}.{func.__qualname__}"


def plain_name(value: Any) -> str:
    """Return the module or script of a function or class, and its qualified name."""
    return f"{module_of(value)}.{value.__qualname__}"


def module_of(value: Any) -> str:
    """Return the module of a function or class; for one in `__main__` the module or the script that runs.

    A process that `multiprocessing` spawned calls it `__mp_main__`. An interactive session has no file, and its
    functions keep the name `__main__`.
    """
    module: str = value.__module__
    if module not in ("__main__", "__mp_main__"):
        return module
    main = sys.modules.get(module)
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:  # of python -m
        return str(spec.name)
    if file is None or file.startswith("<"):  # as <stdin>
        return "__main__"
    return f"__main__ of {os.path.realpath(file)}"


def function_name(function: Callable[..., Any], exact: bool = False) -> str:
    """Return the name that a function is kept under, with a digest where the name says little or `exact` is given.

    Raises Untold, a TypeError, if the digest would not tell the function from others.
    """
    function = undecorated(function)
    return Digester().name(function, exact or is_nameless(function))


def code_name(function: Callable[..., Any]) -> str:
    """Return the name of a function with a digest of its code alone."""
    code = getattr(function, "__code__", None)
    return f"{plain_name(function)}:{_digest(() if code is None else _parts_of_code(code))}"


def identity(value: Any) -> str:
    """Return the name that tells a function or class from all others, as it was when this was first asked.

    Raises Untold, a TypeError, if nothing does.
    """
    known = _identities.get(value)
    if known is None:
        known = _identities[value] = Digester().name(value, not is_known_by_name(value))
    return known


def encode_told(value: Any) -> tuple[bytes, tuple[str, ...]]:
    """Return a key as bytes of any length, and what its names of functions and classes do not tell.

    Raises KeyEncodeError, or Untold, a TypeError.
    """
    named: list[Any] = []
    encoded = keys.encode_unbounded(value, named)
    told = {identity(each) for each in map(undecorated, named)} - {full_name(each) for each in named}
    return encoded, tuple(sorted(told))


def is_nameless(value: Any) -> bool:
    """Tell whether module and qualified name say nothing: of a nested function, `_`, or one typed into a session."""
    name = value.__qualname__
    local = "<lambda>" in name or "<locals>" in name or not name.rpartition(".")[2].strip("_")
    return local or module_of(value) == "__main__"


def is_known_by_name(value: Any) -> bool:
    """Tell whether a function or class has a name that leads to it, by itself or wrapped, and led to no other before.

    The process may have known another one by that name, which was reloaded or defined again. Both are alive, and must
    not share a name, unless they are made alike.
    """
    if isinstance(value, types.BuiltinFunctionType) or value.__module__ == "builtins":
        return True  # one name is one function or type, of C
    if is_nameless(value):
        return False
    wanted = getattr(value, "__func__", value)
    found: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    for _ in range(_LAYERS):
        if found is wanted or found is None:
            break
        inner = (getattr(found, name, None) for name in ("__wrapped__", *_INNER))
        found = next((each for each in inner if each is not None), None)
    if found is not wanted:
        return False
    first = _first.setdefault(plain_name(value), wanted)
    return first is wanted or _are_made_alike(first, wanted)


def _are_made_alike(one: Any, other: Any) -> bool:
    try:
        digests = [Digester(lambda _: False).name(each, exact=True) for each in (one, other)]
    except Untold:
        return False
    return digests[0] == digests[1]


def is_decorated(value: Any) -> bool:
    """Tell whether a decorator of this package returned this very function, not one that wraps it again."""
    return isinstance(value, types.FunctionType | functools.partial) and value in decorated


def undecorated(value: Any) -> Any:
    """Return what decorators of this package were given; their wrappers close over counts, which change."""
    while is_decorated(value):
        value = value.__wrapped__
    return value


def short_digest(data: bytes) -> str:
    """Return a digest as text."""
    return blake2b(data, digest_size=16).hexdigest()


def _digest(parts: Iterable[bytes]) -> str:
    return short_digest(b"".join(len(part).to_bytes(8, "big") + part for part in parts))


class Digester:
    """Digests what a function or class is made of; `has_name` tells which of those that it refers to have a name.

    One object makes one name: it notes what it has met, since a function may refer to itself.
    """

    def __init__(self, has_name: Callable[[Any], bool] = is_known_by_name) -> None:
        self._has_name = has_name
        self._met: list[Any] = []

    def name(self, value: Any, exact: bool) -> str:
        """Return the name of a function or class, if `exact` with its digest."""
        if not exact:
            return plain_name(value)
        self._met.append(value)
        parts = self._of_class(value) if isinstance(value, type) else self._of_function(value)
        return f"{plain_name(value)}:{_digest(parts)}"

    def _of_function(self, function: Any) -> Iterable[bytes]:
        code = getattr(function, "__code__", None)
        if code is None:
            if not hasattr(function, "__wrapped__"):  # as `functools.lru_cache` gives it
                raise Untold(f"{function!r:.80} has no code of its own")
            yield from self._of_function(function.__wrapped__)
            return
        yield from _parts_of_code(code)
        defaults = enumerate(function.__defaults__ or ())
        named_defaults = sorted((function.__kwdefaults__ or {}).items())
        for name, value in (*defaults, *named_defaults):
            yield f"{name}=".encode() + self.of(value, function, f"has the default {name!r}")
        for variable, cell in zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                yield b"empty"  # the function's own name, not bound yet
            else:
                yield variable.encode() + self.of(value, function, f"closes over {variable!r}")

    def _of_class(self, kind: type) -> Iterable[bytes]:
        for base in kind.__bases__:
            yield self.of(base, kind, "has a base class")
        for attribute, value in sorted(vars(kind).items()):
            if attribute in _OF_EVERY_CLASS or isinstance(value, types.MemberDescriptorType):  # as __slots__ says
                continue
            yield attribute.encode()
            inner = [getattr(value, name, None) for name in _INNER] if isinstance(value, _DESCRIPTORS) else [value]
            yield from (self.of(each, kind, f"has {attribute!r}") for each in inner)

    def of(self, value: Any, whose: Any, how: str) -> bytes:
        """Return bytes that identify a value which `whose` depends on; `how` says in which way, for the error."""
        value = undecorated(value)
        if isinstance(value, types.ModuleType):
            return value.__name__.encode()
        if isinstance(value, types.FunctionType | type):
            return self._of_named(value)
        named: list[Any] = []
        try:
            encoded = keys.encode_unbounded(value, named)
        except (KeyEncodeError, ValueError):
            kind = type(value)
            if kind not in (tuple, list, dict):
                text = f"{full_name(whose)} {how}, a {kind.__qualname__}, which cannot be part of a key"
                raise Untold(text) from None
            return self._number(value) or self._of_members(value, whose, how)
        told = (self._of_named(undecorated(each)) for each in sorted(named, key=full_name))
        return b"".join((encoded, *told, _typed(value)))

    def _of_members(self, value: Any, whose: Any, how: str) -> bytes:
        self._met.append(value)
        members = chain.from_iterable(value.items()) if isinstance(value, dict) else value
        return _digest([type(value).__name__.encode(), *(self.of(each, whose, how) for each in members)]).encode()

    def _of_named(self, value: Any) -> bytes:
        return self._number(value) or self.name(value, exact=not self._has_name(value)).encode()

    def _number(self, value: Any) -> bytes:
        """Return the number of what was met before, nothing for anything else."""
        return next((f"met {number}".encode() for number, each in enumerate(self._met) if each is value), b"")


def _typed(value: Any) -> bytes:
    """Return what tells a value from equal ones of another type or order, for which a function may act differently."""
    try:
        return encode_value(value)
    except NotSerializable:
        return b""


def _parts_of_code(code: types.CodeType) -> Iterable[bytes]:
    """Yield what a code object does, without its file and line numbers."""
    yield code.co_code
    yield code.co_exceptiontable
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_flags)).encode()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _parts_of_code(constant)
        elif isinstance(constant, frozenset):
            yield repr(sorted(map(repr, constant))).encode()  # the order of a set differs between processes
        else:
            yield repr((type(constant).__name__, constant)).encode()
