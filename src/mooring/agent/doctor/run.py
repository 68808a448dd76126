"""Diagnosis of the way from this machine to its cluster: performs the steps of `mooring.trust.doctor`.

Rules kept here (docs/find-what-is-broken.md):
* Nothing is written: neither a file here, nor an object in the cluster. Reviews are judged by a server and not stored.
* A credential is sent over TLS only that the CA of the cluster verified.
* Each request, connection and handshake ends within `timeout`. A step that cannot be done says why, and the next ones go on.
* Of several addresses the first that passes the steps of the network is used, else the one that came furthest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from mooring.agent.doctor import membership, network, trust
from mooring.agent.doctor.examination import DoctorOptions, Examination, ProbedAddress
from mooring.agent.doctor.machine import (
    judge_disk,
    judge_files,
    judge_machine,
    judge_service,
)
from mooring.agent.steps import described
from mooring.clock import Clock
from mooring.errors import MooringError
from mooring.trust.doctor import (
    BY_NAME,
    FAILED,
    NETWORK_STEPS,
    OK,
    STEPS,
    Diagnosis,
    FinishedStep,
    Judgement,
    blocking,
    failed,
    failed_by,
    skipped,
)

Notify = Callable[[str], None]
"""Is told the name of each step that begins."""
Work = Callable[[Examination, ProbedAddress], Awaitable[Judgement]]
NETWORK: Mapping[str, Work] = {
    "proxy": network.check_proxy,
    "names": network.check_names,
    "tcp": network.check_tcp,
    "tls": network.check_tls,
    "clock": network.check_clock,
    "api": network.check_api,
}
CLUSTER: Mapping[str, Work] = {
    "cluster-info": trust.check_cluster_info,
    "signature": trust.check_signature,
    "pin": trust.check_pin,
    "token": trust.check_token,
    "name": membership.check_name,
    "request": membership.check_request,
    "certificate": membership.check_certificate,
    "node": membership.check_node,
}
"""Functions of the steps, in their order."""


def ignore(name: str) -> None:
    """Drop the name of a step."""


async def diagnose(options: DoctorOptions, clock: Clock, notify: Notify = ignore) -> Diagnosis:
    """Perform every step and return what was found. Raises NoAddressError."""
    return await _Doctor(Examination(options, clock), notify).run()


class _Doctor:
    def __init__(self, exam: Examination, notify: Notify) -> None:
        self.exam = exam
        self.notify = notify
        self.finished: dict[str, FinishedStep] = {}

    async def run(self) -> Diagnosis:
        addresses = self.exam.addresses()
        for name, judge in (("files", self._files), ("machine-id", self._machine_id), ("disk", self._disk)):
            await self._step(name, judge, self.finished)
        tried: list[tuple[int, ProbedAddress, dict[str, FinishedStep]]] = []
        for address in addresses:
            target, steps = ProbedAddress(address, self.exam.way(address)), dict[str, FinishedStep]()
            for name, work in NETWORK.items():
                await self._step(name, partial(work, self.exam, target), steps)
            broken = next((at for at, one in enumerate(NETWORK) if steps[one].judgement.result == FAILED), None)
            tried.append((len(NETWORK) if broken is None else broken, target, steps))
            if broken is None:
                break
        # The one that passed, else the first of those that came furthest.
        _, target, steps = max(tried, key=lambda one: one[0])
        others = tuple((other.address, found[NETWORK_STEPS[at]]) for at, other, found in tried if other is not target)
        self.finished |= steps
        for name, work in CLUSTER.items():
            await self._step(name, partial(work, self.exam, target), self.finished)
        await self._step("service", self._service, self.finished)
        return Diagnosis(target.address, tuple(self.finished[one.name] for one in STEPS), others)

    async def _step(self, name: str, work: Callable[[], Awaitable[Judgement]], into: dict[str, FinishedStep]) -> None:
        """Perform one step, unless it needs a failed one."""
        self.notify(name)
        step, clock = BY_NAME[name], self.exam.clock
        if blocked := blocking(name, self.finished | into):
            into[name] = FinishedStep(step, skipped(f"{blocked} failed"), blocked_by=blocked)
            return
        started = clock.monotonic()
        try:
            judgement = await work()
        except MooringError as error:
            judgement = failed_by(described(error))
        except TimeoutError:
            judgement = failed(
                f"no answer within {self.exam.options.timeout:g} s",
                "see the load of the server, or give a longer --timeout",
            )
        into[name] = FinishedStep(step, judgement, clock.monotonic() - started)

    async def _files(self) -> Judgement:
        return judge_files(self.exam.files, self.exam.options.node_name, self.exam.clock.now())

    async def _machine_id(self) -> Judgement:
        return judge_machine(self.exam.files, self.exam.options.machine)

    async def _disk(self) -> Judgement:
        return judge_disk(self.exam.files, self.exam.options.root)

    async def _service(self) -> Judgement:
        node, options = self.finished["node"].judgement, self.exam.options
        is_fresh = node.result == OK and bool(node.facts.get("fresh"))
        return await judge_service(self.exam.files, options.root, options.timeout, is_fresh=is_fresh)
