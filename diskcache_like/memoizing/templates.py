"""Templates: text such as 'user:{user.id}' that names arguments of a call, for keys and tags."""

from __future__ import annotations

import functools
import inspect
import string
from collections.abc import Callable
from typing import Any, NamedTuple


class _Field(NamedTuple):
    """A field of a template: names that lead to a value, and how it becomes text."""

    literal: str  # the text before it
    names: list[str]
    form: str
    conversion: str

    def value(self, arguments: dict[str, Any]) -> Any:
        """Return the value that the field has in a call."""
        return functools.reduce(getattr, self.names[1:], arguments[self.names[0]])

    def text(self, value: Any) -> str:
        """Return the value as text; raise TypeError for an object whose text is its address."""
        text = format(_CONVERTED[self.conversion](value), self.form)
        if f"{id(value):x}" in text.lower():
            field, kind = "{" + ".".join(self.names) + "}", type(value).__qualname__
            raise TypeError(f"{field} is a {kind}, in whose text is its address: name an attribute that identifies it")
        return text


def template(function: Callable[..., Any], text: str) -> Callable[..., str]:
    """Return a function of a call's arguments that fills them into a text such as 'user:{user.id}'.

    Fields name parameters, and attributes of what they are given. Nothing is called or indexed, and no name begins with
    an underscore. Raises TypeError for any other text, where the function is decorated.
    """
    signature, fields, end = _parsed(function, text)

    def filled(*args: Any, **kwargs: Any) -> str:
        arguments = _bound(signature, args, kwargs)
        return "".join(field.literal + field.text(field.value(arguments)) for field in fields) + end

    return filled


def key_template(function: Callable[..., Any], text: str) -> Callable[..., Any]:
    """Return a function of a call's arguments that returns the text with the values of its fields, each by itself.

    So two calls have one key only if all values are equal. A field with a conversion or format counts as its text.
    """
    signature, fields, _ = _parsed(function, text)

    def made(*args: Any, **kwargs: Any) -> Any:
        arguments = _bound(signature, args, kwargs)
        values = ((field, field.value(arguments)) for field in fields)
        return (
            text,
            *(field.text(value) if field.form or field.conversion else value for field, value in values),
        )

    return made


def _bound(signature: inspect.Signature, args: Any, kwargs: Any) -> dict[str, Any]:
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _parsed(function: Callable[..., Any], text: str) -> tuple[inspect.Signature, list[_Field], str]:
    """Return the function's signature, the fields of a template, and the text behind them."""
    signature = inspect.signature(function)
    fields, end = [], ""
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        raise TypeError(f"{text!r} is no template: {error}") from error
    for literal, field, form, conversion in parts:
        end += literal
        if field is None:
            continue
        names = field.split(".")
        if names[0] not in signature.parameters or any(not n.isidentifier() or n.startswith("_") for n in names):
            raise TypeError(
                f"{text!r} has the field {field!r}, expected parameters of {function!r:.80}, and attributes"
            )
        if (conversion or "") not in _CONVERTED or "{" in (form or ""):
            raise TypeError(
                f"{text!r} has the field {field!r} with another conversion than !s, !r or !a, or a field in it"
            )
        fields.append(_Field(end, names, form or "", conversion or ""))
        end = ""
    return signature, fields, end


_CONVERTED: dict[str, Callable[[Any], Any]] = {"": lambda value: value, "s": str, "r": repr, "a": ascii}
