"""Build the documentation: Markdown pages beside this file, and a reference from the docstrings."""

from __future__ import annotations

import re

import diskcache_like

project = "diskcache_like"
author = "The diskcache_like developers"
copyright = author
version = release = diskcache_like.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"diskcache_like {version}"

# `[text](#some-heading)` works as it does on a forge.
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"


def read_markdown(_app: object, _what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Turn the Markdown of our docstrings, which is little more than `code`, into what Sphinx expects of docstrings."""
    lines[:] = [re.sub(r"(?<!`)`([^`]+)`(?!`)(\w?)", as_literal, line) for line in lines]


def as_literal(found: re.Match[str]) -> str:
    """Write code as a literal, set off from a letter that follows at once, as in `Timeout`s."""
    code, letter = found.groups()
    return f"``{code}``" + (f"\\ {letter}" if letter else "")


def setup(app: object) -> None:
    """Register the docstring reader."""
    app.connect("autodoc-process-docstring", read_markdown)  # type: ignore[attr-defined]
