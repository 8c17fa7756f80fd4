"""Have atheris choose, by coverage of this package's own code, what the decoders of `fuzz_codecs` are fed.

    make fuzz-coverage SECONDS=300
    python -m tools.fuzz_by_coverage --seconds 300 --seed 7 --corpus DIRECTORY

It needs `pip install '.[fuzz]'`. Only this package is instrumented: msgpack, Arrow and the compressors are compiled code,
which coverage cannot see into, and to instrument pandas takes longer than the run. The first byte of an input chooses
the decoder. The corpus begins with what each of them reads, and keeps what found new code if it is given a directory.
A finding ends the run and is left in the working directory; hand its file to the command to repeat it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from contextlib import nullcontext
from pathlib import Path

try:
    import atheris
except ImportError as reason:
    raise SystemExit("atheris is not installed, which chooses the inputs; pip install '.[fuzz]'") from reason

with atheris.instrument_imports(include=["diskcache_like"]):
    from . import fuzz_codecs as decoders

    TARGETS = decoders.targets()  # imports the modules that are imported when they are needed


def write_seeds(directory: Path) -> None:
    """Write what each decoder reads, behind the byte that chooses it."""
    for number, target in enumerate(TARGETS):
        for place, seed in enumerate(target.seeds):
            (directory / f"{number:02}-{place:03}").write_bytes(bytes((number,)) + seed)


def main() -> None:
    """Run from the command line; atheris ends the process itself."""
    parser = argparse.ArgumentParser(description="fuzz the decoders by coverage")
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--corpus", type=Path, help="where inputs that found new code are kept")
    parser.add_argument("inputs", type=Path, nargs="*", help="files to try instead, once each")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")

    def one(data: bytes) -> None:
        if data:
            decoders.try_one(TARGETS[data[0] % len(TARGETS)], data[1:])

    with tempfile.TemporaryDirectory() if chosen.corpus is None else nullcontext(chosen.corpus) as directory:
        options = [f"-max_total_time={chosen.seconds}", f"-seed={chosen.seed}", "-max_len=8192", "-print_final_stats=1"]
        places = list(map(str, chosen.inputs))
        if not places:
            Path(directory).mkdir(parents=True, exist_ok=True)
            write_seeds(Path(directory))
            places = [str(directory)]
        atheris.Setup([sys.argv[0], *options, *places], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
