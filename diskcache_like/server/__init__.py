"""The server: a cache for programs that are not Python, over RESP, the protocol of Redis, and HTTP.

- `values`: keys and values as clients see them
- `access`: the password and the limits
- `resp`, `commands`, `connection`, `tracking`: RESP as bytes, what its commands do, one client, news of changes
- `http`, `guard`, `http_server`: the application for HTTP, who is let in, and uvicorn; `page.html` is what a browser
  shows
- `sockets`, `workers`: where the server listens, and the processes that serve
"""
