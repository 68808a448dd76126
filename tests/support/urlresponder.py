"""Runs exchanges of authenticators against responses by URL, without a network."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, TypeVar

from mooring.trust.httpexchange import UNREACHABLE, HttpFailure, HttpRequest, HttpResponse, Wait

T = TypeVar("T")


class UrlResponder:
    """Responses by URL: bytes become a response with status 200; other URLs get 404. Records the requests."""

    def __init__(self, pages: Mapping[str, bytes | HttpResponse | HttpFailure]) -> None:
        self.pages = dict(pages)
        self.calls: list[HttpRequest] = []

    @property
    def urls(self) -> list[str]:
        """URLs of the requests, in order."""
        return [call.url for call in self.calls]

    def answer(self, call: HttpRequest) -> HttpResponse | HttpFailure:
        self.calls.append(call)
        page = self.pages.get(call.url, HttpResponse(404, b"nothing here"))
        if isinstance(page, bytes):
            page = HttpResponse(200, page)
        if isinstance(page, HttpResponse) and len(page.body) > call.max_bytes:
            return HttpFailure(UNREACHABLE, f"the answer is longer than {call.max_bytes} bytes")
        return page

    def run(self, exchange: Generator[HttpRequest | Wait, Any, T]) -> T:
        """Drive an exchange to its end. Return its result, or raise its error."""
        try:
            step = next(exchange)
            while True:
                step = exchange.send(self.answer(step) if isinstance(step, HttpRequest) else None)
        except StopIteration as done:
            result: T = done.value
            return result
