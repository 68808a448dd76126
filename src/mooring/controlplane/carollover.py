"""Carries out a rollover of the cluster's CA: reads what is wanted, changes the files, and reports what was reached.

Rules kept here:
* The server that runs the controllers decides, one step at a time, by the pure plan of
  `mooring.controllers.certificates.carollover`. The status names the new CA before anything of it is published.
* Where servers share their keys through the store, a step is stored by compare-and-swap before it is in force anywhere, and every
  other server takes it from there.
* Where keys are files, every other server follows the status with its own data directory, when it has the key of the new CA.
  Otherwise its log says which files it needs.
* There each step begins and ends with the record of the keys in the store, so that the next start finds the CA related to it.
* A step is in force in this process at once. Other processes on the same data directory follow the files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring.certificateauthorityrollover import (
    DRAIN,
    ENDED,
    ISSUE_NEW,
    KIND,
    RETIRED,
    SINGLETON,
    TRUST_BOTH,
    status_of,
)
from mooring.api.objectmeta import spec_of
from mooring.apimachinery.options import WriteOptions
from mooring.apimachinery.schema import Obj
from mooring.client.files import read_limited
from mooring.clock import Clock
from mooring.controllers.certificates import carollover
from mooring.controllers.certificates.carollover import RolloverOnDisk, RolloverStep
from mooring.controlplane.carolloverfiles import CaRenewal, RolloverFiles
from mooring.controlplane.sharedkeys.share import SharedKeys
from mooring.errors import ConfigError, ConflictError, MooringError, NotFoundError
from mooring.identity import API_SERVER_USER
from mooring.pki.errors import PkiError
from mooring.pki.pem import RootCa
from mooring.pki.x509.bundles import certificates_among
from mooring.pki.x509.certificate import Certificate
from mooring.registry.store import Registry
from mooring.reminders import LastingProblem
from mooring.trust.discovery.pins import pin_of, pins_of

log = logging.getLogger("mooring.controlplane")

LOOK_SECONDS = 1.0
"""Between two looks at the object, which cost one lookup in memory while no rollover is under way."""
GATE_SECONDS = 5.0
"""Between two looks at what the next phase waits for, which read every Node, cluster-info, and the files, unless the object was
changed."""
PLURAL = KIND.resource.plural


@dataclass(frozen=True, slots=True)
class CaFile:
    """A file of CAs that a flag names, with its CAs that are in force."""

    flag: str
    path: Path
    in_force: Callable[[], Sequence[Certificate]]


class CaRollover:
    """The rollovers of one server process."""

    def __init__(
        self,
        registry: Registry,
        files: RolloverFiles,
        renewal: CaRenewal,
        root_ca: RootCa,
        client_cas: Callable[[], Sequence[Certificate]],
        join_obstacles: Callable[[str, str, str], Awaitable[tuple[str, ...]]],
        is_leading: Callable[[], bool],
        clock: Clock,
        entropy: Callable[[int], bytes],
        identity: str,
        shared: SharedKeys | None = None,
        claim: Callable[[], Awaitable[None]] | None = None,
        ca_files: Sequence[CaFile] = (),
    ) -> None:
        """`client_cas` returns the CAs that verify clients now, `is_leading` whether the controllers run in this process.

        `join_obstacles` returns why machines could not join without one of two CAs (`FirstBoot.join_obstacles`).

        `shared`: the keys in the store; None where they are files of each server. `claim` then records them in the store.

        `ca_files` are the files of CAs that the next start needs.
        """
        self._registry = registry
        self._files = files
        self._renewal = renewal
        self._root_ca = root_ca
        self._client_cas = client_cas
        self._join_obstacles = join_obstacles
        self._is_leading = is_leading
        self._clock = clock
        self._entropy = entropy
        self._identity = identity
        self._shared = shared
        self._claim = claim
        self._ca_files = ca_files
        self._problem = LastingProblem(log.error)
        self._seen: tuple[str, float] = ("", 0.0)

    async def run(self) -> None:
        """Look every LOOK_SECONDS until cancelled. A failed look is logged and repeated."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            try:
                while await self.look():
                    pass
            except MooringError as error:
                self._problem.note(f"the rollover of the CA does not go on: {error}")

    async def look(self) -> bool:
        """Take one step, if there is one to take. Return whether the files changed. Raises MooringError."""
        rollover = self._registry.views[PLURAL].get(SINGLETON)
        if rollover is None:
            return False
        has_ended = status_of(rollover).get("phase") in ENDED
        # First: a phase is judged by the files that all servers agreed on.
        if self._shared is not None and not has_ended and await self._shared.follow():
            (await asyncio.to_thread(self._renewal.prepare))()
            return True
        if not self._is_leading():
            return self._shared is None and await self._follow(rollover)
        if has_ended or not self._is_due(rollover):
            return False
        disk = await asyncio.to_thread(self._files.read)
        planned = carollover.plan(
            rollover,
            disk,
            self._registry.views,
            self._clock.now(),
            verifies_server=disk.new is not None and disk.new.pin in map(str, pins_of(self._root_ca.pem)),
            obstacles=await self._obstacles(disk, spec_of(rollover)["phase"]),
        )
        if planned.status != status_of(rollover):
            try:
                # Before the step: a step is taken only by the server whose status was stored.
                await self._write_status(rollover, {**planned.status, "server": self._identity})
            except (ConflictError, NotFoundError):
                # The object was changed or deleted in the meantime: the next look judges it again.
                return False
        if planned.step is None:
            return False
        return await self._take(planned.step, rollover)

    def _is_due(self, rollover: Obj) -> bool:
        """Return whether the object changed, or what the next phase waits for is to be looked at again."""
        version, now = rollover["metadata"]["resourceVersion"], self._clock.monotonic()
        reached = status_of(rollover).get("phase")
        rests = reached == DRAIN or (reached in (TRUST_BOTH, ISSUE_NEW) and spec_of(rollover)["phase"] == reached)
        if rests and version == self._seen[0] and now < self._seen[1] + GATE_SECONDS:
            return False
        # Before the look, which may fail: a failure does not make it look every second.
        self._seen = (version, now)
        return True

    async def _follow(self, rollover: Obj) -> bool:
        step, problem = carollover.follow(rollover, await asyncio.to_thread(self._files.read))
        self._problem.note(problem)
        if step is None:
            return False
        return await self._take(step, rollover)

    async def _take(self, step: RolloverStep, rollover: Obj) -> bool:
        """Take a step and bring it into force. Return False when another server changed the keys at the same time."""
        compromised = bool(spec_of(rollover).get("compromised"))

        def change(files: RolloverFiles) -> None:
            files.apply(step, self._clock.now(), self._entropy, compromised=compromised)

        if self._shared is None:
            # Before the files, and after them: a server that is killed in between has a CA that the record names.
            # Before the files, and after them: the record then always has a CA in common with the files.
            await self._record()
            await asyncio.to_thread(change, self._files)
        elif not await self._shared.change(lambda copy: change(RolloverFiles(copy))):
            return False
        (await asyncio.to_thread(self._renewal.prepare))()
        log.info("rollover of the CA: %s", step.value)
        self._problem.note("")
        await self._record()
        return True

    async def _record(self) -> None:
        """Let the record in the store follow the files: the CAs of two phases in a row have one in common. Raises MooringError."""
        if self._shared is None and self._claim is not None:
            await self._claim()

    async def _obstacles(self, disk: RolloverOnDisk, wanted: str) -> tuple[str, ...]:
        """Return the reasons not to take the next step yet: clients or joining machines would not know the CA that stays."""
        # A phase that is reached names what the next one waits for, before a person asks for it.
        step = carollover.next_step(disk.phase, wanted) or carollover.next_step(disk.phase, RETIRED)
        if disk.old is None or disk.new is None or step not in carollover.JUDGED:
            return ()
        is_back = step in (RolloverStep.REVERT, RolloverStep.WITHDRAW)
        name, staying, leaving = ("old", disk.old, disk.new) if is_back else ("new", disk.new, disk.old)
        # A file that was lost stays in force in memory until the next start, which would fail when its CA cannot be made again.
        if problems := await asyncio.to_thread(lambda: tuple(filter(None, map(_file_problem, self._ca_files)))):
            return problems
        found = await self._join_obstacles(leaving.pin, staying.pin, name)
        if staying.pin not in map(str, map(pin_of, self._client_cas())):
            found = (
                f"client-ca-file does not hold the {name} CA: append pki/rollover/{name}.crt of the data directory to it",
                *found,
            )
        return tuple(self._with_command(obstacle, name) for obstacle in found)

    def _with_command(self, obstacle: str, name: str) -> str:
        """Return a reason with the command that ends it, where a file of CAs lacks one."""
        for file in self._ca_files:
            if obstacle.startswith(f"{file.flag} does not hold "):
                command = f"cat {quote(str(self._files.certificate(name)))} >> {quote(str(file.path))}"
                return f"{obstacle}, on each server; here: {command}"
        return obstacle

    async def _write_status(self, rollover: Obj, status: Obj) -> None:
        """Write the status over the object that was read. Raises ApiError, StorageError."""
        changed = {**rollover, "status": status}
        change = Change(API_SERVER_USER, self._clock.now(), writer="ca-rollover")
        kind = BY_PLURAL[PLURAL]
        await self._registry.writer.update(kind, "", SINGLETON, changed, change, WriteOptions(), subresource="status")


def _file_problem(file: CaFile) -> str:
    """Return why the next start would not have the CAs of a file that are in force; "" when it would."""
    try:
        held = certificates_among(read_limited(file.path))
    except ConfigError as error:
        return f"{file.flag} is not usable now: {error}; restore the file with both CAs"
    except PkiError as error:
        return f"{file.flag} is not usable now: {file.path}: {error}; restore the file with both CAs"
    if set(held) != set(file.in_force()):
        return (
            f"{file.flag} was changed, and what {file.path} holds now is not in force yet: wait some seconds; if this stays, the "
            "server's log says why the file is refused"
        )
    return ""
