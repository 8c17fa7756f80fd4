"""Run programs that say `import diskcache` on this package, without changing them.

`install()` puts a finder in front of Python's own, so that `diskcache` and its submodules are made from this package
when they are first imported. Nothing is patched: the modules hold the very classes that `diskcache_like` has, and those
of the standard library that DiskCache's modules happen to hold.

``python -m diskcache_like.compat SCRIPT [ARGUMENT ...]`` and ``python -m diskcache_like.compat -m MODULE [ARGUMENT
...]`` install it and then run a program, ``-m pytest`` for one.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from .errors import AlreadyImported

__all__ = ["args_to_key", "install", "installed", "main", "uninstall"]

NAME = "diskcache"
VERSION = "5.6.3"  # of the DiskCache whose interface this is; programs compare it

DBNAME = "cache.db"
METADATA = {"count": 0, "size": 0, "hits": 0, "misses": 0}

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

# What each module holds from this package, and what is looked up when it is asked for: modules of the standard library,
# through which programs reach them, and what needs Django. An item is NAME=MODULE or NAME=MODULE:MEMBER.
_CONTENTS: dict[str, tuple[str, str]] = {
    "": (
        _PUBLIC,
        "DjangoCache=diskcache_like.djangocache:DjangoCache djangocache=diskcache.djangocache cli=diskcache.cli",
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
_IMPORTED = ("core", "fanout", "persistent", "recipes")  # with the package: `diskcache.core` needs no line of its own
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
    "cache": "Cache",
    "compat": "DBNAME METADATA args_to_key",
    "disk": "Constant Disk MODE_BINARY MODE_NONE MODE_PICKLE MODE_RAW MODE_TEXT UNKNOWN",
    "djangocache": "BaseCache DEFAULT_TIMEOUT DjangoCache",
    "entries": "ENOVAL",
    "errors": "EmptyDirWarning Timeout UnknownFileWarning",
    "fanout": "FanoutCache",
    "json_disk": "JSONDisk",
    "memoize": "full_name",
    "persistent": "Deque Index",
    "policies": "EVICTION_POLICY",
    "recipes": _RECIPES,
    "settings": "DEFAULT_SETTINGS",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def install() -> None:
    """Make `import diskcache` and its submodules resolve to this package from now on, in this process.

    Raises AlreadyImported when the program has imported another `diskcache`: its classes would go on being used beside
    these. Installed twice is installed once.
    """
    foreign = [name for name in _loaded() if not _is_ours(sys.modules[name])]
    if foreign:
        raise AlreadyImported(
            f"{', '.join(foreign)} was imported from {getattr(sys.modules[foreign[0]], '__file__', None)} before "
            "diskcache_like.compat.install(); install first thing in the program, or start it with "
            "python -m diskcache_like.compat"
        )
    if not installed():
        sys.meta_path.insert(0, _FINDER)


def uninstall() -> None:
    """Let `import diskcache` find what is installed under that name again; what was imported before stays usable."""
    if installed():
        sys.meta_path.remove(_FINDER)
    for name in _loaded():
        if _is_ours(sys.modules[name]):
            del sys.modules[name]


def installed() -> bool:
    """Tell whether `import diskcache` resolves to this package."""
    return _FINDER in sys.meta_path


def _loaded() -> list[str]:
    return sorted(name for name in tuple(sys.modules) if name == NAME or name.startswith(f"{NAME}."))


def _is_ours(module: ModuleType | None) -> bool:
    return getattr(getattr(module, "__spec__", None), "loader", None) is _FINDER


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find and make the modules; the import system locks, registers and binds them like any others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module that DiskCache has, or None."""
        package, _, name = fullname.partition(".")
        if package != NAME or name not in _CONTENTS:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=__file__, is_package=not name)

    def exec_module(self, module: ModuleType) -> None:
        """Fill a new module."""
        _, _, name = module.__name__.partition(".")
        ours, late = _CONTENTS[name]
        module.__doc__ = f"DiskCache's `{module.__name__}`, from diskcache_like."
        module.__dict__.update({word: _ours(word) for word in ours.split()})
        module.__dict__["__getattr__"] = _looking_up(module, dict(_named(word) for word in late.split()))
        if not name:
            module.__dict__.update(_ABOUT, __all__=[*ours.split(), *_with_django()])
            for submodule in _IMPORTED:
                importlib.import_module(f"{NAME}.{submodule}")


_FINDER = _Finder()


def _ours(name: str) -> Any:
    return getattr(importlib.import_module(f".{_HOME[name]}", __package__), name)


def _named(item: str) -> tuple[str, str]:
    name, _, source = item.partition("=")
    return name, source or name


def _with_django() -> list[str]:
    return ["DjangoCache"] if importlib.util.find_spec("django") else []


def _looking_up(module: ModuleType, sources: dict[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for `module` that imports what is asked for."""

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

    It is DiskCache's, except where an argument is None: there DiskCache gives calls like ``f(None, "x", 1)`` and
    ``f(x=1)`` one key. `memoize` of this package makes its keys otherwise, from the bound arguments.
    """
    args = tuple(value for position, value in enumerate(args) if position not in ignore)
    named = sorted((name, value) for name, value in kwargs.items() if name not in ignore)
    # None ends the arguments given by position. Where one of them is None they are one field after the end instead.
    key = (None, args) if any(value is None for value in args) else (*args, None)
    for pair in named:
        key += pair
    if typed:
        key += tuple(type(value) for value in args) + tuple(type(value) for _, value in named)
    return base + key


def main(arguments: Sequence[str] | None = None) -> None:
    """Install, then run a script or a module as Python would, with the rest of the arguments."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_module = given[:1] == ["-m"]
    program = given[as_module:]
    if not program or (program[0].startswith("-") and not as_module):
        raise SystemExit("usage: python -m diskcache_like.compat (SCRIPT | -m MODULE) [ARGUMENT ...]")
    install()
    sys.argv[:] = program
    if as_module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(program[0]))
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    importlib.import_module("diskcache_like.compat").main()  # not this copy: others import the one of that name
