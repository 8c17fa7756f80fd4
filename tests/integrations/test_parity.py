"""The surface is DiskCache's: every public name, signature, default and member, compared with the installed DiskCache.

What this package adds to a signature has a default and comes behind what DiskCache has. What differs on purpose is
listed here with its reason; an entry that does not differ any more fails the test as well.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pickle
import types
from collections.abc import Callable
from typing import Any

import pytest

import diskcache_like
from diskcache_like import compat

pytest.importorskip("diskcache")

Parameter = inspect.Parameter
NAMED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)

MODULES = ["", "cli", "core", "djangocache", "fanout", "persistent", "recipes"]
CLASSES = {
    "core": ["Cache", "Constant", "Disk", "EmptyDirWarning", "JSONDisk", "Timeout", "UnknownFileWarning"],
    "djangocache": ["DjangoCache"],
    "fanout": ["FanoutCache"],
    "persistent": ["Deque", "Index"],
    "recipes": ["Averager", "BoundedSemaphore", "Lock", "RLock"],
}
FUNCTIONS = {"core": ["args_to_key", "full_name"], "recipes": ["barrier", "memoize_stampede", "throttle"]}

# name of a signature: (the difference, the reason)
SIGNATURES_THAT_DIFFER = {
    "Disk.__init__": (
        [
            "min_file_size is 32768 by default, not 0",
            f"pickle_protocol is {pickle.HIGHEST_PROTOCOL} by default, not 0",
        ],
        "a cache always passes both; a Disk made alone should do what one in a cache does",
    ),
    **dict.fromkeys(
        ("Cache.evict", "DjangoCache.evict", "FanoutCache.evict"),
        (["tag is None by default, not <class 'inspect._empty'>"], "several tags are given as tags=[...] instead"),
    ),
    "FanoutCache.expire": (
        ["now comes before retry"],
        "a FanoutCache is a Cache, whose expire has `now` in front in DiskCache too",
    ),
}
DEFAULTS_THAT_DIFFER = {
    "eviction_policy": ("second-chance", "more hits in every Zipf run, and a scan pushes nothing popular out"),
    "sqlite_auto_vacuum": (2, "incremental: full makes deletes 2.7 times slower"),
    "sqlite_mmap_size": (0, "memory-mapped reads turn a passing I/O error into a signal and gained nothing"),
}
MEMBERS_THAT_ARE_MISSING = {
    "FanoutCache.__getattr__": "settings are attributes by being set; nothing is looked up in a shard",
}
NAMES_THAT_ARE_MISSING = {
    "djangocache.wraps": "from functools",
    "persistent.ItemsView": "from collections.abc, as all of these",
    "persistent.KeysView": "",
    "persistent.MutableMapping": "",
    "persistent.OrderedDict": "",
    "persistent.Sequence": "",
    "persistent.ValuesView": "",
    "persistent.contextmanager": "",
    "persistent.rmtree": "",
}


def their(module: str) -> Any:
    if module == "djangocache":
        pytest.importorskip("django")
    return importlib.import_module(f"diskcache.{module}".rstrip("."))


def our(module: str) -> Any:
    """Return the module as `compat.install` makes it, without installing it."""
    if module == "djangocache":
        pytest.importorskip("django")
    spec = compat.modules._FINDER.find_spec(f"diskcache.{module}".rstrip("."), None)
    assert spec is not None
    made = importlib.util.module_from_spec(spec)
    compat.modules._FINDER.exec_module(made)
    return made


def members(of: dict[str, list[str]]) -> list[Any]:
    return [pytest.param(module, name, id=name) for module, names in of.items() for name in names]


def public(names: Any) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def differences(theirs: Callable[..., Any], ours: Callable[..., Any]) -> list[str]:
    """Return what a caller who knows DiskCache's signature would stumble over."""
    wanted = list(inspect.signature(theirs).parameters.values())
    found = list(inspect.signature(ours).parameters.values())
    told: list[str] = []
    names = [parameter.name for parameter in found if parameter.kind in NAMED]
    for position, parameter in enumerate(parameter for parameter in wanted if parameter.kind in NAMED):
        if parameter.name == "self":
            continue
        if parameter.name not in names:
            told.append(f"{parameter.name} is missing")
            continue
        mine = found[[one.name for one in found].index(parameter.name)]
        if names.index(parameter.name) != position:
            told.append(f"{names[position]} comes before {parameter.name}")
        if mine.kind is not parameter.kind:
            told.append(f"{parameter.name} is {mine.kind.description}, not {parameter.kind.description}")
        if not same_default(parameter.default, mine.default):
            told.append(f"{parameter.name} is {mine.default!r} by default, not {parameter.default!r}")
    known = {parameter.name for parameter in wanted}
    told += [
        f"{parameter.name} has no default"
        for parameter in found
        if parameter.kind in NAMED and parameter.name not in known and parameter.default is Parameter.empty
    ]
    for kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
        if any(parameter.kind is kind for parameter in wanted) > any(parameter.kind is kind for parameter in found):
            told.append(f"takes no {kind.description} arguments")
    return told


