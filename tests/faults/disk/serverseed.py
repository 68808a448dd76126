"""One seed of a whole server: clients write through the API while operations on its files fail, and it is started again if it ends.

Rules kept here: one request is one operation, which nothing repeats. After the fault the server serves without help; the only help
is that of a service manager, which starts a process that has ended. What the server was doing beside it (snapshots, a rotation of
the encryption keys, a rollover of the CA) is then completed.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.client.http.connection import not_sent
from mooring.client.http.requests import fetch
from mooring.clock import SystemClock
from mooring.errors import ConflictError, MooringError, ServiceUnavailableError, TooManyRequestsError
from mooring.trust.httpexchange import UNVERIFIED, HttpRequest, HttpResponse
from tests.faults.disk.commandseed import arm, error_findings, initialised, run_under_faults
from tests.faults.disk.history import DONE, REFUSED, UNKNOWN, Final, Keys
from tests.faults.disk.plans import End, Moment, Plan, Subject
from tests.faults.disk.whole import file_findings, store_findings
from tests.faults.workload import OneTry, SleptError
from tests.support.encryption import IDENTITY, entry, file, local
from tests.support.faultlib.rules import Faults
from tests.support.killable import KillableServer

SNAPSHOT_EACH_SECOND = """
from datetime import timedelta
from mooring.settings import snapshots

