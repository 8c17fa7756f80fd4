"""Run programs that say `import diskcache` on this package, without changing them.

`install()` puts a finder before Python's own finders, so that importing `diskcache` or a submodule makes it from this
package. Nothing is patched: the modules hold what `diskcache_like` holds, and the modules of the standard library that
DiskCache's modules happen to hold. Only the caches are subclasses, which ignore unknown keyword arguments as DiskCache
does, with a warning; all caches of this package are instances of them.

``python -m diskcache_like.compat SCRIPT [ARGUMENT ...]`` and ``python -m diskcache_like.compat -m MODULE [ARGUMENT
...]`` install it and then run a program, for example ``-m pytest``.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import runpy
import sqlite3  # for a base class that programs expect
import sys
from abc import ABCMeta
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any, Literal, get_args

from .. import cache
from ..disk.contract import Disk
from ..entries import handle
from ..errors import AlreadyImported, CacheError, DiskCacheDirectory, SettingError
from ..structures import fanout
from ..system.signals import reraise_signal

__all__ = ["OldDirectory", "args_to_key", "install", "installed", "main", "uninstall"]

Existing = Literal["raise", "migrate", "fresh"]
EXISTING = get_args(Existing)
NAME = "diskcache"
VERSION = "5.6.3"  # of the DiskCache that has this interface; programs compare it

DBNAME = "cache.db"
METADATA = {"count": 0, "size": 0, "hits": 0, "misses": 0}


class OldDirectory(DiskCacheDirectory, sqlite3.OperationalError):
    """A directory that DiskCache wrote; programs that use DiskCache expect errors of SQLite when they open one."""

    __module__ = __package__


class StandIn(metaclass=ABCMeta):
    """What `diskcache` holds instead of a class of this package, whose instances count as its own."""

    _STANDS_FOR: type

    @classmethod
    def __subclasshook__(cls, kind: type) -> bool:
        own = cls.__dict__.get("_STANDS_FOR")  # a subclass made by a program stands for nothing but itself
        return True if own is not None and issubclass(kind, own) else NotImplemented


class Cache(StandIn, cache.Cache):
    """`diskcache_like.Cache`, but unknown keyword arguments are ignored with a warning."""

    __module__ = __package__
    _STANDS_FOR = cache.Cache
    _OPENING = cache.Cache._OPENING._replace(lenient=True)


class FanoutCache(StandIn, fanout.FanoutCache):
    """`diskcache_like.FanoutCache`, but unknown keyword arguments are ignored with a warning."""

    __module__ = __package__
    _STANDS_FOR = fanout.FanoutCache
    _OPENING = fanout.FanoutCache._OPENING._replace(lenient=True)
    _CHILD = Cache


_CORE = (
    "DBNAME DEFAULT_SETTINGS ENOVAL EVICTION_POLICY METADATA MODE_BINARY MODE_NONE MODE_PICKLE MODE_RAW MODE_TEXT "
    "UNKNOWN Cache Constant Disk EmptyDirWarning JSONDisk Timeout UnknownFileWarning args_to_key full_name"
)
_RECIPES = "Averager BoundedSemaphore Lock RLock barrier memoize_stampede throttle"
_PUBLIC = (
    "Averager BoundedSemaphore Cache DEFAULT_SETTINGS Deque Disk ENOVAL EVICTION_POLICY EmptyDirWarning FanoutCache "
    "Index JSONDisk Lock RLock Timeout UNKNOWN UnknownFileWarning barrier memoize_stampede throttle"
)

_STANDARD = "op=os.path os sqlite3 tempfile threading time"

# For each module: the names that it holds from this package, and those that are imported on first use, which are what
# needs Django and modules of the standard library (programs reach these through DiskCache's). An item of the latter is
# NAME=MODULE or NAME=MODULE:MEMBER; =MODULE may be left out if it is the same.
_CONTENTS: dict[str, tuple[str, str]] = {
    "": (
        _PUBLIC,
        "DjangoCache=diskcache_like.compat.django:DjangoCache djangocache=diskcache.djangocache cli=diskcache.cli",
    ),
    "cli": ("", ""),
    "core": (
        _CORE,
        f"{_STANDARD} cl=contextlib codecs errno ft=functools io json pickle pickletools struct warnings zlib",
    ),
    "djangocache": ("BaseCache DEFAULT_TIMEOUT DjangoCache ENOVAL FanoutCache args_to_key full_name", ""),
    "fanout": (
        "Cache DEFAULT_SETTINGS Deque Disk ENOVAL FanoutCache Index Timeout",
        f"{_STANDARD} cl=contextlib functools it=itertools operator",
    ),
    "persistent": ("Cache Deque ENOVAL Index", "op=operator"),
    "recipes": (f"ENOVAL {_RECIPES} args_to_key full_name", f"{_STANDARD} functools math random"),
}
_IMPORTED = ("core", "fanout", "persistent", "recipes")  # along with the package, as DiskCache does
_ABOUT = {
    "__title__": NAME,
    "__version__": VERSION,
    "__build__": 0x050603,
    "__author__": "The diskcache_like developers",
    "__license__": "Apache 2.0",
    "__copyright__": "The diskcache_like developers",
}

# Where in this package a name lives.
_HOMES = {
    "compat.modules": "Cache DBNAME FanoutCache METADATA args_to_key",
    "compat.django": "DjangoCache",
    "disk.contract": "Constant Disk MODE_BINARY MODE_NONE MODE_PICKLE MODE_RAW MODE_TEXT UNKNOWN",
    "djangocache": "BaseCache DEFAULT_TIMEOUT",
    "entries.loading": "ENOVAL",
    "errors": "EmptyDirWarning Timeout UnknownFileWarning",
    "disk.json_disk": "JSONDisk",
    "memoizing.identities": "full_name",
    "structures.deque": "Deque",
    "structures.index": "Index",
    "settings.policies": "EVICTION_POLICY",
    "recipes": _RECIPES,
    "settings.definitions": "DEFAULT_SETTINGS",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def install(existing: Existing | None = None) -> None:
    """Make `import diskcache` and its submodules resolve to this package from now on, in this process.

    `existing`: what opening a directory that DiskCache wrote does. 'raise' (the default): raise `OldDirectory`, which
    is an `sqlite3.OperationalError`. 'migrate': copy what is in it, once, into the folder `diskcache_like` in it, and
    use that; what cannot be copied as data is left out, with a warning. 'fresh': use that folder, empty at first. In
    each case DiskCache's own files stay as they are. It holds for every cache that this process opens. None: as an
    earlier call said.

    Raises AlreadyImported if the program has imported another `diskcache`, whose classes would stay in use beside
    these, and SettingError for another `existing`. Calling it again changes `existing` at most.
    """
    if existing not in (None, *EXISTING):
        raise SettingError(f"existing is {existing!r}, expected one of {', '.join(map(repr, EXISTING))}")
    foreign = [name for name in _loaded() if not _is_ours(sys.modules[name])]
    if foreign:
        raise AlreadyImported(
            f"{', '.join(foreign)} was imported from {getattr(sys.modules[foreign[0]], '__file__', None)} before "
            "diskcache_like.compat.install(); install first thing in the program, or start it with "
            "python -m diskcache_like.compat"
        )
    if existing is not None or not installed():
        handle.instead_of = partial(_instead_of, existing or "raise")
    if not installed():
        sys.meta_path.insert(0, _FINDER)


def uninstall() -> None:
    """Let `import diskcache` find the installed package of that name again; what was imported before stays usable."""
    if installed():
        sys.meta_path.remove(_FINDER)
    handle.instead_of = handle.refuse
    for name in _loaded():
        if _is_ours(sys.modules[name]):
            del sys.modules[name]


def installed() -> bool:
    """Tell whether `import diskcache` resolves to this package."""
    return _FINDER in sys.meta_path


def _instead_of(existing: Existing, found: DiskCacheDirectory, directory: str, disk: type[Disk]) -> str:
    """Return the directory that is used instead of one that DiskCache wrote, or raise OldDirectory."""
    from .migration.beside import FOLDER, copy_once  # late: few programs need it

    place = os.path.join(directory, FOLDER)
    if existing == "raise":
        raise OldDirectory(
            f"{found}; or choose by diskcache_like.compat.install(existing=...): 'migrate' copies it into {place!r} and"
            " goes on there, 'fresh' begins an empty cache there, 'raise' raises this error"
        ) from None
    if existing == "migrate":
        try:
            copy_once(directory, disk)
        except (CacheError, OSError) as error:
            reraise_signal(error)
            raise OldDirectory(f"{directory!r} was written by DiskCache 5 and is not migrated: {error}") from error
    return place


def _loaded() -> list[str]:
    return sorted(name for name in tuple(sys.modules) if name == NAME or name.startswith(f"{NAME}."))


def _is_ours(module: ModuleType | None) -> bool:
    return getattr(getattr(module, "__spec__", None), "loader", None) is _FINDER


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find and make the modules; the import system locks, registers and binds them like all others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of one of DiskCache's modules, or None."""
        package, _, name = fullname.partition(".")
        if package != NAME or name not in _CONTENTS:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=cache.__file__, is_package=not name)
        spec.has_location = True  # gives the module its `__file__`, next to which programs look for other files
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Fill a new module."""
        _, _, name = module.__name__.partition(".")
        ours, lazy = _CONTENTS[name]
        module.__doc__ = f"DiskCache's `{module.__name__}`, from diskcache_like."
        for word in ours.split():
            module.__dict__[word] = getattr(importlib.import_module(f"..{_HOME[word]}", __package__), word)
        items = (item.partition("=") for item in lazy.split())
        module.__dict__["__getattr__"] = _lazy_getattr(module, {key: source or key for key, _, source in items})
        if not name:
            django = ["DjangoCache"] if importlib.util.find_spec("django") else []
            module.__dict__.update(_ABOUT, __all__=[*ours.split(), *django])
            for submodule in _IMPORTED:
                importlib.import_module(f"{NAME}.{submodule}")


_FINDER = _Finder()


def _lazy_getattr(module: ModuleType, sources: dict[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for `module` that imports a name when it is first used."""

    def find(name: str) -> Any:
        source, _, member = sources.get(name, "").partition(":")
        error: ImportError | None = None
        if source:
            try:
                found = importlib.import_module(source)
                return getattr(found, member) if member else found
            except ImportError as reason:
                error = reason
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}", name=name, obj=module) from error

    return find


