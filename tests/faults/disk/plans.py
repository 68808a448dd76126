"""Plans of disk faults, drawn from seeds: which operation on which file fails, with which error, when, and for how long.

Rules kept here: a plan follows from its seed alone. Every range of thirty seeds has each subject, in the shares of `SUBJECTS`.
"""

from __future__ import annotations

import errno
import os
import random
from dataclasses import dataclass
from enum import Enum

from tests.support.faultlib.rules import FOR_GOOD


class Subject(Enum):
    """Programs in which operations fail."""

    STORE = "store"
    ENCRYPTED_STORE = "encrypted store"
    TWO_PROCESSES = "two processes on one store"
    COMMAND = "command"
    SERVER = "server"
    WORKERS = "server with two workers"
    SNAPSHOTS = "server with scheduled snapshots"
    KEY_ROTATION = "server whose encryption keys are rotated"
    ROLLOVER = "server whose CA is replaced"

    @property
    def is_store(self) -> bool:
        """True when the program is the SQLite driver alone."""
        return self in (Subject.STORE, Subject.ENCRYPTED_STORE, Subject.TWO_PROCESSES)


_CHANGES = (Subject.WORKERS, Subject.SNAPSHOTS, Subject.KEY_ROTATION, Subject.ROLLOVER)
_CYCLE = 30


class Moment(Enum):
    """Beginnings of a fault."""

    START = "before the start"
    WORK = "during the work"
    END = "before the end"


class End(Enum):
    """Ends of the first life of the program."""

    STOP = "stopped"
    KILL = "killed after the fault"
    KILL_WITHIN = "killed within the fault"


