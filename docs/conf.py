"""Build the documentation: Markdown pages beside this file, and a reference from the docstrings."""

from __future__ import annotations

import re

from sphinx.pycode import ModuleAnalyzer

import diskcache_like

project = "diskcache_like"
author = "The diskcache_like developers"
copyright = author
version = release = diskcache_like.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"diskcache_like {version}"
html_theme_options = {name: {"code-font-size": "78%"} for name in ("light_css_variables", "dark_css_variables")}
html_static_path = ["static"]
html_css_files = ["pages.css"]

# `[text](#some-heading)` works as it does on a forge.
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
add_module_names = False
# One parameter a line where a signature would not fit a phone or half a screen.
python_maximum_signature_line_length = 60


def read_markdown(_app: object, _what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Turn our docstrings, whose Markdown is little more than `code`, into what Sphinx expects of docstrings."""
    paragraphs = "\n".join(lines).strip().split("\n\n")
    told = [line for paragraph in paragraphs for line in with_parameters(paragraph)]
    lines[:] = [re.sub(r"(?<!`)`([^`]+)`(?!`)(\w?)", as_literal, line) for line in told]


def with_parameters(paragraph: str) -> list[str]:
    """Return the lines of a paragraph; sentences such as "`expire`: seconds." become items in a list of parameters."""
    lines: list[str] = []
    in_list = False
    for sentence in re.split(r"(?<=\.)\s+|(?<=;)\s+(?=`\w+`: )", paragraph):
        parameter = re.fullmatch(r"`(\w+)`: (.*)", sentence.replace("\n", " "))
        if lines and in_list != bool(parameter):
            lines.append("")
        in_list = bool(parameter)
        lines += [f":param {parameter[1]}: {parameter[2].rstrip(';.')}."] if parameter else sentence.split("\n")
    return [*lines, ""]


def as_literal(found: re.Match[str]) -> str:
    """Write code as a literal, set off from a letter that follows at once, as in `Timeout`s."""
    code, letter = found.groups()
    return f"``{code}``" + (f"\\ {letter}" if letter else "")


def without_overloads(self: ModuleAnalyzer) -> None:
    """Analyze a module, and forget its overloads: those of `get` would hide the signature with all parameters."""
    analyze(self)
    self.overloads = {}


analyze = ModuleAnalyzer.analyze
ModuleAnalyzer.analyze = without_overloads  # type: ignore[method-assign]


def setup(app: object) -> None:
    """Register the docstring reader."""
    app.connect("autodoc-process-docstring", read_markdown)  # type: ignore[attr-defined]