def same_default(theirs: Any, ours: Any) -> bool:
    if isinstance(theirs, type) and isinstance(ours, type):
        return theirs.__name__ == ours.__name__
    return bool(theirs == ours) and (type(theirs) is type(ours) or isinstance(theirs, tuple))


def accepts(function: Callable[..., Any], count: int) -> bool:
    """Tell whether a special method takes this number of arguments, as the language gives them to it."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    return True


def special_arguments(function: Callable[..., Any]) -> int:
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in parameters):
        return 4  # __exit__: self, and three things about the error
    return sum(parameter.default is Parameter.empty and parameter.kind in NAMED for parameter in parameters)


@pytest.mark.parametrize("module", MODULES)
def test_every_name_is_there(module: str) -> None:
    theirs, ours = their(module), our(module)
    missing = {name for name in dir(theirs) if not name.startswith("_") and not hasattr(ours, name)}
    known = {name.partition(".")[2] for name in NAMES_THAT_ARE_MISSING if name.startswith(f"{module}.")}
    assert missing - set(MODULES) == known  # submodules are bound by an import statement: see test_compat


def test_the_package_says_of_itself_what_diskcache_says() -> None:
    theirs, ours = their(""), our("")
    assert set(ours.__all__) - {"DjangoCache"} == set(theirs.__all__) - {"DjangoCache"}
    assert (ours.__version__, ours.__build__, ours.__title__) == (
        theirs.__version__,
        theirs.__build__,
        theirs.__title__,
    )


def test_the_names_of_the_package_are_exported_by_diskcache_like() -> None:
    missing = {name for name in their("").__all__ if not hasattr(diskcache_like, name)} - {"DjangoCache"}
    assert not missing
    assert public(their("").__all__) - {"DjangoCache"} <= set(diskcache_like.__all__)


@pytest.mark.parametrize(("module", "name"), members(CLASSES))
def test_every_class_has_every_member(module: str, name: str) -> None:
    theirs, ours = getattr(their(module), name), getattr(our(module), name)
    wanted = public(dir(theirs)) | {one for one in vars(theirs) if one.startswith("__") and callable(vars(theirs)[one])}
    missing = {one for one in wanted if not hasattr(ours, one)}
    assert missing == {one.partition(".")[2] for one in MEMBERS_THAT_ARE_MISSING if one.startswith(f"{name}.")}


@pytest.mark.parametrize(("module", "name"), members(CLASSES))
def test_every_member_is_of_the_same_kind(module: str, name: str) -> None:
    theirs, ours = getattr(their(module), name), getattr(our(module), name)
    for member in public(dir(theirs)):
        wanted, found = inspect.getattr_static(theirs, member), inspect.getattr_static(ours, member)
        for kind in (property, classmethod, staticmethod):
            assert isinstance(found, kind) == isinstance(wanted, kind), member
        assert inspect.iscoroutinefunction(wanted) == inspect.iscoroutinefunction(found), member


@pytest.mark.parametrize(("module", "name"), members(CLASSES))
def test_every_method_has_the_same_signature(module: str, name: str) -> None:
    theirs, ours = getattr(their(module), name), getattr(our(module), name)
    methods = [one for one in public(dir(theirs)) | {"__init__"} if callable(getattr(theirs, one, None))]
    found = {}
    for method in methods:
        if isinstance(getattr(theirs, method), types.FunctionType | types.MethodType):
            told = differences(getattr(theirs, method), getattr(ours, method))
            if told:
                found[f"{name}.{method}"] = told
    known = {
        signature: told for signature, (told, _) in SIGNATURES_THAT_DIFFER.items() if signature.startswith(f"{name}.")
    }
    assert found == {signature: told for signature, told in known.items() if told}


@pytest.mark.parametrize(("module", "name"), members(CLASSES))
def test_every_special_method_takes_what_the_language_gives_it(module: str, name: str) -> None:
    theirs, ours = getattr(their(module), name), getattr(our(module), name)
    for method, function in vars(theirs).items():
        special = method.startswith("__") and method not in ("__init__", "__new__", "__getattr__")
        if special and isinstance(function, types.FunctionType):
            assert accepts(getattr(ours, method), special_arguments(function)), method


@pytest.mark.parametrize(("module", "name"), members(FUNCTIONS))
def test_every_function_has_the_same_signature(module: str, name: str) -> None:
    assert differences(getattr(their(module), name), getattr(our(module), name)) == []


@pytest.mark.parametrize("module", ["core", "djangocache", "fanout", "persistent", "recipes"])
def test_no_class_or_function_is_forgotten_here(module: str) -> None:
    theirs = their(module)
    code = {name: value for name, value in vars(theirs).items() if isinstance(value, type | types.FunctionType)}
    own = {name for name, value in code.items() if value.__module__ == theirs.__name__}
    assert public(own) == {*CLASSES.get(module, []), *FUNCTIONS.get(module, [])}


def test_constants_are_the_same() -> None:
    theirs, ours = their("core"), our("core")
    names = ["DBNAME", "ENOVAL", "METADATA", "UNKNOWN", *(name for name in vars(theirs) if name.startswith("MODE_"))]
    assert {name: getattr(ours, name) for name in names} == {name: getattr(theirs, name) for name in names}
    assert [*ours.EVICTION_POLICY] == [*theirs.EVICTION_POLICY, "second-chance"]


def test_every_setting_is_there_with_its_default() -> None:
    theirs, ours = their("core").DEFAULT_SETTINGS, our("core").DEFAULT_SETTINGS
    differing = {name: ours.get(name) for name, value in theirs.items() if ours.get(name) != value}
    assert differing == {name: value for name, (value, _) in DEFAULTS_THAT_DIFFER.items()}


@pytest.mark.parametrize(
    ("error", "base"), [("NotOwner", AssertionError), ("Timeout", Exception), ("UnknownFileWarning", UserWarning)]
)
def test_errors_are_caught_as_in_diskcache(error: str, base: type[Exception]) -> None:
    assert issubclass(getattr(diskcache_like, error), base)


def test_a_signature_that_differs_is_seen() -> None:
    def theirs(key: Any, value: Any = None, *args: Any) -> None: ...
    def ours(value: Any, *, key: Any, more: Any) -> None: ...

    assert differences(theirs, ours) == [
        "value comes before key",
        "key is keyword-only, not positional or keyword",
        "key comes before value",
        f"value is {Parameter.empty!r} by default, not None",
        "more has no default",
        "takes no variadic positional arguments",
    ]
