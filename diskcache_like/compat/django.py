"""`diskcache.DjangoCache`, apart from the rest of `compat`: it needs Django, which may not be there."""

from __future__ import annotations

from .. import djangocache
from . import modules


class DjangoCache(modules.StandIn, djangocache.DjangoCache):
    """`diskcache_like.DjangoCache`, but unknown names in OPTIONS are ignored with a warning."""

    _STANDS_FOR = djangocache.DjangoCache
    _KIND = modules.FanoutCache
