"""A real LDAP directory of a test's own: Debian's slapd with TLS, on free ports, over a database that ends with the test.

Rules kept here: the process runs in the foreground and is ended by its own id; readiness is tested with a connection, without
sleeping. Passwords of the entries are those of `PEOPLE`; only the service may read entries. A bind with a name and no password
succeeds, as in many directories (RFC 4513 section 5.1.2 warns of it).
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.ports import free_port
from tests.support.testca import ThrowawayCA

START_SECONDS = 60.0
BASE = "dc=ships,dc=example"
PEOPLE_BASE = f"ou=people,{BASE}"
GROUPS_BASE = f"ou=groups,{BASE}"
SERVICE = f"cn=mooring,{BASE}"
SERVICE_PASSWORD = "only-the-service-knows"
PEOPLE = {
    "jane": "correct horse",
    "joe": "battery staple",
    "zoë": "pässwörd",
    "star*": "five (stars)",
    "locked": "locked out",
}
JANE_ID = "11111111-2222-3333-4444-555555555555"
_PLACES = (*os.get_exec_path(), "/usr/sbin", "/usr/local/sbin", "/usr/local/libexec", "/usr/libexec")
_SCHEMA = Path("/etc/ldap/schema")
SLAPD = shutil.which("slapd", path=os.pathsep.join(_PLACES)) if _SCHEMA.exists() else None
SLAPADD = shutil.which("slapadd", path=os.pathsep.join(_PLACES))
NO_SLAPD = "slapd, as Debian has it, is not installed on this machine"

CONFIGURATION = """
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
moduleload ppolicy
pidfile {place}/slapd.pid
TLSCACertificateFile {place}/ca.crt
TLSCertificateFile {certificate}
TLSCertificateKeyFile {key}
loglevel stats
allow bind_anon_cred
referral ldap://elsewhere.example
database mdb
suffix "{base}"
rootdn "cn=root,{base}"
directory {place}/database
maxsize 16777216
overlay ppolicy
ppolicy_default "cn=policy,{base}"
access to attrs=userPassword by anonymous auth by * none
access to * by dn.exact="{service}" read by * none
"""


def _entry(dn: str, *lines: str) -> str:
    return "\n".join((f"dn: {dn}", *lines, ""))


def _person(uid: str, password: str, *more: str) -> str:
    classes = ("objectClass: person", "objectClass: inetOrgPerson")
    return _entry(
        f"uid={uid},{PEOPLE_BASE}", *classes, f"uid: {uid}", f"cn: {uid}", "sn: Doe", f"userPassword: {password}", *more
    )


def _entries() -> str:
    group = "objectClass: groupOfNames"
    return "\n".join(
        [
            _entry(BASE, "objectClass: dcObject", "objectClass: organization", "dc: ships", "o: Ships"),
            _entry(PEOPLE_BASE, "objectClass: organizationalUnit", "ou: people"),
            _entry(GROUPS_BASE, "objectClass: organizationalUnit", "ou: groups"),
            _entry(SERVICE, "objectClass: person", "cn: mooring", "sn: service", f"userPassword: {SERVICE_PASSWORD}"),
            _entry(f"cn=policy,{BASE}", "objectClass: device", "objectClass: pwdPolicy", "pwdAttribute: userPassword",
                   "pwdLockout: TRUE", "pwdMaxFailure: 100"),
            _person("jane", PEOPLE["jane"], f"entryUUID: {JANE_ID}"),
            _person("joe", PEOPLE["joe"]),
            _person("zoë", PEOPLE["zoë"]),
            _person("star*", PEOPLE["star*"]),
            _person("locked", PEOPLE["locked"], "pwdAccountLockedTime: 000001010000Z"),
            _person("two", "two names", "uid: zwei"),
            _entry(f"cn=printer,{PEOPLE_BASE}", "objectClass: device", "objectClass: uidObject",
                   "objectClass: simpleSecurityObject", "cn: printer", "uid: printer", "userPassword: ink"),
            _entry(f"uid=smith\\2C john,{PEOPLE_BASE}", "objectClass: person", "objectClass: inetOrgPerson",
                   "uid: smith, john", "cn: (John) Smith", "sn: Smith", "userPassword: comma"),
            _entry(f"cn=captains,{GROUPS_BASE}", group, "cn: captains", f"member: uid=jane,{PEOPLE_BASE}",
                   f"member: uid=smith\\2C john,{PEOPLE_BASE}"),
            _entry(f"cn=sailors,{GROUPS_BASE}", group, "cn: sailors", f"member: uid=jane,{PEOPLE_BASE}",
                   f"member: uid=joe,{PEOPLE_BASE}"),
        ]
    )  # fmt: skip


@dataclass
class Directory(AbstractContextManager["Directory"]):
    """One slapd; `with` runs it. `hosts`: names of its certificate, by default this machine's loopback."""

    ca: ThrowawayCA
    place: Path
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1")
    port: int = field(default_factory=free_port)
    tls_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def ldap(self) -> str:
        return f"ldap://127.0.0.1:{self.port}"

    @property
    def ldaps(self) -> str:
        return f"ldaps://127.0.0.1:{self.tls_port}"

    @property
    def ca_file(self) -> Path:
        return self.place / "ca.crt"

    @property
    def password_file(self) -> Path:
        return self.place / "bind-password"

    @property
    def log(self) -> str:
        """slapd's log of connections and operations."""
        return (self.place / "slapd.log").read_text()

    @property
    def options(self) -> dict[str, object]:
        """Return the options with which the example uses this directory."""
        return {
            "url": self.ldaps,
            "ca-file": str(self.ca_file),
            "bind-dn": SERVICE,
            "bind-password-file": str(self.password_file),
            "base": PEOPLE_BASE,
            "group-base": GROUPS_BASE,
        }

    def __enter__(self) -> Directory:
        assert SLAPADD is not None, NO_SLAPD
        (self.place / "database").mkdir(parents=True)
        self.ca_file.write_bytes(self.ca.certificate_pem)
        self.password_file.write_text(SERVICE_PASSWORD + "\n")
        certificate, key = self.ca.server(*self.hosts).write(self.place, "directory")
        text = CONFIGURATION.format(place=self.place, certificate=certificate, key=key, base=BASE, service=SERVICE)
        (self.place / "slapd.conf").write_text(text)
        filled = subprocess.run(
            [SLAPADD, "-f", self.place / "slapd.conf"], input=_entries().encode(), capture_output=True, timeout=60
        )
        assert filled.returncode == 0, filled.stderr.decode()
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def start(self) -> None:
        assert SLAPD is not None, NO_SLAPD
        listen = f"ldap://127.0.0.1:{self.port}/ ldaps://127.0.0.1:{self.tls_port}/"
        with (self.place / "slapd.log").open("ab") as log:
            self.process = subprocess.Popen(
                [SLAPD, "-d", "stats", "-f", self.place / "slapd.conf", "-h", listen],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_SECONDS
        for port in (self.port, self.tls_port):
            while not _listens(port):
                assert self.process.poll() is None, self.log
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        """Stop the process: the kernel still accepts connections, and nothing is answered."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
