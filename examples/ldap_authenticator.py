"""An authenticator for Mooring by an LDAP directory: search, then bind (RFC 4511, RFC 4513, RFC 4515).

Copy it and change it. It needs ldap3 from the package registry; docs/authentication/your-own.md describes how to turn it on.

Rules kept here:
* Before the TLS handshake and the check of the certificate and its name, nothing is sent but StartTLS: ldaps://, or ldap:// with
  StartTLS. No option turns that off.
* The search for the user runs with the rights of `bind-dn`; the name is escaped in the filter. Exactly one entry must match.
* The password is checked by a bind as that entry. An empty one is refused before: many directories treat it as an anonymous bind,
  which succeeds.
* The user's name comes from the directory, not from the request: directories ignore case, and RBAC does not.
* An unknown user takes the same requests as a wrong password.
* Referrals are not followed: they would send the password to a server that is not configured.
* Each request has a timeout of `timeout` seconds, so that no thread is blocked for long.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ldap3
from ldap3.core.exceptions import LDAPCommunicationError, LDAPException, LDAPSocketOpenError, LDAPStartTLSError
from ldap3.core.results import RESULT_INVALID_CREDENTIALS, RESULT_SUCCESS
from ldap3.utils.conv import escape_filter_chars

from mooring.authn.plugin import ConfigError, NotMine, Offered, Rejected, Result, User

NEEDED = ("url", "bind-dn", "bind-password-file", "base")
DEFAULTS = {
    "ca-file": "",
    "user-attribute": "uid",
    "user-filter": "(objectClass=person)",
    "uid-attribute": "entryUUID",
    "group-base": "",
    "group-filter": "(&(objectClass=groupOfNames)(member={dn}))",
    "group-attribute": "cn",
    "prefix": "ldap:",
}
MAX_NAME = 256
"""Most characters of a user name."""
NOBODY = "cn=nobody-of-this-name-for-mooring"
"""DN for the bind in place of an unknown user."""


class CheckedTls(ldap3.Tls):  # type: ignore[misc] # ldap3 has no types
    """TLS with Python's defaults. ldap3's own defaults verify no certificate, and its check of names has no IP addresses."""

    def __init__(self, host: str, ca_file: str) -> None:
        super().__init__(validate=ssl.CERT_REQUIRED)
        self._host = host
        self._context = ssl.create_default_context(cafile=ca_file or None)

    def wrap_socket(self, connection: Any, do_handshake: bool = False) -> None:
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # saves 40 ms for every later request
        connection.socket = self._context.wrap_socket(connection.socket, server_hostname=self._host)


class DirectoryError(Exception):
    """The directory gave no usable answer. The text is for the operator."""


class LdapAuthenticator:
    """Authenticates at one directory. `options`: those of NEEDED and DEFAULTS, and `timeout` in whole seconds."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        known = {*NEEDED, *DEFAULTS, "timeout"}
        for key, value in options.items():
            if key not in known:
                raise ConfigError(f'"{key}" is not known; there are {", ".join(sorted(known))}')
            if key != "timeout" and not isinstance(value, str):
                raise ConfigError(f"{key}: give a text")
        for key in NEEDED:
            if not options.get(key):
                raise ConfigError(f"{key}: it is needed")
        self._options: dict[str, str] = {**DEFAULTS, **{key: text for key, text in options.items() if key != "timeout"}}
        self._timeout: int = options.get("timeout", 2)
        if type(self._timeout) is not int or self._timeout < 1:
            raise ConfigError("timeout: give whole seconds")
        url = urlsplit(self._options["url"])
        if url.scheme not in ("ldap", "ldaps") or not url.hostname or url.path.strip("/"):
            raise ConfigError("url: give ldaps://host, or ldap://host, which is used with StartTLS")
        self._ldaps, self._host, self._port = url.scheme == "ldaps", url.hostname, url.port
        try:
            self._tls = CheckedTls(self._host, self._options["ca-file"])
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(f"ca-file: {type(error).__name__}") from None
        if not self._read_bind_password():
            raise ConfigError("bind-password-file: it is empty")

    def authenticate(self, offered: Offered) -> Result:
        """Authenticate one password. Mooring calls this in a thread of its own, so it may block."""
        if offered.password is None:
            return NotMine()  # tokens belong to other authenticators
        password = offered.password.reveal()
        if not password or not 0 < len(offered.user) <= MAX_NAME:
            return NotMine("no-ldap-name")
        try:
            password.decode()
        except UnicodeDecodeError:
            return NotMine("no-ldap-password")
        try:
            with self._connect() as connection:
                return self._authenticate(connection, offered.user, password)
        except (LDAPCommunicationError, LDAPStartTLSError) as error:
            return Rejected("directory-unreachable", type(error).__name__)
        except LDAPException as error:
            return Rejected("directory-failed", type(error).__name__)
        except DirectoryError as error:
            return Rejected("directory-failed", str(error))

    def _authenticate(self, connection: ldap3.Connection, name: str, password: bytes) -> Result:
        options = self._options
        self._bind_as_service(connection)
        wanted = f"(&{options['user-filter']}({options['user-attribute']}={escape_filter_chars(name)}))"
        users = self._search(
            connection, options["base"], wanted, options["user-attribute"], options["uid-attribute"], most=2
        )
        if len(users) > 1:
            raise DirectoryError(f"{len(users)} entries fit")
        dn = users[0]["dn"] if users else f"{NOBODY},{options['base']}"
        result = self._bind(connection, dn, password)
        if not users:
            return NotMine("ldap-unknown-user")
        if result["result"] != RESULT_SUCCESS:
            wrong = result["result"] == RESULT_INVALID_CREDENTIALS
            return Rejected("ldap-wrong-password" if wrong else "refused-by-directory", result["description"])
        names = users[0]["attributes"][options["user-attribute"]]
        if len(names) != 1:
            raise DirectoryError(f"{dn} has {len(names)} values of {options['user-attribute']}")
        uids = users[0]["attributes"][options["uid-attribute"]] if options["uid-attribute"] else []
        return User(options["prefix"] + names[0], "".join(uids[:1]), self._groups(connection, dn, names[0]))

    def _groups(self, connection: ldap3.Connection, dn: str, name: str) -> list[str]:
        """Return the user's groups, read with the rights of `bind-dn`: users may lack the right to read groups."""
        options = self._options
        if not options["group-base"]:
            return []
        self._bind_as_service(connection)
        values = {"{dn}": escape_filter_chars(dn), "{user}": escape_filter_chars(name)}
        wanted = re.sub(r"\{(dn|user)\}", lambda place: values[place[0]], options["group-filter"])
        groups = self._search(connection, options["group-base"], wanted, options["group-attribute"])
        return sorted(
            options["prefix"] + name for group in groups for name in group["attributes"][options["group-attribute"]]
        )

    @contextmanager
    def _connect(self) -> Iterator[ldap3.Connection]:
        """Open a connection under TLS, without a bind."""
        server = ldap3.Server(
            self._host,
            self._port,
            use_ssl=self._ldaps,
            tls=self._tls,
            get_info=ldap3.NONE,
            connect_timeout=self._timeout,
        )
        connection = ldap3.Connection(server, receive_timeout=self._timeout, auto_referrals=False, check_names=False)
        try:
            connection.open(read_server_info=False)
            if not self._ldaps:
                connection.start_tls(read_server_info=False)
            yield connection
        finally:
            with suppress(LDAPException):
                connection.unbind()
            if connection.socket is not None:  # unbinding does not close a broken connection
                connection.socket.close()

    def _bind_as_service(self, connection: ldap3.Connection) -> None:
        result = self._bind(connection, self._options["bind-dn"], self._read_bind_password())
        if result["result"] != RESULT_SUCCESS:
            raise DirectoryError(f"binding as {self._options['bind-dn']}: {result['description']}")

    def _bind(self, connection: ldap3.Connection, dn: str, password: bytes) -> dict[str, Any]:
        # as bytes, because ldap3 drops some characters of a string and refuses others (RFC 4013)
        if connection.closed or not (self._ldaps or connection.tls_started):
            raise LDAPSocketOpenError("ldap3 would connect again, without TLS")
        connection.rebind(dn, password, authentication=ldap3.SIMPLE, read_server_info=False)
        result: dict[str, Any] = connection.result
        return result

    def _search(
        self, connection: ldap3.Connection, base: str, wanted: str, *attributes: str, most: int = 0
    ) -> list[Any]:
        connection.search(
            base,
            wanted,
            attributes=[name for name in attributes if name],
            dereference_aliases=ldap3.DEREF_NEVER,
            size_limit=most,
            time_limit=self._timeout,
        )
        if connection.result["result"] != RESULT_SUCCESS:
            raise DirectoryError(f"searching {base}: {connection.result['description']}")
        return [entry for entry in connection.response if entry["type"] == "searchResEntry"]

    def _read_bind_password(self) -> bytes:
        """Read the password at each use: it may change while the server runs."""
        try:
            return Path(self._options["bind-password-file"]).read_bytes().rstrip(b"\n")
        except OSError as error:
            raise ConfigError(f"bind-password-file: {error.strerror}") from None
