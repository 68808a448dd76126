"""Reason codes of bootstrap tokens. `mooring.trust.bootstraptoken.tokensecret` gives them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mooring.authn.reasons import Reason

REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        "unknown-id": Reason(
            "There is no bootstrap token of this id: it was never made here, was deleted, or expired and was cleaned away.",
            "See mooring token list, and make a new one: mooring token create --print-join-command.",
        ),
        "deleting": Reason("The bootstrap token is being deleted.", "Make a new one: mooring token create."),
        "wrong-type": Reason(
            "The Secret of this name is not one of a bootstrap token.",
            "Delete it, and make the token with mooring token create.",
        ),
        "wrong-secret": Reason(
            "The id is known, and the secret part behind it is wrong.",
            "Copy the token again, whole. If it was not mistyped, it may be a guess: delete the token (mooring token delete).",
        ),
        "id-mismatch": Reason(
            "The id in the Secret differs from the one in its name.",
            "Delete it, and make the token with mooring token create.",
        ),
        "usage-missing": Reason(
            "The bootstrap token is not for authentication.",
            "Make one that is: mooring token create --usages signing,authentication.",
        ),
        "bad-groups": Reason(
            "The bootstrap token grants a group that no bootstrap token may grant.",
            "Change auth-extra-groups in its Secret: groups begin with system:bootstrappers and a colon.",
        ),
        "bad-restrictions": Reason(
            "An annotation of the Secret that restricts the bootstrap token cannot be read, so the token is refused.",
            "Correct the annotation that the detail names, or make a new token: mooring token create.",
        ),
        "network-not-allowed": Reason(
            "The bootstrap token is used from an address outside the networks that it allows.",
            "Join from there, or change mooring.dev/allowed-cidrs on its Secret. Behind a load balancer that hides the clients, "
            "the address is that of the balancer.",
        ),
    }
)
