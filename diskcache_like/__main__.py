"""Run the command line: `python -m diskcache_like`."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())
