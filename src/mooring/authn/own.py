"""What an authenticator of your own imports, and the protocol that it keeps: a public interface (docs/authentication/your-own.md).

Rules kept here:
* What is here stays: names, fields and meanings change only as the changelog says, as flags do. Everything else of Mooring is
  its own affair, and may change with any version.
* An authenticator is a class, made once at start as `Class(options)`. Its `authenticate` either is a plain method, which runs
  in a thread and may block, or an `async def`, which runs in the server's event loop and must not.
* A class attribute `schemes` names the HTTP authentication schemes whose credentials the class is shown, such as `("Negotiate",)`.
  Without it these are Bearer and Basic. A 401 of the server then challenges for each scheme but Bearer.
* It answers with a `User`, `NotMine` or `Rejected`. Whatever else it does is a refusal, and its own affair: raising, hanging,
  answering with something else.
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
    "OwnAuthenticator",
    "Rejected",
    "RemoteAuthenticator",
    "Result",
    "Secret",
    "User",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """One credential that no other authenticator accepted: a bearer `token`, a `user` with a `password`, or for another scheme the
    `credential`, which is all that followed the name of the `scheme`.

    `scheme` is in lower case, and empty for Bearer and Basic. No token, password or credential is empty. `now` is the server's
    time, with a time zone. `audiences`: whom the user wants to be known to; most authenticators have no use for them, and whom they
    accept is known to this server alone.
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
    """The credential is good, and this is who sent it.

    Names are printable text and not empty. Those that begin with `system:` are the cluster's own: a user name or group like
    that is refused. Keys of `extra` are in lower case, as `company.example/department`; those of kubernetes.io and k8s.io
    are Kubernetes's own. All together may have 65 536 characters.
    """

    username: str
    uid: str = ""
    groups: Sequence[str] = ()
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NotMine:
    """Not a credential that this authenticator knows. `reason` may be a code, as that of `Rejected`."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The credential is known, and bad; or one could not find out.

    `reason` is a code of lower case letters, digits and dashes such as `wrong-password`, at most 63; `detail` is one line that
    says more, cut after 256 characters. Both are for the operator's record, never for the caller, and hold no part of a
    secret.
    """

    reason: str
    detail: str = ""


Result = User | NotMine | Rejected


class BlockingAuthenticator(Protocol):
    """The plain form: runs in a thread, several at once. It may compute, read files, and wait for others."""

    def authenticate(self, offered: Offered) -> Result:
        """Who offered this. Called from several threads at once. What outlives the deadline keeps its thread until it ends."""


class RemoteAuthenticator(Protocol):
    """The asynchronous form: runs in the server's event loop, where all requests are answered. It must never block."""

    async def authenticate(self, offered: Offered) -> Result:
        """Who offered this. Cancelled at the deadline."""


OwnAuthenticator = BlockingAuthenticator | RemoteAuthenticator
"""Either may have `async def close(self) -> None`, which is awaited when the server stops."""
