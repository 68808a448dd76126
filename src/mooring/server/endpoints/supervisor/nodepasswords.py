"""Verify the node password of a machine that joins, and keep the first one that is given for a name.

Rules kept here (docs/protocol/k3s.md#node-passwords, docs/adr/0052-certificates-of-k3s-agents.md):
* The first password of a name is stored, if the user may have the name (`password_hold`), its token lets a machine join under
  it (`join_refusal`), and the request would be approved by itself.
* Every later password is compared with the Secret, in a thread: scrypt takes a tenth of a second and 32 MiB. The
  number that runs, and the number that waits for one source, are limited. A recent proof is accepted once more
  (`mooring.trust.k3s.nodepassword`).
* A password that cannot be stored or compared refuses the request. With `--k3s-node-password-fail-open` a request whose password
  cannot be stored goes on, as in k3s: the password is tried again every five seconds, and an Event tells the result. Its
  certificate stays. It never gets a name that belongs to somebody.
* No error, log or Event repeats a password or a hash.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from mooring.api.core.event import new_event
from mooring.api.kind import Change, Gate
from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.apimachinery.options import WriteOptions
from mooring.apimachinery.schema import Obj
from mooring.authn.authfailures import AuthFailureLimiter
from mooring.clock import Clock
from mooring.controllers.certificates.requester import join_refusal
from mooring.controllers.certificates.sanpolicy.ownership import password_hold
from mooring.errors import (
    AlreadyExistsError,
    ApiError,
    ForbiddenError,
    MooringError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from mooring.identity import API_SERVER_USER
from mooring.pki.x509.signers import PASSWORD_DEFERRED
from mooring.registry.store import Registry
from mooring.secret import Secret
from mooring.trust.k3s.nodepassword import (
    NAMESPACE,
    PROOF_KEY_BYTES,
    SALT_BYTES,
    NodePasswordError,
    RecentProofs,
    hash_in,
    hash_password,
    new_secret,
    secret_name,
)

log = logging.getLogger("mooring.server")

THREADS = 2
"""Computations at a time on a host: 64 MiB and two cores at most; each worker has its part."""
MAX_PER_SOURCE = 8
"""Computations of one source that run or wait: of the ten places for changes two are left to other sources, which wait for less
than half a second. Machines of a site that start together would otherwise be sent away for five seconds, again and again."""
WRONG_OF_NAME, WRONG_OF_NAME_PER_SECOND = 5, 0.2
"""Wrong passwords of one source for one name, and how fast it may give more: a machine that was installed again asks every five to
ten seconds, and is told each time what to do."""
WRONG_OF_SOURCE, WRONG_OF_SOURCE_PER_SECOND = 20, 0.5
"""Wrong passwords of one source for all names. Each costs a tenth of a second of a core; sixteen sources that do nothing else keep
less than half of the threads busy, and one of the ten places for changes."""
MAX_PER_NAME = 2
"""Passwords of one name that are compared at a time: a machine asks one after the other. Sources that guess the password of one
machine delay this machine, and no other."""
RETRY_SECONDS = 5.0
"""k3s's interval between attempts to store a password that was let through."""
MAX_DEFERRED = 64
"""Passwords in memory that could not be stored yet."""
MAX_ATTEMPTS = 720
"""Attempts for one password: an hour."""

_GUESSES = "too many wrong passwords of this node, or of your network; ask again in some seconds"
_SECRETS, _EVENTS = BY_PLURAL["secrets"], BY_PLURAL["events"]
T = TypeVar("T")


class WrongPasswordError(ForbiddenError):
    """The password is not the one that was stored for the name."""


class UnreadableNameError(ServiceUnavailableError):
    """The record of the name cannot be read, so that it may be another machine's. `fail_open` does not let it through."""