@dataclass(frozen=True, slots=True)
class Fault:
    """A rule of the fault library."""

    operation: str
    pattern: str
    error: int
    skip: int
    times: int
    torn: bool

    def __str__(self) -> str:
        length = "for good" if self.times == FOR_GOOD else f"{self.times} times"
        torn = "torn " if self.torn else ""
        return (
            f"{torn}{self.operation} of {self.pattern}: {errno.errorcode[self.error]} {length} after {self.skip} calls"
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is decided for a seed."""

    seed: int
    subject: Subject
    faults: tuple[Fault, ...]
    moment: Moment
    end: End
    choices: int
    """Seed of what the program draws itself."""

    def __str__(self) -> str:
        faults = ", ".join(map(str, self.faults))
        return f"seed {self.seed}: {self.subject.value}, {self.moment.value}, {self.end.value}: {faults}"


_ERRORS = {
    "open": (errno.EIO, errno.EACCES, errno.EMFILE, errno.ENFILE, errno.EROFS, errno.ENOSPC),
    "read": (errno.EIO,),
    "write": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    "fsync": (errno.EIO, errno.ENOSPC, errno.EDQUOT),
    "rename": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS),
    "truncate": (errno.EIO, errno.ENOSPC),
    "link": (errno.EIO, errno.ENOSPC, errno.EMLINK),
    "unlink": (errno.EIO, errno.EACCES, errno.EROFS),
}

_DATABASE = {
    ("open", "*/mooring.db"): 4,
    ("open", "*/mooring.db-wal"): 4,
    ("open", "*/mooring.db-shm"): 4,
    ("read", "*/mooring.db"): 40,
    ("read", "*/mooring.db-wal"): 40,
    ("write", "*/mooring.db"): 40,
    ("write", "*/mooring.db-wal"): 60,
    ("write", "*/mooring.db-shm"): 1,
    ("write", "*/mooring.db*"): 80,
    ("fsync", "*/mooring.db"): 6,
    ("fsync", "*/mooring.db-wal"): 20,
    ("fsync", "*/data"): 1,
    ("truncate", "*/mooring.db*"): 3,
    ("unlink", "*/mooring.db-*"): 1,
}
"""Operations on the files of the database, with the number of calls among which the first one that fails is drawn."""

_FILES = {
    ("open", "*/data/*"): 60,
    ("open", "*/.*.mooring-tmp"): 12,
    ("read", "*/data/*"): 60,
    ("write", "*/.*.mooring-tmp"): 12,
    ("write", "*/data/*"): 40,
    ("fsync", "*/.*.mooring-tmp"): 12,
    ("fsync", "*/data/pki"): 12,
    ("fsync", "*/data"): 4,
    ("rename", "*/data/*"): 12,
    ("unlink", "*/data/*"): 4,
}
"""Operations on the files of a data directory."""

_SERVER = {
    **{key: calls for key, calls in _DATABASE.items() if key[0] != "unlink"},
    ("open", "*/data/*"): 20,
    ("write", "*/data/*"): 60,
    ("write", "*/data/audit.log"): 6,
    ("open", "*/data/audit.log"): 1,
    ("fsync", "*/data/*"): 20,
    ("rename", "*/data/*"): 4,
}

_SNAPSHOTS = {
    (operation, "*/data/snapshots/*"): calls
    for operation, calls in (("open", 3), ("read", 3), ("write", 3), ("fsync", 2), ("rename", 2), ("unlink", 2))
}
_ROTATION = {
    (operation, pattern): calls
    for operation, calls in (("open", 4), ("read", 3), ("write", 2), ("fsync", 2), ("rename", 2))
    for pattern in ("*encryption.yaml*",)
} | {("write", "*/mooring.db-wal"): 60, ("fsync", "*/mooring.db-wal"): 20}
_ROLLOVER = {
    (operation, "*/data/*"): calls
    for operation, calls in (("open", 20), ("read", 20), ("write", 12), ("fsync", 12), ("rename", 8), ("unlink", 2))
} | {("rename", "*/data/pki/*"): 4, ("write", "*/.*.mooring-tmp"): 6, ("fsync", "*/data/pki*"): 6}

TARGETS = {
    **dict.fromkeys((Subject.STORE, Subject.ENCRYPTED_STORE, Subject.TWO_PROCESSES), _DATABASE),
    Subject.COMMAND: _FILES,
    **dict.fromkeys((Subject.SERVER, Subject.WORKERS), _SERVER),
    Subject.SNAPSHOTS: _SNAPSHOTS,
    Subject.KEY_ROTATION: _ROTATION,
    Subject.ROLLOVER: _ROLLOVER,
}
"""Operations and files of each subject."""


def subject_of(seed: int) -> Subject:
    """Return the subject of a seed."""
    place = seed % _CYCLE
    if place < 19:
        return Subject.STORE
    if place < 22:
        return Subject.ENCRYPTED_STORE
    if place < 25:
        return Subject.TWO_PROCESSES
    if place < 27:
        return Subject.COMMAND
    if place == 27:
        return Subject.SERVER
    return _CHANGES[(seed // _CYCLE * 2 + place) % len(_CHANGES)]


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed."""
    chosen = random.Random(seed)
    subject = subject_of(seed)
    faults = tuple(_fault(chosen, subject) for _ in range(chosen.choice((1, 1, 1, 2))))
    moment = chosen.choice((Moment.START, Moment.WORK, Moment.WORK, Moment.END))
    end = chosen.choice((End.STOP, End.KILL, End.KILL_WITHIN))
    return Plan(seed, subject, faults, moment, end, chosen.getrandbits(32))


def _fault(chosen: random.Random, subject: Subject) -> Fault:
    targets = TARGETS[subject]
    operation, pattern = target = chosen.choice(sorted(targets))
    return Fault(
        operation,
        pattern,
        chosen.choice(_ERRORS[operation]),
        chosen.choice((0, chosen.randrange(targets[target]))),
        chosen.choice((1, 1, chosen.randrange(2, 6), FOR_GOOD)),
        operation == "write" and chosen.random() < 0.5,
    )


def seeds(default: range) -> range:
    """Return the seeds to run: those of MOORING_FAULT_SEEDS (`7` or `1000-2000`), else `default`."""
    given = os.environ.get("MOORING_FAULT_SEEDS", "")
    return seeds_of(given) if given else default


def seeds_of(text: str) -> range:
    """Return the seeds that `7` or `1000-2000` names. Raises ValueError."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
