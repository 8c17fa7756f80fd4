"""What other libraries get of a cache.

- `prometheus`: a collector for a registry of `prometheus_client`
- `otel`: instruments of OpenTelemetry, and spans around computations
- `reading`: the numbers that both report, and under which names
"""