class NodePasswords:
    """Node passwords, as one server process verifies them. `close` it at the end."""

    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        entropy: Callable[[int], bytes],
        *,
        fail_open: bool = False,
        workers: int = 1,
        event_written: Callable[[Obj], None] = lambda event: None,
    ) -> None:
        """`workers`: number of processes that share the limits. `event_written` is called with each Event that was created."""
        self._event_written = event_written
        self._registry = registry
        self._clock = clock
        self._entropy = entropy
        self._fail_open = fail_open
        self._proofs = RecentProofs(entropy(PROOF_KEY_BYTES))
        self._threads = ThreadPoolExecutor(max(1, THREADS // workers), thread_name_prefix="node-password")
        self._most = max(1, MAX_PER_SOURCE // workers)
        self._computing: Counter[str] = Counter()
        self._comparing: Counter[str] = Counter()
        self._wrong_of_name = AuthFailureLimiter(WRONG_OF_NAME, WRONG_OF_NAME_PER_SECOND)
        self._wrong_of_source = AuthFailureLimiter(WRONG_OF_SOURCE, WRONG_OF_SOURCE_PER_SECOND)
        self._deferred: dict[str, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """End the attempts for passwords that could not be stored."""
        tasks = tuple(self._deferred.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def verified(
        self,
        node: str,
        password: Secret,
        username: str,
        source: str,
        gate: Gate | None = None,
        may_store: Callable[[], bool] = lambda: True,
    ) -> str:
        """Return the uid of the Secret against which a password was verified; "" for one that is not stored, because `may_store` is
        false; PASSWORD_DEFERRED for one that `fail_open` lets through.

        `source`: network of the client. `gate`: judges the credential of the request when a password is stored.
        Raises ForbiddenError, ServiceUnavailableError, TooManyRequestsError.
        """
        try:
            return await self._ensured(node, password, username, source, gate, may_store)
        except (ForbiddenError, TooManyRequestsError, UnauthorizedError, UnreadableNameError):
            raise
        except MooringError as error:
            if not self._fail_open:
                message = f"the password of node {node} cannot be stored now, so that it is not accepted"
                log.warning("supervisor: %s: %s", message, type(error).__name__)
                raise ServiceUnavailableError(message) from error
            self._defer(node, password, error)
            return PASSWORD_DEFERRED

    async def _ensured(
        self,
        node: str,
        password: Secret,
        username: str,
        source: str,
        gate: Gate | None = None,
        may_store: Callable[[], bool] = lambda: True,
    ) -> str:
        """Store the first password of a node, or compare a later one. `username`: "" when the user may have the name."""
        secret = self._stored(node)
        if secret is None:
            views = self._registry.views
            # A record that cannot be read may be another machine's, so this is not a first use.
            unread = views["secrets"].problem(secret_name(node), NAMESPACE)
            if unread or any(views[plural].problem(node) for plural in (IDENTITIES, "nodes")):
                raise UnreadableNameError(f"what is recorded about node {node} cannot be read now; ask again later")
            if refusal := join_refusal(username, node, views):
                raise ForbiddenError(refusal)
            # A request that is held or denied would keep the name from the machine that may have it, so it continues
            # without a password.
            if not may_store():
                return ""
            if refusal := password_hold(node, username, views) if username else "":
                raise ForbiddenError(refusal)
            hashed = await self._compute(source, partial(hash_password, password, self._entropy(SALT_BYTES)))
            try:
                change = Change(API_SERVER_USER, self._clock.now(), gate=gate, writer="node-passwords")
                stored = await self._registry.writer.create(
                    _SECRETS, NAMESPACE, new_secret(node, hashed), change, WriteOptions()
                )
            except AlreadyExistsError:
                # Of two first uses at the same time one is stored. The other is compared with it, once the view has it.
                await self._registry.reader.fresh()
                secret = self._stored(node)
            except ForbiddenError as error:  # admission, and not the password
                raise ServiceUnavailableError(error.message) from error
            else:
                uid = str(stored.obj["metadata"]["uid"])
                self._proofs.add(uid, password, self._clock.monotonic())
                return uid
        if secret is None:
            raise ServiceUnavailableError(f"the password of node {node} was deleted this moment")
        uid = str(secret["metadata"]["uid"])
        # scrypt takes a tenth of a second. The second certificate of a kubelet reuses the proof of a moment ago.
        if self._proofs.take(uid, password, self._clock.monotonic()):
            return uid
        try:
            hashed = hash_in(secret)
        except NodePasswordError as error:
            name = secret["metadata"]["name"]
            raise ForbiddenError(
                f"the Secret {NAMESPACE}/{name} holds no password that can be verified ({error}); delete it, and the next "
                "password is stored"
            ) from None
        # Refused before the computation, which is what guesses would use up.
        if self._is_guessing(node, source):
            raise TooManyRequestsError(_GUESSES)
        if not await self._compare(node, source, partial(hashed.matches, password)):
            now = self._clock.monotonic()
            self._wrong_of_name.failed(f"{source} {node}", now)
            self._wrong_of_source.failed(source, now)
            raise WrongPasswordError(
                f"unable to verify password for node {node}: it is not the one that was stored first; if the machine was installed "
                f"again, delete its Node, or without one its NodeIdentity, or the Secret {NAMESPACE}/{secret_name(node)}"
            )
        self._proofs.add(uid, password, self._clock.monotonic())
        return uid

    def refuse_guesses(self, node: str, source: str) -> None:
        """Raise TooManyRequestsError for a source whose password would not be computed. For requests that hold nothing yet."""
        secret = self._stored(node) if self._is_guessing(node, source) else None
        if secret is not None and not self._proofs.has(str(secret["metadata"]["uid"]), self._clock.monotonic()):
            raise TooManyRequestsError(_GUESSES)

    def _is_guessing(self, node: str, source: str) -> bool:
        """Return true for a source whose password is not computed, because too many of its last ones were wrong, or too many
        passwords of this name are being compared."""
        if self._comparing[node] >= MAX_PER_NAME:
            return True
        now = self._clock.monotonic()
        return self._wrong_of_name.exhausted(f"{source} {node}", now) or self._wrong_of_source.exhausted(source, now)

    def _stored(self, node: str) -> Obj | None:
        return self._registry.views["secrets"].get(secret_name(node), NAMESPACE)

    async def _compare(self, node: str, source: str, work: Callable[[], bool]) -> bool:
        """Run the comparison with the password of a node. Raises TooManyRequestsError."""
        self._comparing[node] += 1
        try:
            return await self._compute(source, work)
        finally:
            self._comparing[node] -= 1
            if not self._comparing[node]:
                del self._comparing[node]

    async def _compute(self, source: str, work: Callable[[], T]) -> T:
        """Run `work` in a thread. Raises TooManyRequestsError for a source that has enough of them."""
        if self._computing[source] >= self._most:
            raise TooManyRequestsError("too many node passwords of your network are being verified; ask again")
        self._computing[source] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._computing[source] -= 1
            if not self._computing[source]:
                del self._computing[source]

    def _defer(self, node: str, password: Secret, error: MooringError) -> None:
        """Let a request go on, and store or compare its password later."""
        log.warning("supervisor: the password of node %s is not verified yet: %s", node, type(error).__name__)
        if node in self._deferred or len(self._deferred) >= MAX_DEFERRED:
            return
        task = asyncio.create_task(self._settle(node, password), name=f"node-password-{node}")
        self._deferred[node] = task
        task.add_done_callback(lambda _: self._deferred.pop(node, None))

    async def _settle(self, node: str, password: Secret) -> None:
        """Try to store a password again. The name was free when the request was let through, and is the machine's since."""
        for _ in range(MAX_ATTEMPTS):
            await self._clock.sleep(RETRY_SECONDS)
            try:
                await self._ensured(node, password, "", f"deferred {node}")
            except ForbiddenError:
                log.warning("supervisor: node %s got a certificate, and its password is wrong", node)
                await self._tell(
                    node, "NodePasswordValidationFailed", "Deferred node password validation failed", is_warning=True
                )
                return
            except MooringError:
                continue
            await self._tell(
                node, "NodePasswordValidationComplete", "Deferred node password validation complete", is_warning=False
            )
            return

    async def _tell(self, node: str, reason: str, message: str, *, is_warning: bool) -> None:
        now = self._clock.now()
        event = new_event(
            {"kind": "Node", "name": node, "uid": node},
            reason,
            message,
            now,
            metadata={"generateName": f"{node[:200]}."},
            is_warning=is_warning,
            component="mooring-supervisor",
        )
        try:
            change = Change(API_SERVER_USER, now, writer="node-passwords")
            written = await self._registry.writer.create(_EVENTS, "default", event, change, WriteOptions())
            self._event_written(written.obj)
        except (ApiError, MooringError) as error:
            log.warning("supervisor: no Event about node %s: %s", node, type(error).__name__)
