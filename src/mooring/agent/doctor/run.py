"""Diagnosis of the way from this machine to its cluster: performs the steps of `mooring.trust.doctor`.

Rules kept here (docs/find-what-is-broken.md):
* Nothing is written: neither a file here, nor an object in the cluster. Reviews are judged by a server and not stored.
* A credential is sent over TLS only that the CA of the cluster verified.
* Each request, connection and handshake ends within `timeout`. A step that cannot be done says why, and the next ones go on.
* Of several addresses the first that passes the steps of the network is used, else the one that came furthest. A few are examined
  at a time, and those behind the first that passes are dropped: the result is that of one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from mooring.agent.doctor import machine, membership, network, trust
from mooring.agent.doctor.examination import DoctorOptions, Examination, ProbedAddress
from mooring.agent.steps import described
from mooring.client.http.requests import ignore
from mooring.clock import Clock
from mooring.errors import MooringError
from mooring.trust import doctor
from mooring.trust.doctor import Diagnosis, FinishedStep, Judgement, blocking, failed, failed_by, skipped

AT_ONCE = 8
"""Addresses that are examined at a time. A name may have 64 IP addresses, each with a connection: together half of the 1024 files
of a process."""
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


async def diagnose(options: DoctorOptions, clock: Clock, notify: Notify = ignore) -> Diagnosis:
    """Perform every step and return what was found. Raises NoAddressError, unless the files that would name one are broken."""
    exam = Examination(options, clock)
    files, finished = exam.files, dict[str, FinishedStep]()

    async def perform(
        name: str, work: Callable[[], Judgement | Awaitable[Judgement]], done: dict[str, FinishedStep]
    ) -> None:
        """Perform one step, unless it needs a failed one."""
        notify(name)
        if blocked := blocking(name, finished | done):
            done[name] = FinishedStep(doctor.BY_NAME[name], skipped(f"{blocked} failed"), blocked_by=blocked)
            return
        started = clock.monotonic()
        try:
            found = work()
            judgement = found if isinstance(found, Judgement) else await found
        except MooringError as error:
            judgement = failed_by(described(error))
        except TimeoutError:
            judgement = failed(
                f"no answer within {options.timeout:g} s", "see the load of the server, or give a longer --timeout"
            )
        done[name] = FinishedStep(doctor.BY_NAME[name], judgement, clock.monotonic() - started)

    await perform("files", lambda: machine.judge_files(files, options.node_name, clock.now()), finished)
    await perform("machine-id", lambda: machine.judge_machine(files, options.machine), finished)
    await perform("disk", lambda: machine.judge_disk(files, options.root), finished)
    if not (addresses := exam.addresses(may_lack=finished["files"].judgement.result == doctor.FAILED)):
        unknown = skipped("the files here name no server, and no ADDRESS is given")
        return Diagnosis("", tuple(finished.get(one.name) or FinishedStep(one, unknown) for one in doctor.STEPS))
    tried: list[tuple[int, ProbedAddress, dict[str, FinishedStep]]] = []
    turns = asyncio.Semaphore(AT_ONCE)

    async def examine(address: str) -> tuple[int, ProbedAddress, dict[str, FinishedStep]]:
        """Perform the steps of the network, and return how many passed."""
        target, steps = ProbedAddress(address, exam.way(address)), dict[str, FinishedStep]()
        async with turns:
            for name, work in NETWORK.items():
                await perform(name, partial(work, exam, target), steps)
        broken = (at for at, one in enumerate(NETWORK) if steps[one].judgement.result == doctor.FAILED)
        return next(broken, len(NETWORK)), target, steps

    tasks = [asyncio.ensure_future(examine(one)) for one in addresses]
    try:
        for task in tasks:
            tried.append(await task)
            if tried[-1][0] == len(NETWORK):
                break
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    # The one that passed, else the first of those that came furthest.
    _, target, steps = max(tried, key=lambda one: one[0])
    others = tuple(
        (other.address, found[doctor.NETWORK_STEPS[at]]) for at, other, found in tried if other is not target
    )
    finished |= steps
    for name, work in CLUSTER.items():
        await perform(name, partial(work, exam, target), finished)
    node = finished["node"].judgement
    is_fresh = node.result == doctor.OK and bool(node.facts.get("fresh"))
    await perform(
        "service", lambda: machine.judge_service(files, options.root, options.timeout, is_fresh=is_fresh), finished
    )
    return Diagnosis(target.address, tuple(finished[one.name] for one in doctor.STEPS), others)
