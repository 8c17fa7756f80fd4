"""Programs written for DiskCache, and the directories that it wrote.

- `modules`: what `import diskcache` gives once `install` was called; `django`: its backend for Django
- `__main__`: `python -m diskcache_like.compat SCRIPT` installs that, and runs a program
- `migration/`: copying a directory of DiskCache

Others import the names below, and what `migration/` offers.
"""

from __future__ import annotations

from .modules import Cache, FanoutCache, OldDirectory, args_to_key, install, installed, main, uninstall

__all__ = ["Cache", "FanoutCache", "OldDirectory", "args_to_key", "install", "installed", "main", "uninstall"]
