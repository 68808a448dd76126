"""UserInfo of authentication.k8s.io: conversion from an identity.

Rules kept here: empty attributes are absent from the JSON form.
"""

from __future__ import annotations

from mooring.apimachinery.schema import Obj
from mooring.identity import UserInfo


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
