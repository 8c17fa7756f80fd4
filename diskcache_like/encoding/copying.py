"""Copies of decoded values: a caller gets one of its own, in a fraction of the time that decoding the bytes takes."""

from __future__ import annotations

from collections.abc import Callable
from sys import getsizeof
from typing import Any, Final

from .values import is_immutable

Copier = Callable[[Any], Any]

_ATOMS: Final = frozenset({str, int, float, bool, type(None), bytes})  # exact types: all callers may share these
_CONTAINERS: Final = frozenset({list, dict, set, tuple, frozenset})
_MOST: Final = 256  # parts of a value that are copied one by one; with more, decoding is as fast
_PART: Final = 450  # bytes of memory that the copier of such a part takes
_DEEPEST: Final = 16


def copier_of(value: Any) -> tuple[Copier | None, int]:
    """Return what copies a value and everything mutable in it, and about how many bytes of memory both take.

    None and 0 for a value that has to be decoded anew. `value`: a tree, as decoding makes it, in which no part stands
    in two places. It must never change: a copier knows where its mutable parts are.
    """
    left = [_MOST]
    copier = _copier(value, left, _DEEPEST)
    return copier, 0 if copier is None else size_of(value) + _PART * (_MOST - left[0])


def size_of(value: Any) -> int:
    """Return about how many bytes of memory a value takes with all of its members, shared ones included."""
    total, pending = getsizeof(value), [value]
    while pending:
        container = pending.pop()
        for members in (container, container.values()) if type(container) is dict else (container,):
            total += sum(map(getsizeof, members))
            pending += [member for member in members if type(member) in _CONTAINERS]
    return total


def _copier(value: Any, left: list[int], depth: int) -> Copier | None:
    kind = type(value)
    if kind is list:
        return _copier_of_list(value, left, depth)
    if kind is dict:
        return _copier_of_dict(value, left, depth)
    if kind is set and all(map(is_immutable, value)):
        return set.copy
    return None


def _copier_of_list(value: list[Any], left: list[int], depth: int) -> Copier | None:
    kinds = set(map(type, value))
    if kinds <= _ATOMS:
        return list.copy
    if kinds == {dict} and all(_ATOMS.issuperset(map(type, [*each, *each.values()])) for each in value):
        return lambda original: [*map(dict.copy, original)]
    if kinds == {list} and all(_ATOMS.issuperset(map(type, each)) for each in value):
        return lambda original: [*map(list.copy, original)]
    return _copier_of_parts(list.copy, enumerate(value), left, depth)


def _copier_of_dict(value: dict[Any, Any], left: list[int], depth: int) -> Copier | None:
    if not _ATOMS.issuperset(map(type, value)) and not all(map(is_immutable, value)):
        return None
    if _ATOMS.issuperset(map(type, value.values())):
        return dict.copy
    return _copier_of_parts(dict.copy, value.items(), left, depth)


def _copier_of_parts(copy: Copier, members: Any, left: list[int], depth: int) -> Copier | None:
    """Return what copies a container, and then each of its members that is mutable."""
    parts: list[tuple[Any, Copier]] = []
    for place, member in members:
        if type(member) in _ATOMS or is_immutable(member):
            continue
        copier = _copier(member, left, depth - 1) if depth else None
        left[0] -= 1
        if copier is None or left[0] < 0:
            return None
        parts.append((place, copier))

    def copied(original: Any) -> Any:
        new = copy(original)
        for place, copier in parts:
            new[place] = copier(original[place])
        return new

    return copied
