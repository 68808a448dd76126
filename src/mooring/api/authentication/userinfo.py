"""UserInfo as the authentication API shows it.

Rules kept here: data only, and the one way from an identity to its JSON form: empty attributes are absent.
"""

from __future__ import annotations

from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Obj, Scalar
from mooring.identity import UserInfo


def user_info_schema(version: str) -> Message:
    """The message in one version of authentication.k8s.io."""
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
    """The JSON form of `user`."""
    obj: Obj = {"username": user.username}
    if user.uid:
        obj["uid"] = user.uid
    if user.groups:
        obj["groups"] = list(user.groups)
    if user.extra:
        obj["extra"] = {key: list(values) for key, values in user.extra.items()}
    return obj
