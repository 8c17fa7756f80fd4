"""Call keys: the keys under which the results of a function's calls are kept, made from its bound arguments.

The key of a call is the function's name and the arguments as its signature binds them, so that ``f(1)``, ``f(x=1)``
and ``f(1, 2)`` with the default given are one entry. Functions and classes, among the arguments too, are told apart as
`identities` says.
"""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Callable, Iterable
from hashlib import blake2b
from operator import itemgetter
from typing import Any, NamedTuple

from ..encoding import keys
from ..errors import KeyEncodeError
from ..settings.misuse import hint
from ..system.signals import suppress
from .identities import (
    Digester,
    Untold,
    code_name,
    encode_told,
    function_name,
    identity,
    is_decorated,
    is_known_by_name,
    is_nameless,
    plain_name,
    short_digest,
    undecorated,
)
from .templates import key_template

LONG_KEY = 1024  # bytes of an encoded key from which on its digest is the key
SHORT = LONG_KEY // 32  # characters of a text that cannot make a key of few parts long
FEW = 8  # parameters of a function whose key cannot be long if each argument is short
_PLAIN = frozenset((int, bool, type(None)))  # types of arguments that are short, and need no look at their members

CallKey = Callable[..., Any]  # takes the arguments of a call and returns its key
Fix = Callable[[Any], Any]  # returns a key that no longer changes, for one that may


class CallKeys(NamedTuple):
    """How the keys of a function's calls are made.

    `name`: instead of the function's own. `typed`: arguments of different types are different. `ignore`: positions and
    names of arguments that do not count. `key`: function of the call's arguments that returns the key's variable part.
    `version`: any key; another one is for another body of the function, whose results are kept apart. `spell`: returns
    the name as it is stored.
    """

    name: str | None = None
    typed: bool = False
    ignore: Iterable[int | str] = ()
    key: Callable[..., Any] | str | None = None
    version: Any = None
    spell: Callable[[str], str] = str

    def name_of(self, function: Callable[..., Any]) -> Callable[[], str]:
        """Return a function that returns the name that results of `function` are kept under, once it is called.

        Only then is it known whether the module has the function under its name. What it closes over may change until
        then, and is looked at now. Raises TypeError if nothing tells it from others.
        """
        version = "" if self.version is None else f" version {short_digest(repr(encode_told(self.version)).encode())}"
        if self.name is not None:
            given = self.spell(self.name) + version
            return lambda: given
        if not hasattr(named := inspect.unwrap(function), "__qualname__"):
            raise TypeError(f"{named!r:.80} has no name to keep its results under: give it one with name=")
        memoized = " memoized" if hasattr(function, "cache_info") and is_decorated(function) else ""  # by this, again
        function = undecorated(function)
        owner = exact = ""
        try:
            owner = _owner(function)
        except Untold:
            if self.key is None:
                raise
        if is_nameless(function):
            exact = self._exact_name(function)
        elif getattr(function, "__closure__", None):
            with suppress(Untold):  # its module may have it under its name by then
                exact = self._exact_name(function)

        def name() -> str:
            own = plain_name(function) if is_known_by_name(function) else exact or self._exact_name(function)
            return self.spell(own + owner + memoized) + version

        return name

    def _exact_name(self, function: Callable[..., Any]) -> str:
        try:
            return function_name(function, exact=True)
        except Untold:
            if self.key is None:
                raise
            return code_name(function)  # `key` tells the rest

    def of(self, function: Callable[..., Any], fix: Fix) -> Callable[[str], CallKey]:
        """Return a function that takes the name, and returns what makes the key of a call from its arguments."""
        ignored = _ignored(self.ignore)
        if self.key is None:
            return key_maker(function, self.typed, ignored, fix)
        if self.typed or ignored:
            raise TypeError("key= says which arguments count: leave out typed= and ignore=")
        given = key_template(function, self.key) if isinstance(self.key, str) else self.key
        return lambda name: _bounded(lambda *args, **kwargs: (name, given(*args, **kwargs)), fix)

    def parameters(self, function: Callable[..., Any]) -> list[str]:
        """Return the names of the parameters whose arguments are the parts of a key, none where others are."""
        with contextlib.suppress(TypeError, ValueError):
            if self.key is None:
                parts = _parameters(inspect.signature(function), frozenset(_ignored(self.ignore)), {}, "")[1]
                return [name for name, _, _ in parts]
        return []


