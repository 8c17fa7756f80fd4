"""Read pickles of plain data without unpickling: nothing that a pickle names is imported, looked up or called.

`pickletools` reads the operations, and this module carries them out, on containers and scalars only. A name in the
pickle is only looked up in a table, and what the table makes (a date, a Decimal, a UUID) is made from checked
arguments. Work, memory and depth are bounded, even for data that refers to its parts so often that it would be huge if
written out.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pickletools import genops
from typing import Any, Final
from uuid import UUID, SafeUUID
from zoneinfo import ZoneInfo

from ...encoding.msgpack_reader import MAX_DEPTH
from ...encoding.values import FRACTION_BITS
from ...errors import DecodeError
from ...system.signals import reraise_signal

MAX_OPERATIONS: Final = 10_000_000
MAX_EXPANDED: Final = 1 << 28  # bytes that the data may take if each reference to a shared part is written out
MAX_KEY_PARTS: Final = 100_000  # parts of a dictionary's key or a set's member: hashing visits each, shared or not
MAX_DIGITS: Final = 10_000

_ALIASES = {"__builtin__": "builtins", "copy_reg": "copyreg"}  # names of Python 2, in protocols below 3
_ZONE = re.compile(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,3}", re.ASCII)
_FRACTION = re.compile(r"-?[0-9]{1,2500}(/[0-9]{1,2500})?", re.ASCII)
_LATIN = ("latin1", "latin-1")
_SEQUENCES = (list, tuple, set, frozenset, deque)
_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
_LEAVES = frozenset(
    {
        *(type(None), type(...), bool, int, float, complex, str, bytes, bytearray, range),
        *(date, datetime, time, timedelta, timezone, ZoneInfo, Decimal, Fraction, UUID),
    }
)


class NotPlain(DecodeError):
    """A pickle holds something other than plain data, or too much of it."""


class _Name:
    """A name in a module that a pickle mentions; it means only what the tables here say."""

    def __init__(self, module: object, name: object) -> None:
        self.path = f"{_ALIASES.get(str(module), module)}.{name}"


def _path_of(name: Any) -> str:
    return name.path if type(name) is _Name else "something that is not a name"


def loads_plain(data: bytes) -> Any:
    """Return the value of a pickle of plain data; raise NotPlain for any other pickle, and for broken ones."""
    machine = _Machine()
    try:
        value = machine.run(data)
        _measure(value, max(MAX_EXPANDED, 4 * len(data)))
    except NotPlain:
        raise
    except MemoryError:
        raise NotPlain("pickle of something that does not fit into memory") from None
    except Exception as error:
        reraise_signal(error)
        raise NotPlain(f"broken pickle ({type(error).__name__}: {str(error)[:80]})") from error
    return value


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []  # stacks below each mark
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for count, (operation, argument, _) in enumerate(genops(data)):
            if count > MAX_OPERATIONS:
                raise NotPlain(f"pickle of more than {MAX_OPERATIONS:,} operations")
            name = operation.name
            if name in _PUSHED:
                self.stack.append(argument)
            elif name in _CONSTANTS:
                self.stack.append(_CONSTANTS[name])
            elif name == "STOP":
                break
            else:
                act = _ACTIONS.get(name)
                if act is None:
                    raise NotPlain(f"pickle with the operation {name}, which plain data does not need")
                act(self, argument)
        value = self.stack.pop()
        if self.stack or self.outer:
            raise NotPlain("broken pickle (something is left over)")
        return value

    def mark(self, _: Any) -> None:
        self.outer.append(self.stack)
        self.stack = []

    def marked(self) -> list[Any]:
        """Return what was pushed since the last mark, and remove the mark."""
        items = self.stack
        self.stack = self.outer.pop()
        return items

    def pop(self, _: Any) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.marked()

    def text(self, argument: str) -> None:
        """Push a Python 2 text, which Python 3 reads as ASCII."""
        if not argument.isascii():
            raise NotPlain("pickle of Python 2 text that is not ASCII")
        self.stack.append(argument)

    def gather(self, number: int) -> None:
        if len(self.stack) < number:
            raise NotPlain("broken pickle (a tuple without its members)")
        self.stack[len(self.stack) - number :] = [tuple(self.stack[len(self.stack) - number :])]

    def get(self, argument: Any) -> None:
        self.stack.append(self.memo[int(argument)])

    def put(self, argument: Any) -> None:
        self.memo[len(self.memo) if argument is None else int(argument)] = self.stack[-1]

    def append(self, items: list[Any]) -> None:
        _of_type(self.stack[-1], list, deque).extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = _of_type(self.stack[-1], *_MAPPINGS)
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_hashable(key)] = value

    def add(self, items: list[Any]) -> None:
        _of_type(self.stack[-1], set).update(map(_hashable, items))

    def name(self, argument: str | None) -> None:
        if argument is None:
            name, module = self.stack.pop(), self.stack.pop()
        else:
            module, name = argument.split(" ", 1)
        found = _Name(module, name)
        self.stack.append(... if found.path == "builtins.Ellipsis" else found)

    def reduce(self, _: Any) -> None:
        arguments, path = self.stack.pop(), _path_of(self.stack.pop())
        make = _MAKERS.get(path)
        if make is None or type(arguments) is not tuple:
            raise NotPlain(f"pickle that calls {path[:100]}")
        self.stack.append(make(*arguments))

    def new(self, _: Any) -> None:
        arguments, path = self.stack.pop(), _path_of(self.stack.pop())
        if path != "uuid.UUID" or arguments != ():
            raise NotPlain(f"pickle of an instance of {path[:100]}")
        self.stack.append(UUID.__new__(UUID))

    def build(self, _: Any) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if type(made) is not UUID or type(state) is not dict or hasattr(made, "int"):
            raise NotPlain(f"pickle that sets the state of a {type(made).__qualname__}")
        whole = UUID(int=_of_type(state.pop("int"), int), is_safe=SafeUUID(state.pop("is_safe", None)))
        if state:
            raise NotPlain("pickle of a UUID with a state of its own")
        object.__setattr__(made, "int", whole.int)
        object.__setattr__(made, "is_safe", whole.is_safe)


_PUSHED = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda machine, argument: None,
    "FRAME": lambda machine, argument: None,
    "MARK": _Machine.mark,
    "POP": _Machine.pop,
    "POP_MARK": lambda machine, argument: machine.marked().clear(),
    "DUP": lambda machine, argument: machine.stack.append(machine.stack[-1]),
    **dict.fromkeys(("STRING", "BINSTRING", "SHORT_BINSTRING"), _Machine.text),
    "BYTEARRAY8": lambda machine, argument: machine.stack.append(bytearray(argument)),
    "EMPTY_LIST": lambda machine, argument: machine.stack.append([]),
    "EMPTY_DICT": lambda machine, argument: machine.stack.append({}),
    "EMPTY_SET": lambda machine, argument: machine.stack.append(set()),
    "LIST": lambda machine, argument: _push(machine, list),
    "TUPLE": lambda machine, argument: _push(machine, tuple),
    "FROZENSET": lambda machine, argument: _push(machine, lambda items: frozenset(map(_hashable, items))),
    "DICT": lambda machine, argument: _push(
        machine, lambda items: {_hashable(key): value for key, value in zip(items[::2], items[1::2], strict=True)}
    ),
    "TUPLE1": lambda machine, argument: machine.gather(1),
    "TUPLE2": lambda machine, argument: machine.gather(2),
    "TUPLE3": lambda machine, argument: machine.gather(3),
    "APPEND": lambda machine, argument: machine.append([machine.stack.pop()]),
    "APPENDS": lambda machine, argument: machine.append(machine.marked()),
    "SETITEM": lambda machine, argument: machine.set_items([machine.stack.pop(-2), machine.stack.pop()]),
    "SETITEMS": lambda machine, argument: machine.set_items(machine.marked()),
    "ADDITEMS": lambda machine, argument: machine.add(machine.marked()),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.get),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.put),
    **dict.fromkeys(("GLOBAL", "STACK_GLOBAL"), _Machine.name),
    "REDUCE": _Machine.reduce,
    "NEWOBJ": _Machine.new,
    "BUILD": _Machine.build,
}


def _push(machine: _Machine, make: Callable[[list[Any]], Any]) -> None:
    items = machine.marked()
    machine.stack.append(make(items))


def _of_type(value: Any, *types: type) -> Any:
    if type(value) not in types:
        raise NotPlain(f"pickle with a {type(value).__qualname__} where {types[0].__qualname__} is expected")
    return value


def _hashable(value: Any) -> Any:
    """Return the value if it may be hashed: it must be small, because hashing visits every part in C."""
    if type(value) in (tuple, frozenset):
        _measure(value, MAX_KEY_PARTS * 16, MAX_KEY_PARTS)
    elif type(value) not in _LEAVES:
        raise NotPlain(f"pickle with a {type(value).__qualname__} as key or member")
    return value


# -- what a pickle may make by a call --------------------------------------------------------------------------------


def _make_bytes(text: str, encoding: str) -> bytes:
    if encoding not in _LATIN:
        raise NotPlain(f"pickle with bytes in the encoding {encoding!r:.40}")
    return bytes(_of_type(text, str), "latin-1")


def _make_bytearray(content: Any = b"", encoding: str | None = None) -> bytearray:
    if encoding is not None:
        content = _make_bytes(content, encoding)
    return bytearray(_of_type(content, bytes))


def _make_set(items: Any = ()) -> set[Any]:
    return set(map(_hashable, _of_type(items, list, tuple)))


def _make_range(*numbers: int) -> range:
    return range(*(_of_type(number, int) for number in numbers))


def _moment(kind: type[Any]) -> Callable[..., Any]:
    """Return a function that makes dates or times from their pickled form."""

    def make(packed: Any, zone: Any = None) -> Any:
        if type(packed) is str:  # Python 2, or protocols below 3
            packed = packed.encode("latin-1")
        _of_type(packed, bytes)
        _of_type(zone, type(None), timezone, ZoneInfo)
        made = kind(packed) if zone is None else kind(packed, zone)
        return made.replace()  # to validate it, which the constructor from the pickled form does not

    return make


def _make_timezone(offset: timedelta, name: str = "") -> timezone:
    _of_type(offset, timedelta)
    return timezone(offset, _of_type(name, str)) if name else timezone(offset)


def _make_zone(name: str, cached: Any) -> ZoneInfo:
    if type(name) is not str or not _ZONE.fullmatch(name) or not cached:
        raise NotPlain(f"pickle of the time zone {name!r:.40}")
    return ZoneInfo(name)


def _get_attribute(owner: Any, name: str) -> _Name:
    """Answer the only attribute look-up in plain data: how to restore a time zone by its name."""
    if getattr(owner, "path", None) != "zoneinfo.ZoneInfo" or name != "_unpickle":
        raise NotPlain(f"pickle that looks up {name!r:.40}")
    return _Name("zoneinfo", "ZoneInfo._unpickle")


def _make_decimal(text: str) -> Decimal:
    if type(text) is not str or len(text) > MAX_DIGITS:
        raise NotPlain("pickle of a Decimal that is not made from text of moderate length")
    return Decimal(text)


def _make_fraction(numerator: Any, denominator: Any = None) -> Fraction:
    if type(numerator) is str and denominator is None and _FRACTION.fullmatch(numerator):
        return Fraction(numerator)
    if any(type(part) is not int or part.bit_length() > FRACTION_BITS for part in (numerator, denominator)):
        raise NotPlain("pickle of a Fraction that is not made from two integers of moderate length")
    return Fraction(numerator, denominator)


def _make_defaultdict(factory: Any = None) -> defaultdict[Any, Any]:
    if factory is None:
        return defaultdict(None)
    kind = _FACTORIES.get(factory.path) if type(factory) is _Name else None
    if kind is None:
        raise NotPlain("pickle of a defaultdict with a factory that is not a builtin container or number")
    return defaultdict(kind)


def _make_deque(items: Any = (), maxlen: int | None = None) -> deque[Any]:
    return deque(_of_type(items, tuple, list), _of_type(maxlen, type(None), int))


def _make_counter(counts: Any) -> Counter[Any]:
    made: Counter[Any] = Counter()
    dict.update(made, _of_type(counts, dict))
    return made


def _reconstruct(kind: Any, base: Any, state: Any) -> UUID:
    """Make an empty UUID, as protocols below 2 do by this call before they set its state."""
    if [getattr(part, "path", None) for part in (kind, base)] != ["uuid.UUID", "builtins.object"] or state is not None:
        raise NotPlain(f"pickle of an instance of {getattr(kind, 'path', 'something')[:100]}")
    return UUID.__new__(UUID)


_FACTORIES: dict[str, Any] = {
    f"builtins.{kind.__name__}": kind for kind in (list, dict, set, tuple, int, float, str, bytes, bool)
}
_MAKERS: dict[str, Callable[..., Any]] = {
    "_codecs.encode": _make_bytes,
    "builtins.bytes": lambda: b"",
    "builtins.bytearray": _make_bytearray,
    "builtins.set": _make_set,
    "builtins.frozenset": lambda items=(): frozenset(_make_set(items)),
    "builtins.complex": lambda real, imaginary: complex(_of_type(real, float), _of_type(imaginary, float)),
    "builtins.getattr": _get_attribute,
    "builtins.range": _make_range,
    "builtins.xrange": _make_range,
    "datetime.date": _moment(date),
    "datetime.datetime": _moment(datetime),
    "datetime.time": _moment(time),
    "datetime.timedelta": lambda days, seconds, micros: timedelta(*(_of_type(n, int) for n in (days, seconds, micros))),
    "datetime.timezone": _make_timezone,
    "zoneinfo.ZoneInfo._unpickle": _make_zone,
    "decimal.Decimal": _make_decimal,
    "fractions.Fraction": _make_fraction,
    "collections.OrderedDict": lambda: OrderedDict(()),  # its items are set one by one
    "collections.defaultdict": _make_defaultdict,
    "collections.deque": _make_deque,
    "collections.Counter": _make_counter,
    "copyreg._reconstructor": _reconstruct,
}


# -- bounds ----------------------------------------------------------------------------------------------------------


def _measure(value: Any, limit: int, parts: int | None = None) -> None:
    """Refuse what is not plain data, contains itself, or is too deep or too large if each reference is written out.

    Each object is visited once. `limit`: bytes; `parts`: number of objects, where each reference counts.
    """
    size, count, _ = _extent(value, 0, {})
    if size > limit or (parts is not None and count > parts):
        raise NotPlain("pickle of data that refers to its parts so often that it would be huge if written out")


def _extent(value: Any, depth: int, known: dict[int, tuple[int, int, int] | None]) -> tuple[int, int, int]:
    """Return size in bytes, number of parts and height of what can be reached from `value`.

    `known`: the same for the containers visited so far, by `id`; None while one is being visited.
    """
    kind = type(value)
    if kind in _LEAVES:
        return _leaf_size(value), 1, 0
    inner: Iterable[Any]
    if kind in _SEQUENCES:
        inner = value
    elif kind in _MAPPINGS:
        inner = (part for pair in value.items() for part in pair)
    elif kind is _Name:
        raise NotPlain(f"pickle that mentions {value.path[:100]}")
    else:
        raise NotPlain(f"pickle of a {kind.__qualname__}")
    if id(value) in known:
        found = known[id(value)]
        if found is None:
            raise NotPlain("pickle of data that contains itself")
    else:
        if depth >= MAX_DEPTH:
            raise NotPlain(f"pickle of data nested more than {MAX_DEPTH} deep")
        known[id(value)] = None
        size, count, height = 16, 1, 0
        for part in inner:
            one = _extent(part, depth + 1, known)
            size, count, height = size + one[0], count + one[1], max(height, one[2])
        found = known[id(value)] = (size, count, height + 1)
    if depth + found[2] > MAX_DEPTH:
        raise NotPlain(f"pickle of data nested more than {MAX_DEPTH} deep")
    return found


def _leaf_size(value: Any) -> int:
    if type(value) in (str, bytes, bytearray):
        return 8 + len(value)
    if type(value) is int:
        return 8 + value.bit_length() // 8
    if type(value) is UUID and not hasattr(value, "int"):
        raise NotPlain("pickle of a UUID without its number")
    return 16
