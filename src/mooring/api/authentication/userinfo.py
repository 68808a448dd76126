"""UserInfo of authentication.k8s.io: schema, and conversion from an identity.

Rules kept here: empty attributes are absent from the JSON form.
"""

from __future__ import annotations

from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Obj, Scalar
from mooring.identity import UserInfo


def user_info_schema(version: str) -> Message:
    """Return the schema for one version of authentication.k8s.io."""
    return Message(
        f"io.k8s.api.authentication.{version}.UserInfo",
        (
            Field("username", 1, Scalar.STRING, "The name that identifies the user."),
            Field("uid", 2, Scalar.STRING, "Tells users of equal name apart over time."),
            Field("groups", 3, ListOf(Scalar.STRING), "Groups the user belongs to."),
            Field("extra", 4, MapOf(Scalar.STRING_LIST), "What else the authenticator says about the user."),
        ),
        "Who somebody is.",
    )


def user_info(user: UserInfo) -> Obj:
    """Convert an identity to its JSON form."""
    obj: Obj = {"username": user.username}
    if user.uid:
        obj["uid"] = user.uid
    if user.groups:
        obj["groups"] = list(user.groups)
    if user.extra:
        obj["extra"] = {key: list(values) for key, values in user.extra.items()}
    return obj