def _ignored(ignore: Any) -> tuple[int | str, ...]:
    """Return positions and names that are to be ignored; raise TypeError for anything else."""
    if isinstance(ignore, int | str):
        return (ignore,)
    found = tuple(ignore) if isinstance(ignore, Iterable) else (ignore,)
    if not all(isinstance(each, int | str) for each in found):
        raise TypeError(f"ignore is {ignore!r}, expected positions and names of arguments")
    return found


def _refuse_unknown(ignore: Iterable[int | str], signature: inspect.Signature, name: str) -> None:
    """Raise TypeError for a position or name that no argument of the function can have."""
    parameters = signature.parameters.values()
    kinds = {each.kind for each in parameters}
    positions = sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters)
    for each in ignore:
        if isinstance(each, str):
            is_there = each in signature.parameters or inspect.Parameter.VAR_KEYWORD in kinds
        else:
            is_there = 0 <= each < positions or (each >= 0 and inspect.Parameter.VAR_POSITIONAL in kinds)
        if not is_there:
            known = list(signature.parameters)
            advice = hint(each, known) or f", expected some of {', '.join(known)}, or their positions from 0"
            raise TypeError(f"ignore has {each!r}, but {name} has no such argument{advice}")


def _owner(function: Callable[..., Any]) -> str:
    """Return what distinguishes a bound method from that of another object or class; nothing for a function."""
    owner = getattr(function, "__self__", None)
    if owner is None or isinstance(owner, types.ModuleType):  # a function, of C in a module
        return ""
    if isinstance(owner, type):
        return f" of {identity(owner)}"
    return f" of {short_digest(Digester().of(owner, function, 'is a method of this object'))}"


def key_maker(
    function: Callable[..., Any], typed: bool, ignore: Iterable[int | str], fix: Fix
) -> Callable[[str], CallKey]:
    """Return a function of a name that returns one of the same signature, which returns the key of a call.

    It is compiled from the parameter names, as dataclasses does for `__init__`, because `Signature.bind` costs more
    than a cache hit. Long keys are replaced by their digest. The key function raises TypeError for arguments that the
    function would not take.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return lambda name: _bounded(_any_signature(name, typed, frozenset(ignore)), fix)
    _refuse_unknown(ignore, signature, getattr(function, "__qualname__", "the function"))
    ignored = frozenset(ignore)
    mark = "__"  # begins every name that is not a parameter's; no parameter's name begins with it
    while any(parameter.startswith(mark) for parameter in signature.parameters):
        mark += "_"
    namespace: dict[str, Any] = {f"{mark}type": _type_name, f"{mark}types": _types_of}
    heads, parts = _parameters(signature, ignored, namespace, mark)
    # Each parameter is one field, also *args and **kwargs; else an argument of one could look like one of the other.
    fields = "".join(f"{part}, " for _, part, _ in parts)
    types_ = ", ".join(part_types for _, _, part_types in parts)
    tail = f", ({types_},)" if typed and parts else ""
    source = f"def __key__({', '.join(heads)}):\n    return ({mark}name, ({fields}){tail})"
    exec(compile(source, "<key of a call>", "exec"), namespace)  # noqa: S102 - built from identifiers only
    maker: CallKey = namespace["__key__"]

    def named(name: str) -> CallKey:
        namespace[f"{mark}name"] = name
        explain = _explanation(name, [parameter for parameter, _, _ in parts])
        return _bounded(maker, fix, explain, plain=not typed and len(parts) <= FEW)

    return named


def _parameters(
    signature: inspect.Signature, ignored: frozenset[int | str], namespace: dict[str, Any], mark: str
) -> tuple[list[str], list[tuple[str, str, str]]]:
    """Return the parameters of the key function, and for each part of the key its parameter and two expressions.

    One expression is of the part itself, the other one of its types.
    A position in `ignored` counts the arguments of a call: it can mean one of *args, but no keyword-only argument.
    """
    heads: list[str] = []
    parts: list[tuple[str, str, str]] = []
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
            part = f"{mark}rest({name})", f"{mark}types({mark}rest({name}))"
        elif kind is parameter.VAR_KEYWORD:
            heads.append(f"**{name}")
            namespace[f"{mark}named"] = _named(ignored)
            made = f"{mark}named({name})"
            part = made, f"{mark}types(value for _, value in {made})"
        else:
            default = parameter.default is not parameter.empty
            namespace[f"{mark}default_{name}"] = parameter.default
            heads.append(f"{name}={mark}default_{name}" if default else name)
            kept = kept and (position not in ignored or kind is parameter.KEYWORD_ONLY)
            part = name, f"{mark}type({name})"
        parts += [(name, *part)] if kept else []
    return [*heads, "/"] if slash_due else heads, parts


def _rest(first: int, ignored: frozenset[int | str]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return a function that removes the ignored positions from *args, which begin at position `first`."""
    positions = {word - first for word in ignored if isinstance(word, int) and word >= first}
    if not positions:
        return tuple
    return lambda args: tuple(value for position, value in enumerate(args) if position not in positions)


