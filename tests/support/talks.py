"""Conversations of authenticators with somebody outside, driven by hand: what is asked, and a world that answers."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, TypeVar

from mooring.trust.httpexchange import UNREACHABLE, HttpFailure, HttpRequest, HttpResponse, Wait

T = TypeVar("T")


class World:
    """What is at which URL. A bytes value is answered with 200; a HttpFailure fails; anything else must be an HttpResponse."""

    def __init__(self, pages: Mapping[str, bytes | HttpResponse | HttpFailure]) -> None:
        self.pages = dict(pages)
        self.calls: list[HttpRequest] = []

    @property
    def urls(self) -> list[str]:
        """What was asked for, in order."""
        return [call.url for call in self.calls]

    def answer(self, call: HttpRequest) -> HttpResponse | HttpFailure:
        self.calls.append(call)
        page = self.pages.get(call.url, HttpResponse(404, b"nothing here"))
        if isinstance(page, bytes):
            page = HttpResponse(200, page)
        if isinstance(page, HttpResponse) and len(page.body) > call.max_bytes:
            return HttpFailure(UNREACHABLE, f"the answer is longer than {call.max_bytes} bytes")
        return page

    def run(self, talk: Generator[HttpRequest | Wait, Any, T]) -> T:
        """Drive the conversation to its end; what it raises comes out."""
        try:
            step = next(talk)
            while True:
                step = talk.send(self.answer(step) if isinstance(step, HttpRequest) else None)
        except StopIteration as done:
            result: T = done.value
            return result
