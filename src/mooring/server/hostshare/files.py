"""Files to which all workers of a host append, such as the audit log.

Rules kept here:
* The workers of one parent write one file, and no other server does. The first worker that opens it proves that no other server
  has it, and decides the name for all. The others, and replacements, follow that decision.
* Anyone who writes or renames the file holds its lock. A wait for a worker that was stopped is bounded.
"""

from __future__ import annotations

from hashlib import blake2b

from mooring.server.hostshare.lock import HostLock

PAUSE_SECONDS = 0.05
"""Between two tries for the lock. Writing a batch may take seconds on a slow disk, and 2.5 s are waited for it."""
WORDS = 2


class SharedFile:
    """Lock of one file, and the decision which name it has. `words`: two words of shared memory."""

    def __init__(self, words: memoryview[int], lock: HostLock, workers: int) -> None:
        self._words = words
        self.lock = lock
        self.workers = workers

    def decision(self, path: str) -> int | None:
        """Return what was decided for `path`, None when nothing was. Called with the lock held."""
        key, decision = self._words.tolist()
        return decision if key == _key(path) else None

    def decide(self, path: str, decision: int) -> None:
        """Record a decision for `path`, which replaces that for another path. Called with the lock held."""
        self._words[0] = 0
        self._words[1] = decision
        self._words[0] = _key(path)


def _key(path: str) -> int:
    return int.from_bytes(blake2b(path.encode(), digest_size=7).digest()) or 1
