"""Schemas of the access reviews.

Rules kept here: data only; field numbers from k8s.io/api authorization/v1 generated.proto
(docs/protocol/negotiation.md#field-numbers).
"""

from __future__ import annotations

from mooring.apimachinery.metav1 import FIELD_SELECTOR_REQUIREMENT, LABEL_SELECTOR_REQUIREMENT, OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Scalar

API = "io.k8s.api.authorization.v1."

_STRINGS = ListOf(Scalar.STRING)


def _selector(name: str, target: str, requirement: Message) -> Message:
    return Message(
        API + name,
        (
            Field("rawSelector", 1, Scalar.STRING, f"The {target} selector as text. Not together with requirements."),
            Field("requirements", 2, ListOf(requirement), f"The {target} selector in parts; all must hold."),
        ),
        f"Limits the access to objects that a {target} selector matches.",
    )


RESOURCE_ATTRIBUTES = Message(
    API + "ResourceAttributes",
    (
        Field("namespace", 1, Scalar.STRING, "Namespace of the object; empty means all, or none for cluster scope."),
        Field("verb", 2, Scalar.STRING, "A verb such as get, list or create; * means all."),
        Field("group", 3, Scalar.STRING, "API group of the resource; * means all."),
        Field("version", 4, Scalar.STRING, "API version of the resource; * means all."),
        Field("resource", 5, Scalar.STRING, "The resource; * means all."),
        Field("subresource", 6, Scalar.STRING, "The subresource; empty means none."),
        Field("name", 7, Scalar.STRING, "Name of the object; empty means all."),
        Field(
            "fieldSelector",
            8,
            _selector("FieldSelectorAttributes", "field", FIELD_SELECTOR_REQUIREMENT),
            "Limits the access by fields.",
            pointer=True,
        ),
        Field(
            "labelSelector",
            9,
            _selector("LabelSelectorAttributes", "label", LABEL_SELECTOR_REQUIREMENT),
            "Limits the access by labels.",
            pointer=True,
        ),
    ),
    "An access to a resource.",
)

NON_RESOURCE_ATTRIBUTES = Message(
    API + "NonResourceAttributes",
    (
        Field("path", 1, Scalar.STRING, "URL path."),
        Field("verb", 2, Scalar.STRING, "The HTTP method in lower case."),
    ),
    "An access to a URL that is no resource.",
)

_ACCESS = (
    Field("resourceAttributes", 1, RESOURCE_ATTRIBUTES, "The access to a resource.", pointer=True),
    Field("nonResourceAttributes", 2, NON_RESOURCE_ATTRIBUTES, "The access to a URL.", pointer=True),
)

SPEC = Message(
    API + "SubjectAccessReviewSpec",
    (
        *_ACCESS,
        Field("user", 3, Scalar.STRING, "The user to ask about."),
        Field("groups", 4, _STRINGS, "The user's groups."),
        Field("extra", 5, MapOf(Scalar.STRING_LIST), "The user's extra attributes."),
        Field("uid", 6, Scalar.STRING, "The user's UID."),
    ),
    "Who wants to do what. Exactly one of resourceAttributes and nonResourceAttributes is set.",
)

SELF_SPEC = Message(
    API + "SelfSubjectAccessReviewSpec",
    _ACCESS,
    "What the caller wants to do. Exactly one of resourceAttributes and nonResourceAttributes is set.",
)

STATUS = Message(
    API + "SubjectAccessReviewStatus",
    (
        Field("allowed", 1, Scalar.BOOL, "Whether the access is allowed.", required=True),
        Field("reason", 2, Scalar.STRING, "Why it is allowed or denied."),
        Field("evaluationError", 3, Scalar.STRING, "What went wrong while finding out; the answer can still stand."),
        Field("denied", 4, Scalar.BOOL, "Whether an authorizer denied it outright."),
    ),
    "Whether the access is allowed.",
)

RULES_SPEC = Message(
    API + "SelfSubjectRulesReviewSpec",
    (Field("namespace", 1, Scalar.STRING, "Namespace to list the rules for. Required."),),
    "Where to look.",
)

RESOURCE_RULE = Message(
    API + "ResourceRule",
    (
        Field("verbs", 1, _STRINGS, "Verbs that are allowed; * means all.", required=True),
        Field("apiGroups", 2, _STRINGS, "API groups of the resources; * means all."),
        Field("resources", 3, _STRINGS, "Resources; * means all."),
        Field("resourceNames", 4, _STRINGS, "Names the rule is limited to; empty means all."),
    ),
    "Something the caller may do with resources.",
)

NON_RESOURCE_RULE = Message(
    API + "NonResourceRule",
    (
        Field("verbs", 1, _STRINGS, "HTTP methods in lower case; * means all.", required=True),
        Field("nonResourceURLs", 2, _STRINGS, "URL paths; a * stands for the rest."),
    ),
    "Something the caller may do with URLs.",
)

RULES_STATUS = Message(
    API + "SubjectRulesReviewStatus",
    (
        Field("resourceRules", 1, ListOf(RESOURCE_RULE), "What the caller may do with resources.", required=True),
        Field("nonResourceRules", 2, ListOf(NON_RESOURCE_RULE), "What the caller may do with URLs.", required=True),
        Field("incomplete", 3, Scalar.BOOL, "True when an authorizer cannot list its rules.", required=True),
        Field("evaluationError", 4, Scalar.STRING, "What went wrong while listing."),
    ),
    "What the caller may do in the namespace, as far as it can be listed.",
)


def review_schema(name: str, spec: Message, status: Message, doc: str) -> Message:
    """Return the schema of one review, with metadata, spec and status."""
    return Message(
        API + name,
        (
            Field(
                "metadata", 1, OBJECT_META, "Standard object metadata; empty but for a namespace where there is one."
            ),
            Field("spec", 2, spec, "What is asked.", required=True),
            Field("status", 3, status, "The answer; filled in by the server."),
        ),
        doc,
    )
