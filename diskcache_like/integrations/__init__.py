"""What other libraries get of a cache: a module for each, which imports that library only.

- `cachelib`: a cache for cachelib, and so for Flask-Caching and Flask-Session
- `celery`: a backend for results of Celery
- `dogpile`: a backend for dogpile.cache
- `hishel`: storages for hishel 2, on `responses`
- `hosts`: what all adapters need
- `key_value`: a store for py-key-value, and so for FastMCP
- `langchain`, `langgraph`: caches of answers and of results, and a store
- `otel`: instruments of OpenTelemetry, and spans around computations
- `prometheus`: a collector for a registry of `prometheus_client`
- `reading`: the numbers that both of these report, and under which names
- `requests_cache`: a backend for requests-cache
- `responses`: heads and bodies of HTTP responses
"""