def args_to_key(
    base: tuple[Any, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    typed: bool,
    ignore: Sequence[int | str] | set[int | str],
) -> tuple[Any, ...]:
    """Return a key for a call: `base`, the arguments that `ignore` does not name, and with `typed` their types.

    It is the key that DiskCache makes, unless an argument is None: there DiskCache gives calls like ``f(None, "x", 1)``
    and ``f(x=1)`` the same key. This package's `memoize` makes its keys differently, from the bound arguments.
    """
    args = tuple(value for position, value in enumerate(args) if position not in ignore)
    named = sorted((name, value) for name, value in kwargs.items() if name not in ignore)
    # None ends the positional arguments. If one of them is None, they form one field after that end instead.
    key = (None, args) if any(value is None for value in args) else (*args, None)
    for pair in named:
        key += pair
    if typed:
        key += tuple(type(value) for value in args) + tuple(type(value) for _, value in named)
    return base + key


def main(arguments: Sequence[str] | None = None) -> None:
    """Install, then run a script or module with the remaining arguments, as Python would."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    existing: Any = None
    if given[:1] == ["--existing"]:
        existing = given[1] if len(given) > 1 else ""
        del given[:2]
    as_module = given[:1] == ["-m"]
    program = given[as_module:]
    if not program or (program[0].startswith("-") and not as_module):
        what = "[--existing raise|migrate|fresh] (SCRIPT | -m MODULE) [ARGUMENT ...]"
        raise SystemExit(f"usage: python -m diskcache_like.compat {what}")
    install(existing)
    sys.argv[:] = program
    if as_module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(program[0]))
        runpy.run_path(program[0], run_name="__main__")
