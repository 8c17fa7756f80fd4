"""Call keys: the keys under which the results of a function's calls are kept, made from its bound arguments.

The key of a call is the function's name and the arguments as its signature binds them, so that ``f(1)``, ``f(x=1)``
and ``f(1, 2)`` with the default given are one entry. A function that its module has under its name keeps its key when
it is edited. For any other one (a lambda, a nested function, a wrapper, a function in a notebook) a digest of its code,
its defaults and what it closes over is part of the name. In `__main__` the script is part of the name, since every
script has its functions in a module of that name.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from hashlib import blake2b
from operator import itemgetter
from typing import Any, NamedTuple

from ..encoding import keys
from ..encoding.values import NotSerializable, encode_value
from ..errors import KeyEncodeError
from ..misuse import hint
from .templates import key_template

LONG_KEY = 1024  # bytes of an encoded key from which on its digest is the key
SHORT = LONG_KEY // 32  # characters of a text that cannot make a key of few parts long
_LAYERS = 20  # decorators around a function, at most
FEW = 8  # parameters of a function whose key cannot be long if each argument is short
_PLAIN = frozenset((int, bool, type(None)))  # types of arguments that are short, and need no look at their members

CallKey = Callable[..., Any]  # takes the arguments of a call and returns its key
Fix = Callable[[Any], Any]  # returns a key that no longer changes, for one that may

# The functions that decorators of this package returned. They are called what they wrap, and what they close over is
# left out of digests: it changes.
decorated: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()


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
        version = "" if self.version is None else f" version {_short_digest(keys.encode_key(self.version))}"
        if self.name is not None:
            given = self.spell(self.name) + version
            return lambda: given
        if not hasattr(named := inspect.unwrap(function), "__qualname__"):
            raise TypeError(f"{named!r:.80} has no name to keep its results under: give it one with name=")
        memoized = " memoized" if hasattr(function, "cache_info") and is_decorated(function) else ""  # by this, again
        function = undecorated(function)
        try:
            plain, owner, exact = function_name(function), _owner(function) + memoized, ""
        except TypeError:
            if self.key is None:
                raise
            plain, owner, exact = _name_and_code(function), memoized, ""  # `key` tells the rest
        refusal: TypeError | None = None
        if getattr(function, "__closure__", None) and not _is_nameless(function):
            try:
                exact = function_name(function, exact=True)
            except TypeError as error:
                refusal = error

        def name() -> str:
            own = plain
            if not (_is_nameless(function) or _is_found(function)):
                if refusal is not None and self.key is None:
                    raise refusal
                own = exact or (plain if refusal is not None else function_name(function, exact=True))
            return self.spell(own + owner) + version

        return name

    def of(self, function: Callable[..., Any], fix: Fix) -> Callable[[str], CallKey]:
        """Return a function that takes the name, and returns what makes the key of a call from its arguments."""
        ignored = _ignored(self.ignore)
        if self.key is None:
            return key_maker(function, self.typed, ignored, fix)
        if self.typed or ignored:
            raise TypeError("key= says which arguments count: leave out typed= and ignore=")
        given = key_template(function, self.key) if isinstance(self.key, str) else self.key
        return lambda name: _bounded(lambda *args, **kwargs: (name, given(*args, **kwargs)), fix)


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


def full_name(func: Callable[..., Any]) -> str:
    """Return the module and qualified name of a function."""
    return f"{func.__module__}.{func.__qualname__}"


def function_name(
    function: Callable[..., Any], met: list[Callable[..., Any]] | None = None, exact: bool = False
) -> str:
    """Return the name that results of `function` are kept under.

    Where module and qualified name say little, or `exact` is given, a digest of the function is part of it. `met`: the
    functions named so far, since a function may close over itself. Raises TypeError if the digest would not tell the
    function from others.
    """
    function = undecorated(function)
    name = f"{module_of(function)}.{function.__qualname__}"
    if exact or _is_nameless(function):
        name += f":{_fingerprint(function, [] if met is None else met)}"
    return name


def _name_and_code(function: Callable[..., Any]) -> str:
    """Return the name of a function with a digest of its code alone."""
    digest = blake2b(digest_size=16)
    if (code := getattr(function, "__code__", None)) is not None:
        _digest_code(code, digest.update)
    return f"{module_of(function)}.{function.__qualname__}:{digest.hexdigest()}"


def _is_nameless(function: Callable[..., Any]) -> bool:
    """Tell whether module and qualified name say nothing: of a nested function, `_`, or one typed into a session."""
    name = function.__qualname__
    local = "<lambda>" in name or "<locals>" in name or not name.rpartition(".")[2].strip("_")
    return local or module_of(function) == "__main__"


def _is_found(function: Callable[..., Any]) -> bool:
    """Tell whether the function's module has it under its name, by itself or wrapped."""
    if isinstance(function, types.BuiltinFunctionType):
        return True  # one name is one function, of C
    wanted = getattr(function, "__func__", function)
    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    for _ in range(_LAYERS):
        if found is wanted or found is None:
            break
        inner = (getattr(found, name, None) for name in ("__wrapped__", "__func__", "fget", "func"))
        found = next((each for each in inner if each is not None), None)
    return found is wanted