snapshots.LEAST_INTERVAL = timedelta(seconds=1)
from mooring.cli.main import main
main()
"""
WRITES = 12
ARMED_BEFORE = 3
"""Writes before a fault of the work."""
REPLY_SECONDS = 8.0
START_SECONDS = 4.0
"""Seconds for which a server may try to start under a fault."""
PATIENCE = 60.0
_AUDIT_LOSS = re.compile(r"(\d+) audit records")


def run_server_seed(plan: Plan, directory: Path) -> Sequence[str]:
    """Run the plan in an empty directory. Return what was wrong."""
    return asyncio.run(_Run(plan, directory).run())


class _Run:
    def __init__(self, plan: Plan, directory: Path) -> None:
        self.plan, self.directory = plan, directory
        self.data = directory / "data"
        shutil.copytree(initialised(), self.data)
        self.faults = Faults(directory / "faults")
        self.encryption = directory / "encryption.yaml"
        self.server = KillableServer(self.data, flags=self._flags(), environment=self.faults.environment)
        if plan.subject is Subject.SNAPSHOTS:
            self.server.program = ("-c", SNAPSHOT_EACH_SECOND)
        self.chosen = random.Random(plan.choices)
        self.keys = Keys()
        self.objects: dict[str, Obj] = {}
        self.audited: list[tuple[str, str]] = []
        """Verb and name of each acknowledged write."""
        self.killed = False
        self.findings: list[str] = []

    def _flags(self) -> tuple[str, ...]:
        if self.plan.subject is Subject.WORKERS:
            return ("--workers", "2")
        if self.plan.subject is Subject.SNAPSHOTS:
            return ("--snapshot-schedule-cron", "@every 1s", "--snapshot-retention", "2")
        if self.plan.subject is Subject.KEY_ROTATION:
            self.encryption.write_bytes(file(entry("configmaps", local("aesgcm", "key1"), IDENTITY)))
            return (
                "--encryption-provider-config",
                str(self.encryption),
                "--encryption-provider-config-automatic-reload",
            )
        return ()

    async def run(self) -> Sequence[str]:
        try:
            await self._first_life()
            await self._recovered()
            await self._completed()
            await self._end()
            await self._restarted()
        except AssertionError as error:
            self.findings.append(f"{error}\n{self.server.log[-4000:]}")
        finally:
            self.server.kill()
        self.findings += self.keys.findings
        self.findings += [*file_findings(self.data), *store_findings(self.data / "mooring.db")]
        if not self.killed:
            self.findings += self._audit_findings()
        if "Traceback" in self.server.log:
            self.findings.append(f"a traceback: {self.server.log[-6000:]}")
        return self.findings

    # ---- the first life

    async def _first_life(self) -> None:
        if self.plan.moment is Moment.START:
            arm(self.faults, self.plan)
        self.server.launch()
        if not await self._is_ready(START_SECONDS if self.plan.moment is Moment.START else PATIENCE):
            assert self.plan.moment is Moment.START, "the server did not get ready"
            return
        async with self._client() as client:
            for n in range(WRITES):
                if n == ARMED_BEFORE:
                    if self.plan.moment is Moment.WORK:
                        arm(self.faults, self.plan)
                    await self._change()
                await self._write(client, f"k{self.chosen.randrange(4)}", n)
        if self.plan.end is End.KILL_WITHIN:
            self._kill()

    async def _change(self) -> None:
        """Begin what happens beside the writes."""
        kubeconfig = ("--kubeconfig", str(self.data / "admin.conf"))
        if self.plan.subject is Subject.KEY_ROTATION:
            code, errors = await asyncio.to_thread(run_under_faults, self.faults, *self._rotation(), "--wait", "3s")
            self.findings += error_findings(code, errors)
        elif self.plan.subject is Subject.ROLLOVER:
            command = ("ca", "rollover", "start", "--wait", "0s", "--timeout", "2s", *kubeconfig)
            code, errors = await asyncio.to_thread(run_under_faults, self.faults, *command)
            self.findings += error_findings(code if errors else 0, errors)  # 1: asked for, and not reached yet
        elif self.plan.subject is Subject.SNAPSHOTS:
            await asyncio.sleep(1.2)  # the interval of the schedule

    def _rotation(self) -> tuple[str, ...]:
        place = ("--encryption-provider-config", str(self.encryption), "--kubeconfig", str(self.data / "admin.conf"))
        return ("secrets-encryption", "rotate", "--yes", "--timeout", "5s", *place)

    async def _write(self, client: ClusterClient, name: str, number: int) -> bool:
        known = self.objects.get(name)
        value: str | None = f"{name}-{number}"
        verb = "create" if known is None else "update"
        if known is not None and self.chosen.random() < 0.25:
            value, verb = None, "delete"
        self.keys.begin(name, value)
        try:
            async with asyncio.timeout(REPLY_SECONDS):
                answer = await _send(client, verb, name, value, known)
        except ConflictError:  # a rotation of the keys has written the object
            self.keys.end(name, REFUSED)
            with suppress(MooringError, SleptError, TimeoutError):
                self.objects[name] = await client.get("configmaps", name, "default")
            return False
        except (MooringError, SleptError, TimeoutError) as error:
            self.keys.end(name, REFUSED if _is_refused(error) else UNKNOWN)
            return False
        self.audited.append((verb, name))
        self.objects.pop(name, None)
        if value is not None:
            self.objects[name] = answer
        self.keys.end(name, DONE, 0 if value is None else int(answer["metadata"]["resourceVersion"]))
        return True

    # ---- after the fault

    async def _recovered(self) -> None:
        """End the fault, and wait until the server serves: it does so itself, or ends and is started again."""
        self.faults.clear()
        await self._serve_again()
        deadline = asyncio.get_running_loop().time() + PATIENCE
        for n in range(10_000):
            async with self._client() as client:
                if await self._write(client, f"later-{n}", 0):
                    return
            assert asyncio.get_running_loop().time() < deadline, "no write succeeds after the fault was over"
            await asyncio.sleep(0.05)
            await self._serve_again()

    async def _serve_again(self) -> None:
        assert await self._is_ready(PATIENCE), "the server does not get ready after the fault was over"

    async def _is_ready(self, seconds: float) -> bool:
        """Wait for /readyz. Starts the process again when it has ended, unless it does so under the fault."""
        deadline = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < deadline:
            if self.server.process is None:
                self.server.launch()
            assert self.server.process is not None
            code = self.server.process.poll()
            if code is not None:
                self.server.process = None
                last = (self.server.log.splitlines() or [""])[-1]
                if not self.killed and (code != 1 or not last.startswith("Error: ")):
                    self.findings.append(f"the server ended with {code}: {self.server.log[-3000:]}")
                if seconds == START_SECONDS:
                    return False
                await asyncio.sleep(0.1)
                continue
            answer = await fetch(HttpRequest(UNVERIFIED, url=f"https://{self.server.endpoint}/readyz"), SystemClock())
            if isinstance(answer, HttpResponse) and answer.status == 200:
                return True
            await asyncio.sleep(0.03)
        return False

    async def _completed(self) -> None:
        """Complete what happened beside the writes."""
        kubeconfig = ("--kubeconfig", str(self.data / "admin.conf"))
        if self.plan.subject is Subject.KEY_ROTATION:
            await self._until_done(*self._rotation())
            assert b'"key1"' not in self.encryption.read_bytes()
            self.keys.last.clear()  # every object was written again
        elif self.plan.subject is Subject.ROLLOVER:
            async with self._client() as client:
                listed = await client.list("certificateauthorityrollovers", "")
            if not listed.items:
                await self._until_done("ca", "rollover", "start", *kubeconfig)
            await self._until_done("ca", "rollover", "advance", *kubeconfig)
        elif self.plan.subject is Subject.SNAPSHOTS:
            before = {*(self.data / "snapshots").glob("*.snapshot")}
            deadline = asyncio.get_running_loop().time() + PATIENCE
            while not {*(self.data / "snapshots").glob("*.snapshot")} - before:
                assert asyncio.get_running_loop().time() < deadline, "no new snapshot"
                await asyncio.sleep(0.05)

    async def _until_done(self, *command: str) -> None:
        code, errors = await asyncio.to_thread(run_under_faults, self.faults, *command)
        assert code == 0, f"{' '.join(command)}: {errors}"

    async def _end(self) -> None:
        if self.plan.end is End.KILL:
            self._kill()
            return
        if self.plan.moment is Moment.END:
            arm(self.faults, self.plan)
        code = await self.server.stop()
        if code not in (0, 1) or (code and self.plan.moment is not Moment.END):
            self.findings.append(f"the server stopped with {code}: {self.server.log[-3000:]}")
        self.faults.clear()

    async def _restarted(self) -> None:
        """Start again, judge what is there, and stop."""
        await self._serve_again()
        async with self._client() as client:
            listed = await client.list("configmaps", "default")
        found = {
            obj["metadata"]["name"]: Final(obj["data"]["value"], int(obj["metadata"]["resourceVersion"]))
            for obj in listed.items
            if "value" in (obj.get("data") or {})
        }
        self.keys.judge(found, int(listed.resource_version))
        if (code := await self.server.stop()) != 0:
            self.findings.append(f"the restarted server stopped with {code}")

    def _kill(self) -> None:
        self.killed = True
        self.server.kill()

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[ClusterClient]:
        async with self.server.client(OneTry()) as client:
            yield client

    def _audit_findings(self) -> Iterator[str]:
        """Yield records that are missing beyond the number that the log of the server gives."""
        recorded: dict[tuple[str, str], int] = {}
        for path in self.data.glob("audit*.log*"):
            for line in path.read_bytes().splitlines():
                try:
                    record = json.loads(line)
                except ValueError:
                    continue  # torn by the fault: its record is missing, and must be counted
                key = record["verb"], (record.get("objectRef") or {}).get("name", "")
                recorded[key] = recorded.get(key, 0) + 1
        missing = []
        for key in self.audited:
            recorded[key] = recorded.get(key, 0) - 1
            if recorded[key] < 0:
                missing.append(key)
        counted = sum(map(int, _AUDIT_LOSS.findall(self.server.log)))
        if len(missing) > counted:
            yield f"{len(missing)} audit records are missing, {counted} are counted: {missing}"


async def _send(client: ClusterClient, verb: str, name: str, value: str | None, known: Obj | None) -> Obj:
    metadata: dict[str, str] = {"name": name, "namespace": "default"}
    if known is not None:
        metadata["resourceVersion"] = known["metadata"]["resourceVersion"]
    if verb == "delete":
        return await client.delete("configmaps", name, "default", resource_version=metadata["resourceVersion"])
    obj = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": {"value": value}}
    return await (client.create if verb == "create" else client.update)("configmaps", obj)


def _is_refused(error: Exception) -> bool:
    """Return whether the request certainly changed nothing."""
    answer, cause = error.__context__ if isinstance(error, SleptError) else error, error.__cause__
    if isinstance(answer, ServiceUnavailableError | TooManyRequestsError):
        return True
    return isinstance(cause, Exception) and not_sent(cause)
