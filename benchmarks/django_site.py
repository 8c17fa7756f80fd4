"""The Django site that `benchmarks.django_page` serves: one page with 20 cached fragments, a session and a counter.

Gunicorn imports `application` in each worker. The environment says which cache to use, as JSON of one entry of
Django's CACHES.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any

FRAGMENTS = 20
ENVIRONMENT = "DISKCACHE_LIKE_BENCHMARK_CACHE"
EXPENSIVE = 40  # rows of a fragment, which take some tens of microseconds to make
TEMPLATE = (
    "{% load cache %}<html><body>"
    "{% for number in fragments %}{% cache 600 fragment number %}<section><h2>{{ number }}</h2>"
    "{% for row in rows %}<p>{{ number }}.{{ row }}</p>{% endfor %}</section>{% endcache %}{% endfor %}"
    "<p>visits of this session: {{ visits }}, of the page: {{ counter }}</p></body></html>"
)


def configure(cache: dict[str, Any]) -> None:
    """Set Django up without a database, with sessions in the cache."""
    import django
    from django.conf import settings

    settings.configure(
        ALLOWED_HOSTS=["*"],
        CACHES={"default": cache},
        LOGGING_CONFIG=None,
        MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware"],
        ROOT_URLCONF=__name__,
        SECRET_KEY="of no use to anybody",
        SESSION_ENGINE="django.contrib.sessions.backends.cache",
        TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
    )
    django.setup()


@functools.cache
def template() -> Any:
    """Return the page's template, compiled once in each process."""
    from django.template import engines

    return engines["django"].from_string(TEMPLATE)


def page(request: Any) -> Any:
    """Answer with the page; it counts the visits of the session, and those of everybody."""
    from django.core.cache import cache
    from django.http import HttpResponse

    visits = request.session["visits"] = request.session.get("visits", 0) + 1
    cache.add("counter", 0, timeout=None)
    words = {
        "fragments": range(FRAGMENTS),
        "rows": range(EXPENSIVE),
        "visits": visits,
        "counter": cache.incr("counter"),
    }
    return HttpResponse(template().render(words))


urlpatterns: list[Any] = []
application: Any = None

if ENVIRONMENT in os.environ:
    configure(json.loads(os.environ[ENVIRONMENT]))
    from django.core.wsgi import get_wsgi_application
    from django.urls import path

    urlpatterns.append(path("", page))
    application = get_wsgi_application()