def _short_digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def _fingerprint(function: Callable[..., Any], met: list[Callable[..., Any]]) -> str:
    """Return a digest of what a function does: its code, its defaults and what it closes over."""
    code = getattr(function, "__code__", None)
    if code is None:
        raise TypeError(f"{function!r:.80} has no name of its own to keep its results under: give it one with name=")
    met.append(function)
    digest = blake2b(digest_size=16)
    _digest_code(code, digest.update)
    defaults = enumerate(function.__defaults__ or ())
    named_defaults = sorted((function.__kwdefaults__ or {}).items())
    for name, value in (*defaults, *named_defaults):
        digest.update(f"{name}=".encode() + _digest_of(value, met, f"has the default {name!r}", function))
    for variable, cell in zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=True):
        digest.update(variable.encode() + _digest_of_cell(cell, met, variable, function))
    return digest.hexdigest()


def module_of(function: Callable[..., Any]) -> str:
    """Return the module of a function or class; for one in `__main__` the module or the script that runs.

    A process that `multiprocessing` spawned calls it `__mp_main__`. An interactive session has no file, and its
    functions keep the name `__main__`.
    """
    module = function.__module__
    if module not in ("__main__", "__mp_main__"):
        return module
    main = sys.modules.get(module)
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:  # of python -m
        return str(spec.name)
    if file is None or file.startswith("<"):  # as <stdin>
        return "__main__"
    return f"__main__ of {os.path.realpath(file)}"


