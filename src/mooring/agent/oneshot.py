"""One certificate request of a machine that has no valid certificate, from its key to the issued certificate.

Rules kept here (docs/protocol/kubelet-certificates.md#one-request):
* The key is that of an earlier run, or new, and is on disk before it is used. One key sends one request, however often it runs.
* The certificate must be for this key, name and group, and valid now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from mooring.agent import certificaterequest, steps
from mooring.agent.certificaterequest import NodeRequest
from mooring.agent.pairfiles import Pair
from mooring.agent.steps import Steps, creation_time, describe_skew, retry
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.clock import Clock, rfc3339
from mooring.errors import ForbiddenError, MooringError
from mooring.identity import NAME_NOT_ALLOWED
from mooring.pki.keys import PrivateKey, generate_key, public_key_der, public_key_fingerprint
from mooring.secret import Secret
from mooring.trust.discovery.pins import Pin
from mooring.trust.nodename import comparison_code

ASKING_ADVICE = (
    "a server takes requests without a credential with --join-requests, within its limits; or join with a token"
)


class PendingKeyFiles(Protocol):
    """The file of the key whose certificate was requested and is not there yet."""

    @property
    def pending_key(self) -> Path: ...

    def read_pending_key(self) -> PrivateKey | None: ...

    def write_pending_key(self, key: PrivateKey) -> None: ...

    def drop_pending_key(self) -> None: ...


class OneShotRequest:
    """The steps `key`, `request`, `wait` and `certificate`. `seconds` limits the wait."""

    def __init__(
        self,
        state: PendingKeyFiles,
        steps: Steps,
        clock: Clock,
        node_name: str,
        *,
        seconds: float,
        expiration_seconds: int = 0,
        machine_code: Secret | None = None,
        facts: Mapping[str, str] | None = None,
        compared: Iterable[Pin] = (),
        requester: str = "",
    ) -> None:
        """`compared`: the CAs that this machine saw, where a person compares them: the request is made without a credential."""
        self._state = state
        self._steps = steps
        self._clock = clock
        self._node_name = node_name
        self._seconds = seconds
        self._expiration_seconds = expiration_seconds
        self._machine_code = machine_code
        self._facts = facts or {}
        self._compared = tuple(map(str, compared))
        self._requester = requester
        self._skew = ""

    async def obtain(
        self,
        client: ClusterClient,
        check: Callable[[Pair], Awaitable[None]],
        explain_refusal: Callable[[], AbstractContextManager[None]],
    ) -> tuple[Pair, str]:
        """Return the certificate and the name of its request. Raises JoinError.

        `check` raises PeerError for a certificate that must not be used. `explain_refusal` replaces refusals of the credentials.
        """
        key = self._prepare_key()
        with self._steps.step(steps.REQUEST) as summary, explain_refusal():
            request = self._request(key)
            try:
                obj, existed = await self._send(client, request, key)
            except certificaterequest.ForeignRequestError as error:
                self._steps.say(f"{error}; asking with a new key", kept=True)
                key = self._new_key()
                request = self._request(key)
                obj, existed = await self._send(client, request, key)
            # The creation time of an earlier request says nothing about the clocks now.
            if not existed:
                self._report_skew(client, obj)
            summary.append(
                f"{'taken up' if existed else 'made'} {request.name}, key sha256:{public_key_fingerprint(key)}"
            )
            if self._compared:
                code = comparison_code(public_key_der(key), self._compared)
                self._steps.say(
                    f"the code of this machine is {code}: an administrator who sees the same code beside it (mooring machine list "
                    "--pending) may approve it",
                    kept=True,
                )
        with self._steps.step(steps.WAIT) as summary, explain_refusal():
            issued = await self._wait(client, obj, request)
            summary.append("approved and signed")
        with self._steps.step(steps.CERTIFICATE) as summary:
            pair = certificaterequest.issued_pair(issued, key, request, self._clock.now(), self._skew)
            await check(pair)
            summary.append(f"system:node:{self._node_name}, valid until {rfc3339(pair.leaf.not_valid_after_utc)}")
        return pair, request.name

    def _request(self, key: PrivateKey) -> NodeRequest:
        request = certificaterequest.node_request(key, self._node_name, self._expiration_seconds, self._machine_code)
        return replace(request, facts=self._facts, requester=self._requester)

    def _prepare_key(self) -> PrivateKey:
        with self._steps.step(steps.KEY) as summary:
            kept = self._state.read_pending_key()
            if kept is not None:
                summary.append(f"taken up from {self._state.pending_key}")
                return kept
            key = self._new_key()
            summary.append("made")
            return key

    def _new_key(self) -> PrivateKey:
        key = generate_key()
        # Before it is used: after a crash the next run continues with the same request.
        self._state.write_pending_key(key)
        return key

    async def _send(self, client: ClusterClient, request: NodeRequest, key: PrivateKey) -> tuple[Obj, bool]:
        def report(error: MooringError) -> None:
            self._steps.say(f"{steps.described(error)}; asking again for up to {steps.API_CALL_SECONDS:g} s", kept=True)

        async def send() -> tuple[Obj, bool]:
            try:
                return await certificaterequest.send_request(client, request, key, self._clock.now())
            except ForbiddenError as error:
                if self._compared or any(cause.reason == NAME_NOT_ALLOWED for cause in error.details.causes):
                    # No repetition helps.
                    said = f"; {ASKING_ADVICE}" if self._compared else ""
                    raise certificaterequest.RequestEndedError(f"{steps.described(error)}{said}") from None
                raise

        return await retry(self._clock, send, on_failure=report, client=client)

    def _report_skew(self, client: ClusterClient, created: Obj) -> None:
        now = self._clock.now()
        date, here = client.server_time or (creation_time(created), now)
        self._skew = describe_skew(date, here)
        if self._skew:
            self._steps.say(f"warning: {self._skew}", kept=True)

    async def _wait(self, client: ClusterClient, obj: Obj, request: NodeRequest) -> bytes:
        try:
            return await certificaterequest.wait(
                client,
                obj,
                self._seconds,
                lambda message, new: self._steps.say(message, kept=new),
                polls=bool(self._compared),
            )
        except certificaterequest.RequestEndedError:
            # The request was denied or failed, so the next run sends a new one. After any other end the key stays,
            # and the next run continues with the same request.
            self._state.drop_pending_key()
            raise
        except asyncio.CancelledError:
            approve = certificaterequest.how_to_approve(request.name, is_compared=bool(self._compared))
            self._steps.say(
                f"interrupted; the request {request.name} is still pending: {approve}, then join again: it goes on with the same "
                "request",
                kept=True,
            )
            raise
