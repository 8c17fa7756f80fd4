"""Answers of a language model: paid for once, asked for at a steady rate, and refreshed without anyone waiting."""

from __future__ import annotations

import tempfile
from typing import Any

from diskcache_like import Cache, throttle

Message = dict[str, str]


class Client:
    """Stands for the client of a service."""

    calls = 0

    def complete(self, model: str, messages: list[Message]) -> dict[str, Any]:
        """Return an answer."""
        self.calls += 1
        return {"text": f"{model} answers {messages[-1]['content']!r}", "tokens": 12}


with (
    tempfile.TemporaryDirectory() as directory,
    Cache(directory, size_limit=2**30, pickle="never") as cache,  # plain data alone: nothing is ever unpickled
):
    client = Client()

    @throttle(cache, count=50, seconds=1)  # all processes together
    def request(model: str, messages: list[Message]) -> dict[str, Any]:
        """Ask the service."""
        return client.complete(model, messages)

    @cache.memoize(expire="30d", stale_if_error="90d", tags=["answers", "model:{model}"])
    def ask(model: str, messages: list[Message]) -> dict[str, Any]:
        """Return the answer, from the cache if it is there."""
        return request(model, messages)

    question = [{"role": "user", "content": "What is a cache?"}]
    for model in ("small", "small", "large"):
        print(ask(model, question)["text"])
    print(f"{client.calls} calls for 3 questions")
    print(f"{cache.evict('model:small')} answer of the small model forgotten")
