"""`mooring auth whoami`: print the identity of the user, as the server sees it.

Rules kept here (docs/protocol/authentication-reviews.md): a SelfSubjectReview is sent in v1, then v1beta1, then v1alpha1, as
kubectl does: each only when the server does not serve the one before. The table is kubectl's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from mooring.apimachinery.schema import Obj
from mooring.cli.cluster import ChosenCluster, cluster_options
from mooring.cli.options.client import REPORTED, output_option
from mooring.cli.printing import output
from mooring.client.cluster import ClusterClient
from mooring.errors import NotFoundError, PeerError

GROUP = "authentication.k8s.io"
VERSIONS = ("v1", "v1beta1", "v1alpha1")
"""Kubernetes serves v1 since 1.28, v1beta1 since 1.27 and v1alpha1 since 1.26."""


@click.command("whoami")
@output_option(*REPORTED)
@cluster_options
def whoami(output: str, chosen: ChosenCluster) -> None:
    """Print the user name, uid, groups and extra attributes that the server sees."""
    _print(chosen.run_with_retries(review), output)


async def review(client: ClusterClient) -> Obj:
    """Return a SelfSubjectReview in the newest version that the server has. Raises ApiError, PeerError."""
    for version in VERSIONS:
        request = {"kind": "SelfSubjectReview", "apiVersion": f"{GROUP}/{version}", "metadata": {}}
        try:
            return await client.post_path(f"/apis/{GROUP}/{version}/selfsubjectreviews", request)
        except NotFoundError:
            continue
    raise PeerError("the server does not tell callers who they are: it serves no SelfSubjectReview (Kubernetes 1.26)")


def _print(found: Obj, form: str) -> None:
    if form == "text":
        output.print_table(("ATTRIBUTE", "VALUE"), rows(user_of(found)))
    else:
        output.print_document(found, form)


def user_of(found: Obj) -> Obj:
    """Return the user in a review. Raises PeerError when there is none."""
    status = found.get("status")
    user = status.get("userInfo") if isinstance(status, dict) else None
    if not isinstance(user, dict):
        raise PeerError("the server did not say who the caller is")
    return user


def rows(user: Obj) -> Iterator[tuple[str, str]]:
    """Yield attributes and values, as kubectl prints them."""
    yield "Username", str(user.get("username", ""))
    if user.get("uid"):
        yield "UID", str(user["uid"])
    if user.get("groups"):
        yield "Groups", _joined(user["groups"])
    extra = user.get("extra")
    for key, values in sorted(extra.items()) if isinstance(extra, dict) else ():
        yield f"Extra: {key}", _joined(values)


def _joined(values: Any) -> str:
    return f"[{' '.join(map(str, values))}]" if isinstance(values, list) else str(values)
