"""An authenticator for Mooring that accepts Kerberos tickets, by SPNEGO (RFC 4559, RFC 4178, RFC 4120).

Copy it and change it. It needs gssapi from the package registry and the Kerberos library of the system;
docs/authentication/your-own.md describes how to turn it on.

Rules kept here:
* Only Kerberos is accepted, not NTLM, which SPNEGO can carry too. Only one leg is accepted: Kerberos needs no more.
* The key of the service is in `keytab`, which is read at each use, so that a rotated key is valid at once.
* Only principals of the listed `realms` are users: the KDC may trust realms that this cluster does not.
* The user's name keeps its realm, so that users of two realms never share a name. Anonymous tickets are refused.
* The Kerberos library has a replay cache, and refuses a ticket's authenticator that is sent twice.
* Details are the Kerberos library's error text; it names principals, and repeats nothing of a ticket.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gssapi
from gssapi.exceptions import GSSError

from mooring.authn.plugin import ConfigError, NotMine, Offered, Rejected, Result, User

KNOWN = frozenset({"keytab", "service", "realms", "prefix", "groups"})


class KerberosAuthenticator:
    """Accepts tickets for one service. `options`: `keytab`, `service` (HTTP@api.example.com), `realms`, `prefix`, `groups`."""

    schemes = ("Negotiate",)

    def __init__(self, options: Mapping[str, Any]) -> None:
        if unknown := sorted(options.keys() - KNOWN):
            raise ConfigError(f'"{unknown[0]}" is not known; there are {", ".join(sorted(KNOWN))}')
        self._keytab: str = options.get("keytab", "")
        self._realms = _text_list(options, "realms")
        self._groups = _text_list(options, "groups")
        self._prefix: str = options.get("prefix", "krb5:")
        service = options.get("service", "")
        for key, value in (("keytab", self._keytab), ("service", service), ("prefix", self._prefix)):
            if not isinstance(value, str):
                raise ConfigError(f"{key}: give a text")
        if not self._realms:
            raise ConfigError("realms: name the realms whose principals are users, such as [EXAMPLE.COM]")
        if not Path(self._keytab).is_file():
            raise ConfigError("keytab: there is no such file")
        kind, at, host = service.partition("@")
        if not kind or not at or not host:
            raise ConfigError(
                "service: give the name under which clients know this server, such as HTTP@api.example.com"
            )
        self._service = gssapi.Name(service, gssapi.NameType.hostbased_service)
        try:
            self._credentials()
        except GSSError as error:
            raise ConfigError(
                f"keytab: it holds no key of {service}, or cannot be read ({type(error).__name__})"
            ) from None

    def authenticate(self, offered: Offered) -> Result:
        """Authenticate one ticket. Mooring calls this in a thread of its own."""
        if offered.credential is None:
            return NotMine()
        try:
            token = base64.b64decode(offered.credential.reveal(), validate=True)
        except binascii.Error:
            return Rejected("ticket-not-base64")
        try:
            context = gssapi.SecurityContext(creds=self._credentials(), usage="accept")
            context.step(token)
            if not context.complete:
                return Rejected("ticket-needs-another-leg")
            return self._user(context)
        except GSSError as error:
            statuses = error.get_all_statuses(
                error.min_code, False
            )  # such as "Request is a replay"; may hold names, no secret
            return Rejected("ticket-refused", statuses[0] if statuses else type(error).__name__)

    def _user(self, context: gssapi.SecurityContext) -> Result:
        if context.mech != gssapi.MechType.kerberos:
            return Rejected("not-kerberos")
        if gssapi.RequirementFlag.anonymity in context.actual_flags:
            return Rejected("ticket-anonymous")
        principal = str(context.initiator_name)
        realm = principal.rpartition("@")[2]
        if realm not in self._realms:
            return Rejected("other-realm", f"realm {realm}")
        return User(self._prefix + principal, groups=[self._prefix + group for group in self._groups])

    def _credentials(self) -> gssapi.Credentials:
        return gssapi.Credentials(name=self._service, usage="accept", store={"keytab": self._keytab})


def _text_list(options: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = options.get(key, [])
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise ConfigError(f"{key}: give a list of texts")
    return tuple(value)
