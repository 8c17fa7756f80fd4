"""Sessions, rendered fragments and a counter of a web site, as each of its worker processes would use them."""

from __future__ import annotations

import secrets
import tempfile
from typing import Any

from diskcache_like import Cache


class Site:
    """What the workers of a site share, through one directory."""

    def __init__(self, directory: str) -> None:
        self.cache = Cache(directory, size_limit=2**28, eviction_policy="least-recently-used")
        self.sessions = self.cache.namespace("sessions")

    def log_in(self, user: str) -> str:
        """Begin a session of an hour; return its token."""
        token = secrets.token_urlsafe()
        self.sessions.set(token, {"user": user}, expire=3600, tag=f"user:{user}")
        return token

    def page(self, token: str, article: int) -> str:
        """Return a page, for whoever has a session."""
        session: dict[str, Any] | None = self.sessions.get(token)
        if session is None:
            return "401 please log in"
        self.sessions.touch(token, expire=3600)  # it goes on while it is used
        views = self.cache.incr(("views", article))
        body = self.cache.get_or_set(("fragment", article), lambda: render(article), expire=60, tag="fragments")
        return f"200 {body} for {session['user']}, viewed {views} times"

    def log_out_everywhere(self, user: str) -> int:
        """End all sessions of a user; return how many there were."""
        return self.sessions.evict(f"user:{user}")


def render(article: int) -> str:
    """Return the part of a page that is the same for everyone."""
    return f"<h1>Article {article}</h1>"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        site, other_worker = Site(directory), Site(directory)
        token = site.log_in("ada")
        print(site.page(token, 7))
        print(other_worker.page(token, 7))
        print(other_worker.log_out_everywhere("ada"), "session ended")
        print(site.page(token, 7))
