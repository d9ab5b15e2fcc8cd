"""`python -m bench [NAME ...]`: runs bench_NAME.py, or all of them, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.timing import machine


def main() -> int:
    """Returns 0 if every script ran."""
    found = {path.stem.removeprefix("bench_"): path.stem for path in sorted(Path(__file__).parent.glob("bench_*.py"))}
    wanted = sys.argv[1:] or list(found)
    unknown = [name for name in wanted if name not in found]
    if unknown:
        print(f"there is no bench {unknown[0]!r}; known: {', '.join(found)}", file=sys.stderr)
        return 2
    print(machine(), flush=True)
    failed = []
    for name in wanted:
        print(f"\n== {name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"bench.{found[name]}"], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
