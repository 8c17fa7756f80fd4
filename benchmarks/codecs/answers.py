"""Small values that resemble each other, as caches are full of them, and how much of each nobody could foresee.

Every value is drawn by a `Counting` dice, which adds up the information of what it is asked for. What a value has
beyond that, names of fields, constants, what follows from something else in it, a perfect codec would know beforehand.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from benchmarks.codecs.values import FREQUENCIES, VOCABULARY, records

CENT = 100
"""Steps per unit of what is rounded to two decimals."""


class Counting(random.Random):
    """A dice that counts the bits of what it draws, and never too many: a bare `random()` counts for none."""

    bits = 0.0

    def choice(self, seq: Any) -> Any:
        """Draw one of a sequence."""
        self.bits += math.log2(len(seq))
        return super().choice(seq)

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """Draw a number of a range."""
        width = start if stop is None else stop - start
        self.bits += math.log2(width / step)
        return super().randrange(start, stop, step)

    def sample(self, population: Any, k: int, *, counts: Any = None) -> Any:
        """Draw several in an order."""
        self.bits += math.log2(math.perm(len(population), k))
        return super().sample(population, k, counts=counts)

    def uniform(self, a: float, b: float) -> float:
        """Draw a number that will be rounded to two decimals."""
        self.bits += math.log2((b - a) * CENT)
        return super().uniform(a, b)

    def choices(self, population: Any, weights: Any = None, *, cum_weights: Any = None, k: int = 1) -> Any:
        """Draw several of a sequence without repetition, each anew, by cumulative weights."""
        drawn = super().choices(population, weights, cum_weights=cum_weights, k=k)
        for one in drawn:
            place = population.index(one)
            below = cum_weights[place - 1] if place else 0
            self.bits -= math.log2((cum_weights[place] - below) / cum_weights[-1])
        return drawn


def values_of(kind: str, count: int) -> tuple[list[Any], float]:
    """Return values of a kind, the same in every run, and the information in one of them, in bits."""
    dice = Counting(kind)
    values = [KINDS[kind](dice) for _ in range(count)]
    return values, dice.bits / count


def least_bytes(bits: float) -> float:
    """Return the bytes that no code for values of that much information stays below in the mean.

    Each value is coded by itself and its length is for free, so the code need not be free of prefixes: then the mean is
    at least H - log2(H + 1) - log2 e bits (Alon and Orlitsky 1994).
    """
    return max(bits - math.log2(bits + 1) - math.log2(math.e), 0) / 8


def log_line(dice: random.Random) -> dict[str, Any]:
    """Return what a service writes about a request."""
    method = _mostly(dice, ("GET", "POST", "PUT", "DELETE"), (80, 95, 98, 100))
    status = _mostly(dice, (200, 304, 404, 500), (90, 95, 99, 100))
    return {
        "@timestamp": _moment(dice),
        "level": _mostly(dice, ("INFO", "DEBUG", "WARN", "ERROR"), (80, 90, 98, 100)),
        "logger": "com.example.shop.http.AccessLog",
        "message": "request completed",
        "service": {"name": "shop-frontend", "version": "4.17.2", "environment": "production"},
        "host": {"name": f"web-{dice.randrange(40):02}.eu-west-1.example.internal"},
        "http": {
            "request": {"method": method, "route": dice.choice(_ROUTES)},
            "response": {"status_code": status, "body": {"bytes": dice.randrange(200, 20_000)}},
        },
        "user": {"id": dice.randrange(10**6)},
        "trace": {"id": _hex(dice, 16)},
        "event": {"duration": dice.randrange(1_000, 900_000)},
        "labels": {"team": "checkout", "region": "eu-west-1", "canary": False},
    }


def account_answer(dice: random.Random) -> dict[str, Any]:
    """Return what an interface answers about an account: much structure around few facts."""
    renewal = f"2026-{dice.randrange(1, 13):02}-{dice.randrange(1, 29):02}"
    card = {"type": "card", "brand": dice.choice(("visa", "mastercard")), "last4": f"{dice.randrange(10**4):04}"}
    features = ("dark_mode", "beta", "new_checkout", "notifications_email", "notifications_push", "two_factor")
    return {
        "status": "ok",
        "code": 200,
        "request_id": _hex(dice, 12),
        "data": {
            "user_id": dice.randrange(10**6),
            "permissions": _flags(dice, ("read", "write", "admin", "billing", "export", "invite")),
            "features": _flags(dice, features),
            "quota": {"used": dice.randrange(10**6), "limit": 1_000_000, "unit": "requests", "period": "month"},
            "plan": dice.choice(("free", "pro", "team", "enterprise")),
            "subscription": {
                "status": dice.choice(("active", "trialing", "past_due")),
                "renews_at": renewal,
                "currency": "EUR",
                "payment_method": card,
            },
        },
        "links": {
            "self": "/api/v2/account",
            "billing": "/api/v2/account/billing",
            "usage": "/api/v2/account/usage",
            "documentation": "https://docs.example.com/api/v2/account",
        },
        "meta": {"cached": False, "ttl": 300, "region": dice.choice(("eu-west-1", "us-east-1")), "deprecated": False},
    }


def profile(dice: random.Random) -> dict[str, Any]:
    """Return what is kept of a user, with a text of their own."""
    first, last = (dice.choice(VOCABULARY).capitalize() for _ in range(2))
    zones = ("Europe/London", "Europe/Berlin", "America/New_York", "Europe/Paris")
    return {
        "id": dice.randrange(10**8),
        "username": f"{first}.{last}".lower(),
        "display_name": f"{first} {last}",
        "email": f"{first}.{last}@example.com".lower(),
        "email_verified": True,
        "avatar_url": f"https://cdn.example.com/avatars/{_hex(dice, 10)}.png",
        "bio": _words(dice, 12),
        "locale": dice.choice(("en-GB", "en-US", "de-DE", "fr-FR")),
        "timezone": dice.choice(zones),
        "created_at": _moment(dice),
        "last_login_at": _moment(dice),
        "preferences": {
            "newsletter": bool(dice.randrange(2)),
            "theme": dice.choice(("light", "dark", "system")),
            "notifications": _flags(dice, ("mentions", "comments", "followers", "security")),
            "privacy": {"profile": dice.choice(("public", "friends")), "show_email": False},
        },
        "address": {
            "street": f"{dice.choice(VOCABULARY).capitalize()} Street {dice.randrange(1, 200)}",
            "postal_code": f"{dice.randrange(10**5):05}",
            "city": dice.choice(("London", "Berlin", "Paris", "Madrid", "Vienna", "Oslo")),
        },
        "statistics": {name: dice.randrange(3_000) for name in ("followers", "following", "posts")},
        "roles": ["user"],
    }


def chat_completion(dice: random.Random) -> dict[str, Any]:
    """Return the envelope in which a language model's answer comes, with 5 to 59 words in it."""
    prompt, completion = dice.randrange(20, 2_000), dice.randrange(10, 800)
    words = _words(dice, dice.randrange(5, 60))
    message: dict[str, Any] = {"role": "assistant", "content": words, "refusal": None, "annotations": []}
    reason = _mostly(dice, ("stop", "length"), (95, 100))
    return {
        "id": f"chatcmpl-{_hex(dice, 29)}",
        "object": "chat.completion",
        "created": 1_750_000_000 + dice.randrange(10**7),
        "model": dice.choice(("large-2025-04-14", "small-2025-04-14")),
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        },
        "service_tier": "default",
        "system_fingerprint": f"fp_{_hex(dice, 10)}",
    }