def _named(ignored: frozenset[int | str]) -> Callable[[dict[str, Any]], tuple[tuple[str, Any], ...]]:
    """Return a function that makes sorted pairs of **kwargs without the ignored names."""
    return lambda kwargs: tuple(sorted((item for item in kwargs.items() if item[0] not in ignored), key=itemgetter(0)))


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else identity(kind)


def _types_of(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(map(_type_name, values))


def _any_signature(name: str, typed: bool, ignored: frozenset[int | str]) -> CallKey:
    """Return the key function for a callable without a known signature."""
    rest, named = _rest(0, ignored), _named(ignored)

    def key(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        made = name, rest(args), named(kwargs)
        return (*made, _types_of(made[1]), _types_of(value for _, value in made[2])) if typed else made

    return key


def _explanation(name: str, parameters: list[str]) -> Callable[[tuple[Any, ...]], str]:
    """Return a function that says which argument keeps a made key from being one, or nothing."""

    def explain(made: tuple[Any, ...]) -> str:
        for parameter, value in zip(parameters, made[1], strict=True):
            try:
                encode_told(value)
            except (KeyEncodeError, Untold) as error:
                why = error.why if isinstance(error, Untold) else error
                return (
                    f"argument {parameter!r} of {name} cannot be part of a key: {why}; or leave it out of the key"
                    f" with ignore={{{parameter!r}}}, or make the key with key="
                )
        return ""

    return explain


def _bounded(
    make: CallKey, fix: Fix, explain: Callable[[tuple[Any, ...]], str] = lambda _: "", plain: bool = False
) -> CallKey:
    """Return a key function whose keys are fixed: whatever a call does to its arguments, its key stays what it was.

    Long keys, such as whole documents, are replaced by their digest. `explain`: returns what to say of a key that
    cannot be one, if that is more than its own error says. `plain`: the key is a name and a tuple of few arguments, so
    that looking at these may be enough.
    """

    def cache_key(*args: Any, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        if plain:
            for part in made[1]:
                kind = type(part)
                if kind not in _PLAIN and not (kind is str and len(part) <= SHORT):
                    break
            else:
                return made
        if keys.hashes_like_stored_key(made) and _surely_short(made):
            return made
        try:
            encoded, told = encode_told(made)
        except (KeyEncodeError, Untold) as error:
            raise KeyEncodeError(explain(made) or str(error)) from None
        if told:
            made = *made, told
            encoded += repr(told).encode()
        return fix(made) if len(encoded) <= LONG_KEY else (made[0], blake2b(encoded, digest_size=32).digest())

    return cache_key


def _surely_short(made: Any) -> bool:
    """Tell cheaply whether an encoded key is surely short: it has few parts, none of them a long string."""
    if type(made) is tuple:
        return len(made) <= 16 and all(map(_surely_short, made))
    return not isinstance(made, str | bytes) or len(made) <= SHORT
