"""Pickle what is not data, and decide whether that is allowed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from typing import Any, Final, Literal, cast

from .errors import DecodeError, SettingError, ValueEncodeError
from .interrupts import let_through

PicklePolicy = Literal["signed", "never", "trusted"]

POLICY_VARIABLE: Final = "DISKCACHE_LIKE_PICKLE"
_POLICIES: Final = ("signed", "never", "trusted")


def resolve_pickle_policy(setting: str | None, environ: Mapping[str, str] | None = None) -> PicklePolicy:
    """Decide the policy: `never` in the environment, else the setting, else the environment, else `signed`."""
    override = (os.environ if environ is None else environ).get(POLICY_VARIABLE) or None
    for name, value in (("pickle", setting), (POLICY_VARIABLE, override)):
        if value is not None and value not in _POLICIES:
            raise SettingError(f"{name} must be one of {', '.join(map(repr, _POLICIES))}, not {value!r}")
    if override == "never":
        return "never"
    return cast(PicklePolicy, setting or override or "signed")


def dumps_pickle(value: object, protocol: int = pickle.HIGHEST_PROTOCOL) -> bytes:
    """Pickle a value, or raise `ValueEncodeError` naming its type and the choices."""
    try:
        return pickle.dumps(value, protocol)
    except MemoryError:
        raise
    except Exception as exc:
        let_through(exc)
        kind = type(value)
        raise ValueEncodeError(
            f"a value of type {kind.__module__}.{kind.__qualname__} is neither plain data nor can it be pickled"
            f" ({type(exc).__name__}: {exc}); store plain data made from it, define its __reduce__, or encode it in a"
            f" Disk of your own"
        ) from exc


def loads_pickle(data: bytes | memoryview) -> Any:
    """Unpickle authenticated or trusted bytes, and only those; whatever goes wrong is a `DecodeError`."""
    try:
        return pickle.loads(data)  # noqa: S301 - the caller has authenticated the bytes or was told to trust them
    except Exception as exc:
        let_through(exc)
        raise DecodeError(f"stored pickle of {len(data)} bytes cannot be loaded ({type(exc).__name__}: {exc})") from exc