def _digest_code(code: types.CodeType, update: Callable[[bytes], None]) -> None:
    """Digest what a code object does, without its file and line numbers."""
    update(code.co_code)
    update(code.co_exceptiontable)
    update(repr((code.co_names, code.co_varnames, code.co_freevars, code.co_flags)).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _digest_code(constant, update)
        elif isinstance(constant, frozenset):
            update(repr(sorted(map(repr, constant))).encode())  # the order of a set differs between processes
        else:
            update(repr((type(constant).__name__, constant)).encode())


def _digest_of_cell(
    cell: types.CellType, met: list[Callable[..., Any]], variable: str, function: Callable[..., Any]
) -> bytes:
    """Return bytes for a closed-over value."""
    try:
        value = cell.cell_contents
    except ValueError:
        return b"empty"  # the function's own name, not bound yet
    return _digest_of(value, met, f"closes over {variable!r}", function)


def _digest_of(value: Any, met: list[Callable[..., Any]], how: str, function: Callable[..., Any]) -> bytes:
    """Return bytes that identify a value which `function` depends on; `how` says in which way, for the error."""
    value = undecorated(value)
    if isinstance(value, types.ModuleType):
        return value.__name__.encode()
    if isinstance(value, types.FunctionType):
        number = next((number for number, each in enumerate(met) if each is value), None)
        if number is not None:
            return f"function {number}".encode()
        return function_name(value, met, exact=not _is_found(value)).encode()
    if isinstance(value, type):
        return _digest_of_class(value, met, function)
    try:
        return keys.encode_unbounded(value) + _typed(value)
    except (KeyEncodeError, ValueError):
        pass
    raise TypeError(
        f"{full_name(function)} {how}, a {type(value).__qualname__}, which cannot be part of a key, so nothing tells it"
        " from other functions of its name: give it a name of its own with name=, or make its keys with key="
    )


def _typed(value: Any) -> bytes:
    """Return what tells a value from equal ones of another type or order, for which a function may act differently."""
    try:
        return encode_value(value)
    except NotSerializable:
        return b""


# What each class has that says nothing of what it does, or says again what other attributes do.
_OF_EVERY_CLASS = frozenset(
    f"__{name}__"
    for name in (
        *("annotations", "annotations_cache", "classcell", "dataclass_fields", "dataclass_params", "dict", "doc"),
        *("firstlineno", "match_args", "module", "qualname", "static_attributes", "weakref"),
    )
)


def _digest_of_class(kind: type, met: list[Callable[..., Any]], function: Callable[..., Any]) -> bytes:
    """Return bytes that identify a class: its name if that leads to it, else what it is made of."""
    name = f"{module_of(kind)}.{kind.__qualname__}"
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is kind and name.partition(".")[0] != "__main__":
        return name.encode()
    parts = [name.encode(), *(_digest_of_class(base, met, function) for base in kind.__bases__)]
    for attribute, value in sorted(vars(kind).items()):
        if attribute not in _OF_EVERY_CLASS:
            how = f"uses the class {kind.__qualname__}, which has {attribute!r}"
            is_property = isinstance(value, property)
            steps = (value.fget, value.fset, value.fdel) if is_property else (getattr(value, "__func__", value),)
            parts += [attribute.encode(), *(_digest_of(step, met, how, function) for step in steps if step is not None)]
    return _short_digest(b"\0".join(parts)).encode()


def is_decorated(value: Any) -> bool:
    """Tell whether a decorator of this package returned this very function, not one that wraps it again."""
    return isinstance(value, types.FunctionType | functools.partial) and value in decorated


def undecorated(value: Any) -> Any:
    """Return what decorators of this package were given; their wrappers close over counts, which change."""
    while is_decorated(value):
        value = value.__wrapped__
    return value


def _owner(function: Callable[..., Any]) -> str:
    """Return what distinguishes a bound method from that of another object or class; nothing for a function."""
    owner = getattr(function, "__self__", None)
    if owner is None or isinstance(owner, types.ModuleType):  # a function, of C in a module
        return ""
    if isinstance(owner, type):
        return f" of {_digest_of_class(owner, [], function).decode()}"
    return f" of {_short_digest(_digest_of(owner, [], 'is a method of this object', function))}"


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
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{module_of(kind)}.{kind.__qualname__}"


def _types_of(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(map(_type_name, values))


def _any_signature(name: str, typed: bool, ignored: frozenset[int | str]) -> CallKey:
    """Return the key function for a callable without a known signature."""

    def key(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        positional = tuple(value for position, value in enumerate(args) if position not in ignored)
        named = tuple(sorted((word, value) for word, value in kwargs.items() if word not in ignored))
        made = (name, positional, named)
        return (*made, _types_of(positional), _types_of(value for _, value in named)) if typed else made

    return key


def _explanation(name: str, parameters: list[str]) -> Callable[[tuple[Any, ...]], str]:
    """Return a function that says which argument keeps a made key from being one, or nothing."""

    def explain(made: tuple[Any, ...]) -> str:
        for parameter, value in zip(parameters, made[1], strict=True):
            try:
                keys.encode_unbounded(value)
            except KeyEncodeError as error:
                return (
                    f"argument {parameter!r} of {name} cannot be part of a key: {error}; or leave it out of the key"
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
            encoded = keys.encode_unbounded(made)
        except KeyEncodeError as error:
            text = explain(made)
            raise KeyEncodeError(text or str(error)) from None
        return fix(made) if len(encoded) <= LONG_KEY else (made[0], blake2b(encoded, digest_size=32).digest())

    return cache_key


def _surely_short(made: Any) -> bool:
    """Tell cheaply whether an encoded key is surely short: it has few parts, none of them a long string."""
    if type(made) is tuple:
        return len(made) <= 16 and all(map(_surely_short, made))
    return not isinstance(made, str | bytes) or len(made) <= SHORT
