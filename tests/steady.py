"""`python -m tests.steady`: find the tests that wait for luck (`make steady`).

Contract:
* Every test runs once, in an order that is new each time, beside two busy loops and with every fsync delayed by 50 ms: by a
  preloaded library, which the system's compiler builds. Without a compiler the run says so, and goes on without.
* What failed, what needed a second try and what left a descriptor open is printed at the end; any of it is exit code 1.
* The time is printed, and never a failure.
* `--ahead 400` runs every test on a date 400 days ahead instead, by Debian's libfaketime, without those marked `client`: their
  programs, such as kubectl, do not follow it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.endings import ended_by_exceptions, finished
from tests.report import Report, lines, read, total

ROOT = Path(__file__).parents[1]
LOOPS = 2
WORKERS = 4 * (os.cpu_count() or 1)
"""Live tests wait for each other's processes and for the slow disk more than they compute."""
DELAY_MS = 50
FAKETIME = tuple(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Keep the processors busy until the end of the block."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(LOOPS)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def built(name: str, folder: Path) -> Path | None:
    """Return a library that is preloaded, built from its source in tests/support; None without a compiler that works."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    library = folder / f"{name}.so"
    source = ROOT / f"tests/support/{name}.c"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(source), "-ldl"]
    return library if subprocess.run(command, check=False).returncode == 0 else None


def slow_disk(folder: Path) -> dict[str, str]:
    """Return the variables that delay every fsync; none without a compiler."""
    library = built("slowsync", folder)
    if library is None:
        sys.stdout.write("skipped: fsync is not delayed, because there is no C compiler that works\n")
        return {}
    return {"LD_PRELOAD": str(library), "SLOWSYNC_MS": str(DELAY_MS)}


def another_date(days: int, folder: Path) -> dict[str, str]:
    """Return the variables that move the clock of every process. Raises OSError with what is missing."""
    if not FAKETIME:
        raise OSError("libfaketime is not installed: run apt-get install libfaketime")
    sleep = built("monotonicsleep", folder)
    if sleep is None:
        raise OSError("there is no C compiler that works: run apt-get install gcc libc6-dev")
    return {
        "LD_PRELOAD": f"{sleep}:{FAKETIME[0]}",
        "FAKETIME": f"+{days}d",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_NO_CACHE": "1",
    }


def run(name: str, folder: Path, variables: Mapping[str, str], arguments: list[str]) -> Report | None:
    """Run tests in an order of its own. Return the report."""
    report, seed = folder / "report.json", random.SystemRandom().randrange(2**32)
    sys.stdout.write(f"\n== {name}, order {seed}\n")
    sys.stdout.flush()
    command = [
        sys.executable, "-m", "pytest", "-n", str(WORKERS), "--dist", "worksteal", f"--randomly-seed={seed}",
        "--fail-on-leftovers", "--report", str(report), *arguments,
    ]  # fmt: skip
    finished(subprocess.Popen(command, cwd=ROOT, env={**os.environ, **variables}))
    return read(report)


def unsteady(report: Report | None) -> bool:
    return report is None or bool(report.exit_code or report.failed or report.second_tries or report.left_open)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.steady", description=__doc__)
    parser.add_argument("--ahead", type=int, metavar="DAYS", help="run every test on a date so many days ahead")
    options, arguments = parser.parse_known_args()
    ended_by_exceptions()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mooring-steady-") as place:
        folder = Path(place)
        load: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if options.ahead is not None:
            name, selection = f"{options.ahead} days ahead", ["-m", "not client"]
            try:
                variables = another_date(options.ahead, folder)
            except OSError as error:
                sys.stderr.write(f"error: {error}\n")
                return 1
        else:
            name, selection = "a busy machine with a slow disk", []
            variables, load = slow_disk(folder), busy()
        with load:
            report = run(name, folder, variables, [*selection, *arguments])
    stage = f"{(time.monotonic() - begun) / 60:6.1f} min  {name}"
    sys.stdout.write("\n".join(["", *lines([stage], [report]), total([report])]) + "\n")
    return 1 if unsteady(report) else 0


if __name__ == "__main__":
    sys.exit(main())
