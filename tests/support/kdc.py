"""A real KDC of MIT Kerberos on loopback, with users, a service and its keytab.

Rules kept here: all files are in one directory of the test; `environment` holds the variables that programs need; starting waits
for the port, at most `STARTING` seconds.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.ports import free_port

REALM, OTHER_REALM = "SHIPS.EXAMPLE", "ISLES.EXAMPLE"
SERVICE = "HTTP/localhost"
PASSWORD = "correct horse"
_PLACES = os.pathsep.join((*os.get_exec_path(), "/usr/sbin"))
PROGRAMS = {name: shutil.which(name, path=_PLACES) for name in ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")}
NO_KDC = "krb5-kdc, krb5-admin-server and krb5-user, as Debian has them, are not installed on this machine"
STARTING = 20.0
"""Seconds after which a KDC that takes no connection fails the test."""

CLIENT_CONF = """
[libdefaults]
 default_realm = {realm}
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
[realms]
 {realm} = {{
  kdc = 127.0.0.1:{port}
 }}
 {other} = {{
  kdc = 127.0.0.1:{port}
 }}
[domain_realm]
 localhost = {realm}
[capaths]
 {other} = {{
  {realm} = .
 }}
"""
SERVER_CONF = """
[kdcdefaults]
 kdc_ports = ""
 kdc_tcp_ports = {port}
 kdc_listen = ""
 kdc_tcp_listen = 127.0.0.1:{port}
[realms]
 {realm} = {{
  database_name = {place}/{realm}.db
  key_stash_file = {place}/{realm}.stash
 }}
 {other} = {{
  database_name = {place}/{other}.db
  key_stash_file = {place}/{other}.stash
 }}
"""


@dataclass
class Kdc(AbstractContextManager["Kdc"]):
    """One KDC of two realms; the first trusts the second. `with` runs it."""

    place: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def keytab(self) -> Path:
        return self.place / "http.keytab"

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the Kerberos library of a client or a service needs."""
        return {
            "KRB5_CONFIG": str(self.place / "krb5.conf"),
            "KRB5RCACHEDIR": str(self.place),
            "KRB5_KDC_PROFILE": str(self.place / "kdc.conf"),
        }

    def __enter__(self) -> Kdc:
        self.place.mkdir(exist_ok=True)
        values = {"realm": REALM, "other": OTHER_REALM, "port": self.port, "place": self.place}
        (self.place / "krb5.conf").write_text(CLIENT_CONF.format(**values))
        (self.place / "kdc.conf").write_text(SERVER_CONF.format(**values))
        for realm in (REALM, OTHER_REALM):
            self._run("kdb5_util", "-r", realm, "create", "-s", "-P", "master key")
            self._admin(realm, "addprinc", "-pw", PASSWORD, f"jane@{realm}")
            self._admin(realm, "addprinc", "-pw", "between realms", f"krbtgt/{REALM}@{OTHER_REALM}")
        for service in (SERVICE, "HTTP/elsewhere"):
            self._admin(REALM, "addprinc", "-randkey", service)
        self._admin(REALM, "ktadd", "-k", str(self.keytab), SERVICE)
        program = PROGRAMS["krb5kdc"]
        assert program is not None
        command = [program, "-n", "-r", REALM, "-r", OTHER_REALM]
        with (self.place / "kdc.log").open("wb") as log:
            self.process = subprocess.Popen(command, env=os.environ | self.environment, stdout=log, stderr=log)
        self._wait()
        return self

    def __exit__(self, *error: object) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(STARTING)

    def login(self, principal: str) -> dict[str, str]:
        """Return the environment of a user with a ticket."""
        cache = self.place / f"cache-{principal.replace('/', '-')}"
        environment = self.environment | {"KRB5CCNAME": f"FILE:{cache}"}
        self._run("kinit", principal, environment=environment, typed=PASSWORD + "\n")
        return environment

    def _wait(self) -> None:
        for _ in range(int(STARTING / 0.05)):
            assert self.process is not None
            assert self.process.poll() is None, (self.place / "kdc.log").read_text()
            with socket.socket() as probe:
                probe.settimeout(STARTING)
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            try:
                self.process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
        raise AssertionError("the KDC takes no connection")

    def _admin(self, realm: str, *request: str) -> None:
        self._run("kadmin.local", "-r", realm, *request)

    def _run(self, name: str, *arguments: str, environment: Any = None, typed: str = "") -> None:
        program = PROGRAMS[name]
        assert program is not None
        done = subprocess.run(
            [program, *arguments],
            env=os.environ | (environment or self.environment),
            input=typed,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr + done.stdout
