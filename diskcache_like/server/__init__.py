"""The server: a cache for programs that are not Python, over RESP (the protocol of Redis) and HTTP.

- `values`: keys and values as clients see them, the same for both protocols;
- `access`: who may do what: passwords, limits;
- `resp`: the protocol of Redis as bytes; `commands`: what its commands do; `connection`: one client;
  `tracking`: telling clients which keys have changed;
- `http`: the application for HTTP; `guard`: who is let in, and how errors end; `page.html`: what a browser shows;
- `workers`: sockets, processes, and how they end.
"""
