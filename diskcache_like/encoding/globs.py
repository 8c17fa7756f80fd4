r"""Globs, as Redis has them for its keys: `*`, `?`, `[abc]`, `[^a-c]`, and `\` before a character that means itself."""

from __future__ import annotations

import re

_SPECIAL = re.compile(r"[*?\[\\]")
_MEMBERS = r"\\.|[^\\\]]-.|[^\\\]]"
_PART = re.compile(rf"(\*+)|(\?)|\[(\^?)((?:{_MEMBERS})*)(?:\]|\Z)|\\(.)|(.)", re.DOTALL)


def head_of(glob: str) -> str:
    """Return what all texts begin with that match a glob."""
    return _SPECIAL.split(glob, maxsplit=1)[0]


def pattern_of(glob: str) -> re.Pattern[str]:
    """Return a pattern whose `match` tells whether a text matches a glob, in time that grows with the text alone."""
    parts = [""]
    for star, one, inverse, members, escaped, plain in _PART.findall(glob):
        if star:
            parts.append("")
        else:
            parts[-1] += re.escape(escaped or plain) or ("." if one else _one_of(members, bool(inverse)))
    first, *others = parts
    # What lies between two stars is taken where it comes first, and nowhere else: no later place would be better.
    found = first + "".join(f"(?>.*?{part})" for part in others[:-1]) + "".join(f".*{part}" for part in others[-1:])
    return re.compile(rf"{found}\Z", re.DOTALL)


def _one_of(members: str, inverse: bool) -> str:
    """Return a pattern for one character that is among the members of a class, or for one that is not."""
    found = ""
    for member in re.findall(_MEMBERS, members, re.DOTALL):
        is_range = len(member) == 3  # else a character, or a backslash and one
        ends = sorted((member[0], member[2])) if is_range else [member[-1]]
        found += "-".join(map(re.escape, ends))
    if not found:
        return "." if inverse else "(?!)"
    return f"[{'^' if inverse else ''}{found}]"
