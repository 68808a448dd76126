"""Hooks: commands of the operator that run after a certificate was renewed or the CAs changed.

Rules kept here:
* A hook is a line for `/bin/sh -c`. It gets MOORING_KIND (`client`, `serving` or `ca`), MOORING_CERTIFICATE (the path of what
  changed) and MOORING_NODE_NAME. No other variable that begins with MOORING_ or K3S_TOKEN is passed on.
* Hooks run one after the other, each at most HOOK_SECONDS. A failure stops nothing, and is logged by the number of the hook,
  because a command line may hold a secret.
* Each change runs the hooks at least once. The record says for which certificate they last ran.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, Protocol

from mooring.agent.disk import RecordFile
from mooring.agent.pairfiles import Pair
from mooring.agent.steps import with_deadline
from mooring.clock import Clock
from mooring.errors import MooringError
from mooring.trust.kubeconfig import Cluster

log = logging.getLogger("mooring.agent")

KINDS = ("client", "serving", "ca")
HOOK_SECONDS = 60.0
"""Seconds for one hook: a service reloads in a few. Renewals of this machine wait for no hook."""
KILL_SECONDS = 5.0
"""Seconds between SIGTERM and SIGKILL for a hook that takes too long."""
WITHHELD = ("MOORING_", "K3S_TOKEN")
"""Beginnings of the variables that hooks do not get."""
SHELL = "/bin/sh"


class WatchedPair(Protocol):
    """Files of one certificate. `current` is the path that hooks get."""

    @property
    def current(self) -> Path: ...

    def read_pair(self) -> Pair | None: ...


class WatchedFiles(Protocol):
    """Files of a member for whose changes hooks run."""

    @property
    def record(self) -> RecordFile: ...

    @property
    def client(self) -> WatchedPair: ...

    @property
    def serving(self) -> WatchedPair: ...

    @property
    def ca(self) -> Path: ...

    def read_ca(self) -> bytes: ...

    def read_clusters(self) -> tuple[Cluster, ...]: ...


class Hooks:
    """The hooks of one member. `wake` after a change; `run` runs them."""

    def __init__(self, commands: Sequence[str], state: WatchedFiles, node_name: str, clock: Clock) -> None:
        self._commands = tuple(commands)
        self._state = state
        self._node_name = node_name
        self._clock = clock
        self._woken = asyncio.Event()
        self._woken.set()

    def wake(self) -> None:
        """Compare what is on disk with what the hooks last ran for."""
        self._woken.set()

    async def run(self) -> NoReturn:
        """Run the hooks after each change, until cancelled. A start finds what a crash cut off."""
        while True:
            await self._woken.wait()
            # Before the comparison: a change during the hooks runs them once more.
            self._woken.clear()
            if not self._commands:
                continue
            try:
                await self._catch_up()
            except MooringError as error:
                log.warning("what the hooks ran for cannot be remembered: %s", error)

    async def _catch_up(self) -> None:
        done = self._state.record.read().hooks_done
        found = self._digests()
        for kind in KINDS:
            # The first start with hooks records the present state and runs none.
            if kind in done and done[kind] != found[kind]:
                await self._run_all(kind)
            if done.get(kind) != found[kind]:
                done = {**done, kind: found[kind]}
                # After they have run: hooks that a crash cut off run again at the next start.
                self._state.record.write("hooksDone", done)

    def _digests(self) -> Mapping[str, str]:
        state = self._state
        clusters = state.read_clusters()
        cas = state.read_ca() + (clusters[0].ca_pem if clusters else b"")
        return {
            "client": _leaf_digest(state.client),
            "serving": _leaf_digest(state.serving),
            "ca": hashlib.sha256(cas).hexdigest(),
        }

    def _path(self, kind: str) -> Path:
        return {"client": self._state.client.current, "serving": self._state.serving.current, "ca": self._state.ca}[
            kind
        ]

    async def _run_all(self, kind: str) -> None:
        # Variables of this program may hold a token.
        environment = {key: value for key, value in os.environ.items() if not key.startswith(WITHHELD)}
        environment |= {
            "MOORING_KIND": kind,
            "MOORING_CERTIFICATE": str(self._path(kind)),
            "MOORING_NODE_NAME": self._node_name,
        }
        for number, command in enumerate(self._commands, 1):
            name = f"hook {number} of {len(self._commands)} for {kind}"
            try:
                status = await self._run_one(command, environment)
            except TimeoutError:
                log.warning("%s was stopped: it took longer than %g s", name, HOOK_SECONDS)
            except OSError as error:
                log.warning("%s could not be started: %s", name, (error.strerror or str(error)).lower())
            else:
                log.log(logging.WARNING if status else logging.INFO, "%s ended with status %d", name, status)

    async def _run_one(self, command: str, environment: Mapping[str, str]) -> int:
        """Return the exit status. Raises TimeoutError after the hook and its children were killed, OSError."""
        # A session of its own: after the timeout the children of the hook are killed with it.
        process = await asyncio.create_subprocess_exec(
            SHELL, "-c", command, stdin=asyncio.subprocess.DEVNULL, env=environment, start_new_session=True
        )
        try:
            return await with_deadline(self._clock, HOOK_SECONDS, process.wait())
        finally:
            await self._kill(process)

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        """Kill what is left of a hook's process group, after the time in which it may end by itself."""
        with suppress(ProcessLookupError, PermissionError):
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGTERM)
                with suppress(TimeoutError):
                    await with_deadline(self._clock, KILL_SECONDS, process.wait())
        if process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _leaf_digest(files: WatchedPair) -> str:
    pair = files.read_pair()
    return hashlib.sha256(pair.certificate_pem).hexdigest() if pair is not None else ""