def building(dice: random.Random) -> dict[str, Any]:
    """Return a feature of GeoJSON with four to eight points near each other."""
    x, y = round(dice.uniform(-10, 30), 2), round(dice.uniform(40, 60), 2)
    ring = [_point(dice, x, y) for _ in range(dice.randrange(4, 9))]
    return {
        "type": "Feature",
        "id": f"way/{dice.randrange(10**9)}",
        "geometry": {"type": "Polygon", "coordinates": [ring]},
        "properties": {
            "building": dice.choice(("yes", "house", "apartments", "garage")),
            "addr:street": f"{dice.choice(VOCABULARY).capitalize()} Street",
            "addr:housenumber": str(dice.randrange(1, 200)),
            "addr:city": "Berlin",
            "addr:country": "DE",
            "building:levels": dice.randrange(1, 9),
            "roof:shape": dice.choice(("flat", "gabled")),
            "source": "survey 2024",
        },
    }


KINDS: Mapping[str, Callable[[random.Random], Any]] = MappingProxyType(
    {
        "log lines": log_line,
        "answers about accounts": account_answer,
        "profiles": profile,
        "chat completions": chat_completion,
        "GeoJSON features": building,
        "the matrix's records of 500 B": lambda dice: records(dice, 500),
        "the matrix's records of 1 KB": lambda dice: records(dice, 1_000),
    }
)
_ROUTES = tuple(
    f"/api/v2/{what}/{deed}"
    for what in ("users", "orders", "carts", "items", "invoices")
    for deed in ("list", "search", "export", "history")
)


def _mostly(dice: random.Random, values: Sequence[Any], cumulative: Sequence[int]) -> Any:
    return dice.choices(values, cum_weights=cumulative)[0]


def _words(dice: random.Random, count: int) -> str:
    return " ".join(dice.choices(VOCABULARY, cum_weights=FREQUENCIES, k=count))


def _hex(dice: random.Random, digits: int) -> str:
    return f"{dice.randrange(16**digits):0{digits}x}"


def _flags(dice: random.Random, names: Sequence[str]) -> dict[str, bool]:
    return {name: bool(dice.randrange(2)) for name in names}


def _moment(dice: random.Random) -> str:
    day = f"2025-{dice.randrange(1, 13):02}-{dice.randrange(1, 29):02}"
    time = f"{dice.randrange(24):02}:{dice.randrange(60):02}:{dice.randrange(60):02}.{dice.randrange(1000):03}"
    return f"{day}T{time}Z"


def _point(dice: random.Random, x: float, y: float) -> list[float]:
    """Return a point within a hundredth of a degree, with two more decimals."""
    return [round(x + dice.randrange(100) / 10_000, 4), round(y + dice.randrange(100) / 10_000, 4)]
