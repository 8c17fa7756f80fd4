"""Pickle values that are not plain data, if the policy allows it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from typing import Any, Final, Literal, cast

from ..errors import DecodeError, SettingError, ValueEncodeError
from ..system.signals import reraise_signal

PicklePolicy = Literal["signed", "never", "trusted"]

POLICY_VARIABLE: Final = "DISKCACHE_LIKE_PICKLE"
_POLICIES: Final = ("signed", "never", "trusted")


def resolve_pickle_policy(setting: str | None, environ: Mapping[str, str] | None = None) -> PicklePolicy:
    """Choose the policy: `never` if the environment says so, else the setting, else the environment, else `signed`."""
    override = (os.environ if environ is None else environ).get(POLICY_VARIABLE) or None
    for name, value in (("pickle", setting), (POLICY_VARIABLE, override)):
        if value is not None and value not in _POLICIES:
            raise SettingError(f"{name} must be one of {', '.join(map(repr, _POLICIES))}, not {value!r}")
    if override == "never":
        return "never"
    return cast(PicklePolicy, setting or override or "signed")


def dumps_pickle(value: object, protocol: int = pickle.HIGHEST_PROTOCOL) -> bytes:
    """Pickle a value, or raise a `ValueEncodeError` that names its type and what to do."""
    try:
        return pickle.dumps(value, protocol)
    except MemoryError:
        raise
    except Exception as exc:
        reraise_signal(exc)
        kind = type(value)
        raise ValueEncodeError(
            f"a value of type {kind.__module__}.{kind.__qualname__} is neither plain data nor can it be pickled"
            f" ({type(exc).__name__}: {exc}); convert it to plain data, define its __reduce__, or encode it in a Disk"
            f" of your own"
        ) from exc


def loads_pickle(data: bytes | memoryview) -> Any:
    """Unpickle bytes that are authenticated or trusted, never any others; raise `DecodeError` if that fails."""
    try:
        return pickle.loads(data)  # noqa: S301 - the caller has authenticated the bytes, or was told to trust them
    except Exception as exc:
        reraise_signal(exc)
        raise DecodeError(f"stored pickle of {len(data)} bytes cannot be loaded ({type(exc).__name__}: {exc})") from exc
