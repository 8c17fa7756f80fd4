"""Share a cache between Python, Node and Go, through a server on a Unix socket.

    npm ci --prefix node && python shop.py

Python uses the directory itself, which is a hundred times faster than any server; the others use the server. It is the
one that `diskcache-like serve DIRECTORY` starts from a shell.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diskcache_like import Cache

HERE = Path(__file__).parent


@contextmanager
def served(directory: str, socket: str) -> Iterator[None]:
    """Serve a cache during a `with` block."""
    command = [sys.executable, "-m", "diskcache_like", "serve", directory, "--resp", socket, "--workers", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        print("python:", server.stderr.readline().split()[0])  # it says so once it listens
        try:
            yield
        finally:
            server.terminate()


def main() -> None:
    """Store in one language, and read in the others."""
    with tempfile.TemporaryDirectory() as folder:
        directory, socket = f"{folder}/cache", f"{folder}/socket"
        with Cache(directory) as cache, served(directory, socket):
            cache.set("user:1", {"name": "Ada", "likes": ["tea"]}, expire=600)
            cache["visits"] = 1
            subprocess.run(["node", HERE / "node" / "basket.mjs", socket], check=True)
            subprocess.run(["go", "run", ".", socket], cwd=HERE / "go", check=True)
            print(f"python: {cache['visits']} visits, a basket of {len(cache['basket:1'])} bytes")
            print(f"python: {cache.evict('user:1')} page forgotten, {'page:1' in cache}")


if __name__ == "__main__":
    main()
