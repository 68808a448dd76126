"""Handle the generic verbs of every kind: get, list, watch, create, update, patch, apply, delete.

Rules kept here: this file translates HTTP into calls of the reader and the writer and back. It reads field validation, dry run and
patch types from headers and query; `mooring.apimachinery` and `mooring.registry` implement them. Kinds with two served forms are
converted on the way in and on the way out (`mooring.server.resources.watches`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from mooring.api.kind import Change, Kind
from mooring.api.readonly import NO_WORKLOADS
from mooring.apimachinery.apply.applyconfiguration import APPLY_PATCH, decode_apply
from mooring.apimachinery.codec.goerrors import go_value, unmarshal_error
from mooring.apimachinery.codec.json import JSONSyntaxError, decode_json, duplicate_keys, work_size
from mooring.apimachinery.codec.requestbody import (
    cannot_be_handled,
    decode_body,
    decode_options,
    duplicate_fields,
    unknown_fields,
    warn_or_refuse,
)
from mooring.apimachinery.codec.unmarshal import unmarshal
from mooring.apimachinery.metav1 import DELETE_OPTIONS, STATUS
from mooring.apimachinery.negotiation import TRANSFORMS
from mooring.apimachinery.options import GROUP as OPTIONS_GROUP
from mooring.apimachinery.options import (
    IGNORE_STORE_READ_ERROR,
    DeleteOptions,
    ListOptions,
    WriteOptions,
    default_field_manager,
    parse_delete_options,
    parse_get_options,
    parse_list_options,
    parse_write_options,
)
from mooring.apimachinery.patch import json_patch, merge_patch, strategic_merge_patch
from mooring.apimachinery.patch import work_size as patch_work_size
from mooring.apimachinery.resource import unexpected_kind
from mooring.apimachinery.schema import Message, Obj
from mooring.apimachinery.selectors import parse_field_selector
from mooring.apimachinery.status import success_status
from mooring.authz.decision import Attributes
from mooring.clock import Clock
from mooring.errors import (
    BadRequestError,
    Details,
    ForbiddenError,
    InvalidError,
    MethodNotAllowedError,
    RoutedUnsupportedMediaTypeError,
    invalid,
)
from mooring.registry.admission.objects import is_namespace
from mooring.registry.cache.events import Stored
from mooring.registry.offload import LONG_BYTES, Offload
from mooring.registry.store import Registry
from mooring.server.requestcontext import RequestContext
from mooring.server.resources.watches import Watches, served, served_list, stored_selectors
from mooring.server.response.render import accepted, list_response, object_response, sends_stored_bytes, stored_response
from mooring.server.transport.http import Request, Response
from mooring.server.transport.httpgrammar import MAX_REMEMBERED_QUERY, parse_query

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
UNSAFE_DELETE = "unsafe-delete-ignore-read-errors"
"""Verb that a user needs, besides delete, to delete an object that cannot be read."""
UNSAFE_DELETE_ANNOTATION = "apiserver.k8s.io/unsafe-delete-ignore-read-error"
"""Audit annotation of such a request."""
EVICTION = "eviction"
POD_CONNECTIONS = frozenset({"log", "exec", "attach", "portforward", "proxy", EVICTION})
"""Subresources of a Pod that need its container, or a controller that starts another."""
UNKNOWN = "unknown"
"""Field manager of a client without a User-Agent."""
_VERB_METHODS = {
    "get": ("GET", "HEAD"),
    "list": ("GET", "HEAD"),
    "watch": ("GET",),
    "create": ("POST",),
    "update": ("PUT",),
    "patch": ("PATCH",),
    "delete": ("DELETE",),
    "deletecollection": ("DELETE",),
}


_NAMED = ("get", "update", "patch", "delete")


class Resources:
    """Handlers of the verbs of every kind."""

    def __init__(self, registry: Registry, watches: Watches, clock: Clock) -> None:
        self._registry = registry
        self._watches = watches
        self._clock = clock
        self._verbs = {
            "get": self._get,
            "list": self._list,
            "watch": self._watch,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    async def handle(self, context: RequestContext, kind: Kind) -> Response:
        """Answer one request for `kind` or one of its stored subresources. Raises ApiError."""
        info = context.info
        allowed = kind.resource.verbs
        if info.subresource:
            allowed = next((sub.verbs for sub in kind.resource.subresources if sub.name == info.subresource), ())
        is_refused = info.verb not in allowed
        if (is_refused and (info.subresource or not kind.read_only_reason)) or (
            context.request.method not in _VERB_METHODS.get(info.verb, ())
        ):
            raise MethodNotAllowedError()
        if (info.verb == "create" and info.name and not info.subresource) or (info.verb in _NAMED and not info.name):
            raise MethodNotAllowedError()
        if kind.resource.namespaced and not info.namespace and info.verb not in ("list", "watch"):
            raise MethodNotAllowedError()
        if kind.deprecation_warning:
            context.warnings.append(kind.deprecation_warning)
        if is_refused:
            return await self._refuse_write(context, kind)
        if info.verb == "patch":
            _patch_media(context.request)
        accepted(context.request, TRANSFORMS, is_listing=info.verb in ("list", "watch"))  # 406 must come before a write
        return await self._verbs[info.verb](context, kind)

    async def _refuse_write(self, context: RequestContext, kind: Kind) -> Response:
        """Refuse a write to a kind that is only read: 404 where there is nothing to write to, and an empty list where nothing is
        deleted, so that teardown finds nothing to do."""
        info = context.info
        if info.verb in ("delete", "deletecollection"):
            await self._delete_options(context)
        if info.verb == "deletecollection":
            options = stored_selectors(kind, parse_list_options(context.request.query))
            listed = await self._registry.reader.list(kind, info.namespace, options)
            if not listed.items:
                return await self._list_response(context, kind, (), {"resourceVersion": str(listed.revision)})
        elif info.verb in _NAMED and not (info.verb == "patch" and _patch_media(context.request) == APPLY_PATCH):
            await self._registry.reader.get(kind, info.namespace, info.name, "")
        resource = kind.resource
        raise MethodNotAllowedError.not_supported(info.verb, resource.group, resource.plural, kind.read_only_reason)

    async def connect(self, context: RequestContext, kind: Kind) -> Response:
        """Answer a request for the log of a Pod, or one that runs in it or ends it, for the Pod. Raises ApiError in every case."""
        info = context.info
        if not info.name or not info.namespace:
            raise MethodNotAllowedError()
        pod = await self._registry.reader.get(kind, info.namespace, info.name, "")
        if info.subresource != EVICTION and not (pod.obj.get("spec") or {}).get("nodeName"):
            raise BadRequestError(f"pod {info.name} does not have a host assigned")
        why = (
            f"{NO_WORKLOADS}; delete the Pod" if info.subresource == EVICTION else "this server connects to no kubelet"
        )
        raise MethodNotAllowedError.not_supported(
            info.verb, kind.resource.group, f"{kind.resource.plural}/{info.subresource}", why
        )

    async def _get(self, context: RequestContext, kind: Kind) -> Response:
        info, request = context.info, context.request
        version = parse_get_options(request.query).resource_version if request.query_string else ""
        stored = await self._registry.reader.get(kind, info.namespace, info.name, version)
        return await self._response(context, kind, stored)

    async def _list(self, context: RequestContext, kind: Kind) -> Response:
        request = context.request
        options = stored_selectors(kind, _list_options(request))
        listed = await self._registry.reader.list(kind, context.info.namespace, options)
        metadata: Obj = {"resourceVersion": str(listed.revision)}
        if listed.continue_token:
            metadata["continue"] = listed.continue_token
            if listed.remaining is not None:
                metadata["remainingItemCount"] = listed.remaining
        return await self._list_response(context, kind, listed.items, metadata)

    async def _list_response(
        self, context: RequestContext, kind: Kind, items: Sequence[Stored], metadata: Obj
    ) -> Response:
        def compute(size: int, function: Callable[[], bytes]) -> Awaitable[bytes]:
            return self._registry.long_work.run(size, context.user.username, function)

        shown = await served_list(kind, items)
        return await list_response(context.request, kind.resource, shown, metadata, context.received, compute)

    async def _watch(self, context: RequestContext, kind: Kind) -> Response:
        options = replace(_list_options(context.request), watch=True)
        if context.info.name:
            options = _restrict_to_name(options, context.info.name)
        # `/watch/namespaces/<name>` is about a Namespace *in* itself, but that is not where it is kept
        namespace = context.info.namespace if kind.resource.namespaced else ""
        return await self._watches.response(context.request, kind, namespace, options, context.user.username)

    async def _create(self, context: RequestContext, kind: Kind) -> Response:
        options = _with_field_manager(context, parse_write_options(context.request.query))
        obj = await self._body(context, kind.resource.schema, kind, options)
        context.created = (obj.get("metadata") or {}).get("name", "")
        stored = await self._registry.writer.create(kind, context.info.namespace, obj, self._change(context), options)
        context.created = stored.name
        return await self._response(context, kind, stored, 201)

    async def _update(self, context: RequestContext, kind: Kind) -> Response:
        info = context.info
        options = _with_field_manager(context, parse_write_options(context.request.query, "UpdateOptions"))
        obj = await self._body(context, kind.resource.schema, kind, options)
        may_create = kind.allow_create_on_update and self._may_create(context)
        stored, created = await self._registry.writer.update(
            kind, info.namespace, info.name, obj, self._change(context), options, info.subresource, may_create
        )
        return await self._response(context, kind, stored, 201 if created else 200)

    async def _patch(self, context: RequestContext, kind: Kind) -> Response:
        info, request = context.info, context.request
        # The media type first: it decides which options are allowed.
        media = _patch_media(request)
        if media == APPLY_PATCH:
            return await self._apply(context, kind)
        body = await request.body()
        options = _with_field_manager(context, parse_write_options(request.query, "PatchOptions"))
        decoded = await self._registry.long_work.run(
            len(body), context.user.username, partial(_decode_patch, media, body)
        )
        # `apply` runs again after a concurrent write. The warnings of the former run must not be repeated.
        before = tuple(context.warnings)

        def invalid_result(patch: Any, reason: str) -> InvalidError:
            # The patch could be applied; its result is invalid.
            is_shown = media == STRATEGIC_PATCH and kind.resource.plural != "secrets"
            value = go_value(patch) if is_shown else "(not shown)"
            return InvalidError.of("", "", "", [invalid("patch", value, reason)])

        def apply(current: Obj) -> Obj:
            # Raised here and not earlier: a missing object is 404, whatever the patch.
            if isinstance(decoded, BadRequestError):
                raise decoded
            patch, duplicates = decoded
            new = _apply_patch(media, patch, kind.from_storage(current), kind)
            unversioned = media != STRATEGIC_PATCH and not new.get("apiVersion")
            try:
                if unversioned:  # Go decodes such a body into its internal type, which lacks these fields
                    unknown = sorted(new.keys() - {"kind", "apiVersion"})
                else:
                    unknown = sorted(unmarshal(new, kind.resource.schema, converted=media == STRATEGIC_PATCH))
            except BadRequestError as error:
                raise invalid_result(patch, error.message) from None
            of_patch = duplicate_fields(duplicates)
            if media == JSON_PATCH:
                of_patch = [f"json patch {text}" for text in of_patch]
            found = [*of_patch, *unknown_fields(unknown)]
            context.warnings[:] = [
                *before,
                *warn_or_refuse(
                    options.field_validation,
                    found,
                    lambda reason: invalid_result(patch, f"strict decoding error: {reason}"),
                ),
            ]
            if unversioned:
                raise BadRequestError(
                    f"the name of the object ({info.name} based on URL) was undeterminable: name must be provided"
                )
            if media != STRATEGIC_PATCH and (problem := _kind_problem(kind, new)):
                raise invalid_result(patch, problem)
            return kind.to_storage(new)

        size = (
            patch_work_size(decoded[0], len(body)) if media == JSON_PATCH and isinstance(decoded, tuple) else len(body)
        )
        stored = await self._registry.writer.patch(
            kind, info.namespace, info.name, apply, self._change(context), options, info.subresource, size
        )
        return await self._response(context, kind, stored)

    async def _apply(self, context: RequestContext, kind: Kind) -> Response:
        info, request = context.info, context.request
        options = parse_write_options(request.query, "PatchOptions", apply=True)
        body = await request.body()
        size = work_size(body, APPLY_PATCH)
        decoded = await self._registry.long_work.run(
            size, context.user.username, partial(decode_apply, body, kind.resource)
        )
        context.warnings += warn_or_refuse(options.field_validation, decoded.duplicates, _strict_decoding_error)
        stored, created = await self._registry.writer.apply(
            kind,
            info.namespace,
            info.name,
            kind.to_storage(decoded.obj),
            self._change(context),
            options,
            info.subresource,
            self._may_create(context),
            size,
        )
        return await self._response(context, kind, stored, 201 if created else 200)

    def _may_create(self, context: RequestContext) -> bool:
        info = context.info
        attributes = Attributes(
            user=context.user,
            verb="create",
            group=info.group,
            version=info.version,
            resource=info.resource,
            namespace=info.namespace,
        )
        return not info.subresource and self._registry.authorize(attributes).allowed

    async def _delete(self, context: RequestContext, kind: Kind) -> Response:
        info, request = context.info, context.request
        options = await self._delete_options(context)
        if options.ignore_store_read_error:
            return await self._delete_unreadable(context, kind, options.dry_run)
        deleted = await self._registry.writer.delete(kind, info.namespace, info.name, options, self._change(context))
        if deleted.gone and not (kind.resource.returns_deleted or is_namespace(kind)):
            revision = 0 if options.dry_run else deleted.stored.revision
            return object_response(request, _deleted_status(kind, deleted.stored, revision), STATUS)
        return await self._response(context, kind, deleted.stored)

    async def _delete_unreadable(self, context: RequestContext, kind: Kind, dry_run: bool) -> Response:
        """Delete an object that cannot be read, for a user who may do that to it; in a dry run, only tell whether it would be."""
        info = context.info
        context.annotations[UNSAFE_DELETE_ANNOTATION] = ""
        decision = self._registry.authorize(
            Attributes(
                user=context.user,
                verb=UNSAFE_DELETE,
                group=info.group,
                version=info.version,
                resource=info.resource,
                namespace=info.namespace,
                name=info.name,
            )
        )
        if not decision.allowed:
            reason = f'not permitted to do "{UNSAFE_DELETE}", reason: {decision.reason}'
            refusal = ForbiddenError.of(info.group, info.resource, info.name, reason)
            context.rejected_reason = refusal.message
            raise refusal
        change = self._change(context)
        revision = await self._registry.writer.delete_unreadable(kind, info.namespace, info.name, change, dry_run)
        status = success_status(Details(name=info.name, kind=kind.resource.kind), revision)
        return object_response(context.request, {**status, "code": 200}, STATUS)

    async def _delete_collection(self, context: RequestContext, kind: Kind) -> Response:
        request = context.request
        listing = parse_list_options(request.query)
        options = await self._delete_options(context)
        if options.ignore_store_read_error:
            reason = "is not allowed with DELETECOLLECTION, try again after removing the option"
            error = invalid(IGNORE_STORE_READ_ERROR, True, reason)
            raise InvalidError.of(OPTIONS_GROUP, "DeleteOptions", "", [error])
        listed = await self._registry.writer.delete_collection(
            kind, context.info.namespace, stored_selectors(kind, listing), options, self._change(context)
        )
        metadata = {"resourceVersion": str(listed.revision)}
        return await self._list_response(context, kind, listed.items, metadata)

    async def _body(self, context: RequestContext, schema: Message, kind: Kind, options: WriteOptions) -> Obj:
        """Return the object in the request body, in the form in which it is stored."""
        obj = await read_object(
            context, self._registry.long_work, schema, kind.resource.kind, kind.resource.api_version, options
        )
        return kind.to_storage(obj)

    async def _delete_options(self, context: RequestContext) -> DeleteOptions:
        request = context.request
        body = await request.body()
        if not body:
            return parse_delete_options(request.query, None)
        read = partial(decode_options, body, request.header(b"content-type"), DELETE_OPTIONS)
        return parse_delete_options(
            request.query,
            await self._registry.long_work.run(
                work_size(body, request.header(b"content-type")), context.user.username, read
            ),
        )

    async def _response(self, context: RequestContext, kind: Kind, stored: Stored, status: int = 200) -> Response:
        """Return the reply with one object. Its stored bytes are sent as they are; every other form of a large object is made in
        a thread."""
        request = context.request

        def respond() -> Response:
            return stored_response(request, served(kind, stored), context.received, status)

        if len(stored.raw) <= LONG_BYTES or (kind.alias is None and sends_stored_bytes(request, kind.resource)):
            return respond()
        return await self._registry.long_work.run(len(stored.raw), context.user.username, respond)

    def _change(self, context: RequestContext) -> Change:
        return Change(
            context.user,
            context.received,
            context.warnings,
            context.request.connection.address,
            certificate=context.outcome.certificate,
            gate=context.recheck,
            writer="",  # the record of the request covers it
        )


@lru_cache(maxsize=1024)
def _remembered_options(query_string: bytes) -> ListOptions:
    return parse_list_options(parse_query(query_string))


def _list_options(request: Request) -> ListOptions:
    """Return the list options of a request. Clients repeat a few queries, and parsing is slow, so short ones are cached."""
    if len(request.query_string) <= MAX_REMEMBERED_QUERY:
        return _remembered_options(request.query_string)
    return parse_list_options(request.query)


def _restrict_to_name(options: ListOptions, name: str) -> ListOptions:
    """Restrict a watch that was authorized for one name to that name, also when the name is in the path (`/watch/…/<name>`)."""
    if options.field_selector.empty:
        return replace(options, field_selector=parse_field_selector(f"metadata.name={name}"))
    if options.field_selector.requires("metadata.name") != name:
        raise BadRequestError("the field selector does not match the name in the path")
    return options


def _strict_decoding_error(reason: str) -> BadRequestError:
    return BadRequestError(f"error strict decoding patch: error converting YAML to JSON: {reason}")


async def read_object(
    context: RequestContext, long_work: Offload, schema: Message, kind: str, api_version: str, options: WriteOptions
) -> Obj:
    """Decode the request body as an object of `schema`. Unknown and duplicate fields become warnings, or one 400."""
    request = context.request
    body = await request.body()
    decode = partial(decode_body, body, request.header(b"content-type"), schema, kind=kind, api_version=api_version)
    size = work_size(body, request.header(b"content-type"))
    decoded = await long_work.run(size, context.user.username, decode)
    found = [*unknown_fields(decoded.unknown), *decoded.duplicates]
    if found and found[-1].startswith("line "):  # Go converts YAML before it meets unknown fields
        found = [*decoded.duplicates, *unknown_fields(decoded.unknown)]
    context.warnings += warn_or_refuse(
        options.field_validation,
        found,
        lambda reason: BadRequestError(cannot_be_handled(api_version, kind, kind, f"strict decoding error: {reason}")),
    )
    return decoded.obj


def _with_field_manager(context: RequestContext, options: WriteOptions) -> WriteOptions:
    """Return the options with a field manager, by default derived from the User-Agent."""
    if options.field_manager:
        return options
    return replace(options, field_manager=default_field_manager(context.request.header(b"user-agent")) or UNKNOWN)


def _decode_patch(media: str, body: bytes) -> tuple[Any, list[str]] | BadRequestError:
    """Return the patch in `body` and its duplicate keys. Raises BadRequestError for a body that cannot be parsed.

    The error of a patch that has another type is returned: it is raised only once the object is known to exist, as in Kubernetes.
    """
    prefix = "" if media == STRATEGIC_PATCH else "error decoding patch: "
    try:
        patch, duplicates = decode_json(body), duplicate_keys(body)
    except JSONSyntaxError:
        raise BadRequestError("invalid JSON patch") from None
    except BadRequestError as error:
        raise BadRequestError(prefix + error.message) from None
    if patch is None:  # Go reads null as an empty patch, which its merge patch refuses
        empty: Any = [] if media == JSON_PATCH else {}
        return BadRequestError("Invalid JSON Patch") if media == MERGE_PATCH else (empty, [])
    if media != JSON_PATCH and not isinstance(patch, dict):
        return BadRequestError(f"{prefix}{unmarshal_error(patch, 'map[string]interface {}')}")
    return patch, duplicates


def _kind_problem(kind: Kind, new: Obj) -> str:
    """Return why the result of a patch cannot be read as an object of `kind`; "" when it can."""
    resource = kind.resource
    given = (new.get("apiVersion", ""), new.get("kind") or resource.kind)
    if given == (resource.api_version, resource.kind):
        return ""
    return unexpected_kind(*given, resource.group, resource.kind)


def _patch_media(request: Request) -> str:
    """Return the media type of a patch. Raises RoutedUnsupportedMediaTypeError."""
    media = request.header(b"content-type").partition(";")[0].strip().lower()
    if media not in (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH):
        raise RoutedUnsupportedMediaTypeError
    return media


def _apply_patch(media: str, patch: Any, current: Obj, kind: Kind) -> Obj:
    if media == JSON_PATCH:
        return json_patch(current, patch)
    if media == MERGE_PATCH:
        return merge_patch(current, patch)
    return strategic_merge_patch(current, patch, kind.resource.schema)


def _deleted_status(kind: Kind, stored: Stored, revision: int) -> Obj:
    return success_status(
        Details(
            name=stored.name,
            group=kind.resource.group,
            kind=kind.resource.plural,
            uid=stored.obj["metadata"].get("uid", ""),
        ),
        revision,
    )
