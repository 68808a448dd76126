"""`python -m tests.steady`: find the tests that wait for luck (`make steady`).

Contract:
* The live tests run three times and the others once, each time in another order, beside two busy loops and with every fsync delayed
  by 50 ms: by a preloaded library, which the system's compiler builds. Without a compiler the run says so, and goes on without.
  Of a table, each of the three runs takes its third of the rows (`--rows`): all rows three times would take 57 minutes. Sweeps
  (mark `sweep`), which try every point of a fixed sequence, run once.
* What failed, what needed a second try and what left a descriptor open is printed at the end; any of it is exit code 1.
* It takes at most 45 minutes on two cores: a pass that could not end in time is not begun, and that is a failure, too.
* `--ahead 400` runs every test once on a date 400 days ahead, by Debian's libfaketime, without those marked `client`: their
  programs, such as kubectl, do not follow it. `--strange` runs every test once with another locale, time zone and home, and
  proxies that do not exist.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.report import Report, lines, read, total

ROOT = Path(__file__).parents[1]
MINUTES = 45.0
LOOPS = 2
WORKERS = 4 * (os.cpu_count() or 1)
"""Live tests wait for each other's processes and for the slow disk more than they compute."""
DELAY_MS = 50
FAKETIME = tuple(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


@dataclass(frozen=True)
class Pass:
    """One run of pytest."""

    name: str
    expression: str
    options: tuple[str, ...] = ()
    live: bool = False


PASSES = (
    Pass("all other tests and sweeps", "not live or sweep"),
    Pass("live tests, first order", "live and not sweep", ("--rows", "1/3"), live=True),
    Pass("live tests, second order", "live and not sweep", ("--rows", "2/3"), live=True),
    Pass("live tests, third order", "live and not sweep", ("--rows", "3/3"), live=True),
)


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
    """Return a library that is preloaded, built from its source in tests/support; None without a compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    library = folder / f"{name}.so"
    source = ROOT / f"tests/support/{name}.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, source, "-ldl"], check=True)
    return library


def slow_disk(folder: Path) -> dict[str, str]:
    """Return the variables that delay every fsync; none without a compiler."""
    library = built("slowsync", folder)
    if library is None:
        sys.stdout.write("skipped: fsync is not delayed, because there is no C compiler\n")
        return {}
    return {"LD_PRELOAD": str(library), "SLOWSYNC_MS": str(DELAY_MS)}


def another_date(days: int, folder: Path) -> dict[str, str]:
    """Return the variables that move the clock of every process. Raises OSError with what is missing."""
    if not FAKETIME:
        raise OSError("libfaketime is not installed: run apt-get install libfaketime")
    sleep = built("monotonicsleep", folder)
    if sleep is None:
        raise OSError("there is no C compiler: run apt-get install gcc libc6-dev")
    return {
        "LD_PRELOAD": f"{sleep}:{FAKETIME[0]}",
        "FAKETIME": f"+{days}d",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_NO_CACHE": "1",
    }


def live_files() -> list[str]:
    """Return the files with live tests: to collect all files takes each worker 17 s of a processor, and these 8 s."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "live"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [line.rpartition(":")[0] for line in found.splitlines() if re.fullmatch(r"tests/\S+\.py: \d+", line)]


def run(one: Pass, folder: Path, variables: Mapping[str, str], arguments: list[str]) -> Report | None:
    """Run the tests of a pass, in an order of its own. Return its report."""
    report, seed = folder / f"{one.name}.json", random.SystemRandom().randrange(2**32)
    sys.stdout.write(f"\n== {one.name}, order {seed}\n")
    sys.stdout.flush()
    selection = ["-m", one.expression] if one.expression else []
    command = [
        sys.executable, "-m", "pytest", "-n", str(WORKERS), "--dist", "worksteal", f"--randomly-seed={seed}", *selection,
        "--fail-on-leftovers", "--report", str(report), *one.options, *arguments,
    ]  # fmt: skip
    subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=False)
    return read(report)


def unsteady(report: Report | None) -> bool:
    return report is None or bool(report.failed or report.second_tries or report.left_open)


def strange_machine(folder: Path) -> dict[str, str]:
    """Return variables that no test may depend on."""
    home = folder / "home"
    home.mkdir()
    proxies = {f"{scheme}_proxy": "http://127.0.0.1:9" for scheme in ("http", "https", "all")}
    return {
        **proxies,
        **{name.upper(): value for name, value in proxies.items()},
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
        "KUBECONFIG": str(home / "none"),
        "LC_ALL": "C",
        "LANGUAGE": "de",
        "TZ": "Pacific/Chatham",
        "COLUMNS": "60",
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.steady", description=__doc__)
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--ahead", type=int, metavar="DAYS", help="run every test once, on a date so many days ahead")
    other.add_argument("--strange", action="store_true", help="run every test once, in another environment")
    options, arguments = parser.parse_known_args()
    begun = time.monotonic()
    reports: list[Report | None] = []
    stages: list[str] = []
    with tempfile.TemporaryDirectory(prefix="mooring-steady-") as name:
        folder = Path(name)
        passes: tuple[Pass, ...] = PASSES
        load: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        files: list[str] = []
        if options.ahead is not None:
            passes = (Pass(f"{options.ahead} days ahead", "not client"),)
            try:
                variables = another_date(options.ahead, folder)
            except OSError as error:
                sys.stderr.write(f"error: {error}\n")
                return 1
        elif options.strange:
            passes, variables = (Pass("a strange machine", ""),), strange_machine(folder)
        else:
            variables, load, files = slow_disk(folder), busy(), live_files()
        with load:
            longest: dict[str, float] = {}
            for one in passes:
                if time.monotonic() - begun + longest.get(one.expression, 0.0) > MINUTES * 60:
                    sys.stderr.write(
                        f"error: {one.name}: not begun, because it would not end within {MINUTES:.0f} minutes\n"
                    )
                    reports.append(None)
                    continue
                start = time.monotonic()
                paths = files if one.live else []
                reports.append(run(one, folder, variables, [*arguments, *paths]))
                taken = time.monotonic() - start
                longest[one.expression] = max(taken, longest.get(one.expression, 0.0))
                stages.append(f"{taken / 60:6.1f} min  {one.name}")
    sys.stdout.write("\n".join(["", *lines(stages, reports), total(reports)]) + "\n")
    return 1 if any(map(unsteady, reports)) else 0


if __name__ == "__main__":
    sys.exit(main())
