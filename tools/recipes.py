"""Run the recipes of `docs/libraries.md` whose libraries are too many for `.venv`, in an environment of their own.

`make recipes` runs it, with the libraries at the versions named here. The other recipes of the page run with the rest
of the documentation.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "libraries.md"
HOSTS = {  # modules that blocks of the page need, and what brings them
    "dash": "dash==4.4.1",
    "multiprocess": "multiprocess==0.70.19",
    "psutil": "psutil==7.2.2",
    "scrapy": "Scrapy==2.19.0",
    "streamlit": "streamlit==1.67.0",
}
INSTALLING = 900  # seconds
RUNNING = 300


def main() -> None:
    """Install, see that each library is there, and run the page."""
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    with tempfile.TemporaryDirectory(prefix="recipes-") as folder:
        venv.create(Path(folder, "venv"), with_pip=True)
        python = str(Path(folder, "venv", "bin", "python"))
        work = Path(folder, "work")
        work.mkdir()
        subprocess.run([python, "-m", "pip", "install", "-q", *needed, *HOSTS.values()], check=True, timeout=INSTALLING)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": folder, "XDG_CONFIG_HOME": folder}
        for command in (["-c", f"import {', '.join(HOSTS)}"], ["-m", "tests.support.doc_blocks", str(PAGE)]):
            subprocess.run([python, *command], cwd=work, env=environment, check=True, timeout=RUNNING)
    sys.stderr.write(f"ran {PAGE.relative_to(ROOT)} with {', '.join(HOSTS.values())}\n")


if __name__ == "__main__":
    main()
