"""A library that lets file operations of a process fail (`faultlib.c`), built by the system's compiler, and its rules.

Rules kept here: the process is started with `environment`, also by the fork server; rules are added and removed while it runs. A
machine without a compiler skips the test, with that reason.
"""

from __future__ import annotations

import atexit
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("faultlib.c")
OPERATIONS = ("open", "read", "write", "fsync", "rename", "truncate", "link", "unlink")
"""Operations, in the order of the library. `write` stands for pwrite, `fsync` for fdatasync, and so on."""
RULES = 16
FOR_GOOD = -1
_RULE = struct.Struct("=7i256s")
_MATCHED = 20
"""Offset in a rule of the number of its matches."""


@cache
def library() -> Path:
    """Return the library, which the first call of a process compiles. Skips the test without a compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        import pytest  # only here: programs under faults import this module, and pytest takes longer than they run

        pytest.skip("faults of files are injected by a library that a C compiler builds, and there is none")
    directory = Path(tempfile.mkdtemp(prefix="mooring-faultlib-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    built = directory / "faultlib.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", built, SOURCE, "-ldl"], check=True)
    return built


class Faults:
    """Rules of one process, or of several with the same environment."""

    def __init__(self, file: Path) -> None:
        """`file`: the rules, which is made if it is not there."""
        self.file = file
        if not file.exists():
            file.write_bytes(bytes(RULES * _RULE.size))
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), 0)
        self._used = 0

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment of the process, in addition to its own. Skips the test without a compiler.

        The library comes before those of the session, such as libfaketime (`tests.steady`): it passes calls on to them.
        """
        preloaded = ":".join(filter(None, (str(library()), os.environ.get("LD_PRELOAD"))))
        return {"LD_PRELOAD": preloaded, "FAULTLIB_RULES": str(self.file)}

    def fail(
        self, operation: str, pattern: str, error: int, *, skip: int = 0, times: int = FOR_GOOD, torn: bool = False
    ) -> int:
        """Let `operation` fail on paths that match the pattern (fnmatch), after `skip` calls. Return the number of the rule.

        `torn`: half of the first write goes through, and the next one fails.
        """
        number, self._used = self._used, self._used + 1
        start = number * _RULE.size
        rule = _RULE.pack(0, OPERATIONS.index(operation), error, skip, times, 0, torn, pattern.encode())
        self._map[start : start + _RULE.size] = rule
        struct.pack_into("=i", self._map, start, 1)  # last: the process reads the rule once it is active
        return number

    def matched(self, number: int) -> int:
        """Return how often the rule has let a call fail."""
        found: int = struct.unpack_from("=i", self._map, number * _RULE.size + _MATCHED)[0]
        return found

    def clear(self) -> None:
        """Remove every rule."""
        for number in range(RULES):
            struct.pack_into("=i", self._map, number * _RULE.size, 0)
        self._used = 0
