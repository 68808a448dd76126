"""One seed of a command that changes a data directory: under the faults it succeeds or says why not, and then it succeeds."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.faults.disk.plans import Plan
from tests.faults.disk.whole import file_findings, store_findings
from tests.support import forkserver
from tests.support.commandline import outcome, process
from tests.support.faultlib.rules import Faults

COMMANDS = (("init",), ("init",), ("snapshot", "save"), ("token", "rotate", "--grace", "0"))
SERVER_TOKEN = "0123456789abcdef0123456789abcdef"
_KEPT = ("pki/ca.crt", "pki/ca.key", "pki/sa.key", "pki/lineage.key")
"""Files that are made once."""


@cache
def initialised() -> Path:
    """Return a data directory as `mooring init` leaves it, to be copied."""
    directory = Path(tempfile.mkdtemp(prefix="mooring-faults-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    token = ("--token", "", "--server-token", SERVER_TOKEN)
    outcome = process("init", "--data-dir", str(directory / "data"), "--bind-address", "127.0.0.1", *token)
    assert outcome.code == 0, outcome.err
    return directory / "data"


def arm(faults: Faults, plan: Plan) -> None:
    """Add the rules of the plan."""
    for fault in plan.faults:
        faults.fail(fault.operation, fault.pattern, fault.error, skip=fault.skip, times=fault.times, torn=fault.torn)


def run_under_faults(faults: Faults, *arguments: str) -> tuple[int, str]:
    """Run `mooring` under the rules. Return the exit status, and its standard error without the name of the cluster."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MOORING_")}
    done = forkserver.run(["-m", "mooring", *arguments], env={**kept, **faults.environment})
    return done.returncode, outcome(done.returncode, "", done.stderr.decode()).err


def run_command_seed(plan: Plan, directory: Path) -> Sequence[str]:
    """Run the plan in an empty directory. Return what was wrong."""
    data, faults = directory / "data", Faults(directory / "faults")
    command = random.Random(plan.choices).choice(COMMANDS)
    arguments = [*command, "--data-dir", str(data)]
    if command == ("init",):
        arguments += ["--bind-address", "127.0.0.1"]
    else:
        shutil.copytree(initialised(), data)
    arm(faults, plan)
    code, errors = run_under_faults(faults, *arguments)
    faults.clear()
    findings = list(error_findings(code, errors))
    findings += file_findings(data)
    before = {name: (data / name).read_bytes() for name in _KEPT if (data / name).exists()}
    if (again := process(*arguments)).code:
        findings.append(f"{' '.join(command)} did not succeed after the fault was over: {again.err}")
    findings += [
        f"{name} is another one now" for name, content in before.items() if (data / name).read_bytes() != content
    ]
    findings += [*file_findings(data), *store_findings(data / "mooring.db")]
    findings += [f"{path} was left" for path in data.rglob(".*.mooring-tmp") if path.parent.name != "snapshots"]
    return findings


def error_findings(code: int, errors: str) -> Sequence[str]:
    """Return what is wrong with the end of a command: after a failure the last line says why."""
    lines = errors.splitlines()
    if "Traceback" in errors:
        return [f"a traceback: {errors[-3000:]}"]
    if code < 0 or (code and sum(line.startswith("Error: ") for line in lines) != 1):
        return [f"exit status {code}: {errors[-3000:]}"]
    return []
