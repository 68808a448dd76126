"""Public interface of custom authenticators: the types that they import, and the protocol that they implement
(docs/authentication/your-own.md).

Rules kept here:
* This module is stable: names, fields and meanings change only as the changelog says, as flags do. All other modules may change
  with any version. The module has this name because operators import it.
* An authenticator is a class, made once at start as `Class(options)`. Its `authenticate` is either a plain method, which runs in
  a thread and may block, or an `async def`, which runs in the server's event loop and must not block.
* A class attribute `schemes` names the HTTP authentication schemes whose credentials the class judges, such as `("Negotiate",)`.
  Without it these are Bearer and Basic. A 401 of the server then challenges for each scheme but Bearer.
* The result is a `User`, `NotMine` or `Rejected`. Any other behaviour is a rejection: an error, a missed deadline, another
  result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from mooring.errors import ConfigError
from mooring.secret import Secret

__all__ = [
    "BlockingAuthenticator",
    "ConfigError",
    "NotMine",
    "Offered",
    "PluginAuthenticator",
    "Rejected",
    "RemoteAuthenticator",
    "Result",
    "Secret",
    "User",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """One credential that no other authenticator accepted: a bearer `token`, a `user` with a `password`, or for another scheme
    the `credential`, which is all the text after the name of the `scheme`.

    `scheme` is in lower case, and empty for Bearer and Basic. No token, password or credential is empty. `now` is the server's
    time, with a time zone. `audiences` are the requested audiences; most authenticators ignore them, and an accepted user is
    valid for this server alone.
    """

    token: Secret | None = None
    user: str = ""
    password: Secret | None = None
    now: datetime
    audiences: tuple[str, ...] = ()
    scheme: str = ""
    credential: Secret | None = None


@dataclass(frozen=True, slots=True)
class User:
    """The credential authenticates this user.

    Names are printable text and not empty. Those that begin with `system:` belong to the cluster, and a user name or group like
    that is rejected. Keys of `extra` are in lower case, such as `company.example/department`; those of kubernetes.io and k8s.io
    belong to Kubernetes. All texts together may have 65 536 characters.
    """

    username: str
    uid: str = ""
    groups: Sequence[str] = ()
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NotMine:
    """This authenticator does not recognise the credential. `reason` may be a code, as that of `Rejected`."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """This authenticator recognises the credential and rejects it, or cannot judge it.

    `reason` is a code of lower case letters, digits and dashes such as `wrong-password`, at most 63 characters. `detail` is one
    line that says more, cut after 256 characters. Both are for the operator's record, never for the caller, and hold no part of a
    secret.
    """

    reason: str
    detail: str = ""


Result = User | NotMine | Rejected


class BlockingAuthenticator(Protocol):
    """The blocking form: runs in a thread, several at once. It may compute, read files, and wait for other services."""

    def authenticate(self, offered: Offered) -> Result:
        """Judge the credential. Called from several threads at once. A call that outlives the deadline keeps its thread until it
        ends.
        """


class RemoteAuthenticator(Protocol):
    """The asynchronous form: runs in the server's event loop, which serves all requests. It must never block."""

    async def authenticate(self, offered: Offered) -> Result:
        """Judge the credential. Cancelled at the deadline."""


PluginAuthenticator = BlockingAuthenticator | RemoteAuthenticator
"""Both may have `async def close(self) -> None`, which is awaited when the server stops."""
