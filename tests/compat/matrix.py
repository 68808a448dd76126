"""Which client can do what against Mooring: the table behind the tests of this room and behind README's.

Rules kept here: data only. Every row is shown by a test that names it (`test_matrix.py` proves both directions). Where a client
cannot do something, the row says why; a test is then skipped with that very reason and never without one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

KUBECTL = ("1.20", "1.27", "1.28", "1.29", "1.30", "1.31", "1.32", "1.33")
"""Releases of kubectl that were tried: Debian 12's and those of Google's SDK. Others that a machine has are tried as well."""
PYTHON = "kubernetes (Python)"
LIGHTKUBE = "lightkube"
KOPF = "kopf"
OPENSSL = "openssl + curl"
CLIENTS = (*(f"kubectl {release}" for release in KUBECTL), PYTHON, LIGHTKUBE, KOPF, OPENSSL)


@dataclass(frozen=True, slots=True)
class Row:
    """One thing to do. `kubectl` is the first release that can, `why` the reason when that is not the oldest; `others` are further
    clients that show it. `limits`: what a client that can do it does differently."""

    what: str
    kubectl: tuple[int, int] | None = (1, 0)
    why: str = ""
    others: tuple[str, ...] = ()
    limits: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """What the table says for one client: it works, or why not ("" for a client the row is not about)."""

    works: bool
    why: str = field(default="")


_LIBRARIES = (PYTHON, LIGHTKUBE)

ROWS = (
    Row("get, every output and selector", others=_LIBRARIES),
    Row("describe"),
    Row("create -f", others=_LIBRARIES),
    Row("apply -f, creating and changing"),
    Row("apply --server-side", (1, 22), "server-side apply was a beta until 1.22", others=_LIBRARIES),
    Row(
        "apply --server-side of what apply made",
        (1, 26),
        "taking over the fields of client-side apply came with 1.26",
    ),
    Row("diff"),
    Row("replace", others=_LIBRARIES),
    Row("patch, three types", others=_LIBRARIES),
    Row("label and annotate"),
    Row("delete", others=_LIBRARIES),
    Row("get -w", others=_LIBRARIES),
    Row("wait for deletion"),
    Row("wait for a value", (1, 23), "wait --for=jsonpath came with 1.23"),
    Row("api-resources, api-versions, version", others=(PYTHON,)),
    Row("explain"),
    Row("auth can-i", others=(PYTHON,)),
    Row("create -f of a review", others=(PYTHON,)),
    Row("auth whoami", (1, 27), "auth whoami came with 1.27"),
    Row("auth reconcile"),
    Row("create namespace, secret, configmap, serviceaccount"),
    Row("create role, clusterrole, rolebinding, clusterrolebinding"),
    Row("create token", (1, 24), "create token came with 1.24", others=_LIBRARIES),
    Row("certificate approve and deny"),
    Row("Pods and Services, which are stored; cluster-info", others=(PYTHON,)),
    Row("get events of both groups", others=(PYTHON,)),
    Row("events", (1, 26), "kubectl events came with 1.26"),
    Row("get all; kinds of which there are none"),
    Row("delete a namespace with what is in it"),
    Row("unknown fields are refused", limits="kubectl up to 1.24 refuses them itself, by the OpenAPI v2 document"),
    Row("unknown fields are warned about", (1, 25), "create --validate=warn came with 1.25"),
    Row("--as, --as-group"),
    Row("an operator: create, update and delete handlers with finalizers", None, others=(KOPF,)),
    Row("DynamicClient", None, others=(PYTHON,)),
    Row("join: trust cluster-info by token, ask for a certificate, use it", None, others=(OPENSSL,)),
)
BY_NAME = {row.what: row for row in ROWS}


def cell(row: Row, client: str) -> Cell:
    """What the table says of `client`, one of CLIENTS."""
    if not client.startswith("kubectl "):
        return Cell(client in row.others)
    if row.kubectl is None:
        return Cell(False)
    major, minor = client.removeprefix("kubectl ").split(".")
    return Cell(True) if (int(major), int(minor)) >= row.kubectl else Cell(False, row.why)


def table() -> dict[str, dict[str, Cell]]:
    """Every row by its name: what is said of each client."""
    return {row.what: {client: cell(row, client) for client in CLIENTS} for row in ROWS}
