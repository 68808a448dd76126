"""DER as Go's `cryptobyte` reads it, which reads certificates for kube-apiserver (X.690 8 and 10).

Rules kept here (docs/adr/0085-certificates-as-go-reads-them.md):
* A length is definite and as short as it can be, and a tag has one octet. A set need not be sorted, and a default may be written
  out.
* The reader of a field names it in the error: the reader knows the bytes only.
* The cost of reading grows with the number of elements. `ElementBudget` limits it before anything is built from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import NamedTuple

from cryptography.x509.oid import ObjectIdentifier

BOOLEAN, INTEGER, BIT_STRING, OCTET_STRING, OID = 0x01, 0x02, 0x03, 0x04, 0x06
SEQUENCE, SET = 0x30, 0x31
PLAIN, CONSTRUCTED = 0x80, 0xA0
"""Context-specific tags: `PLAIN | 1` is [1] of a primitive type, `CONSTRUCTED | 1` of another."""

UTC_TIME, GENERALIZED_TIME = 0x17, 0x18
_TIME = re.compile(rb"(\d\d|\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)?(?:Z|([+-])(\d\d)(\d\d))")
_LONG_TAG = 0x1F
_LARGEST_ARC = 2**31 - 1
"""Go's limit of one number of an object identifier."""
_LONGEST_OID = 63
"""Octets of an object identifier that the library holds. Go has no limit."""
_OCTETS_OF_AN_ELEMENT = 8
"""Octets of an object identifier that cost as much as an element: each number of it is decoded by itself."""
_NUMBERS = re.compile(rb"[\x80-\xff]*[\x00-\x7f]")
_PADDED = re.compile(rb"(?:\A|[\x00-\x7f])\x80")
"""Begin of a number of an object identifier that is longer than it needs to be."""


class DerError(ValueError):
    """The bytes are not the DER of the expected type."""


class TooManyElementsError(DerError):
    """The bytes have more elements than their budget."""


class ElementBudget:
    """Number of elements that may still be read of what one sender sent. Readers of nested elements share it."""

    __slots__ = ("_left", "_most")

    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def spend(self, elements: int = 1) -> None:
        """Count elements. Raises TooManyElementsError."""
        self._left -= elements
        if self._left < 0:
            raise TooManyElementsError(f"more than {self._most} elements, such as names, are not read")


class Element(NamedTuple):  # a tuple, because making one is most of the cost of reading an element
    """One element. `encoding` is the whole of it, `content` what stands behind its header."""

    tag: int
    content: bytes
    encoding: bytes
    budget: ElementBudget | None

    def fields(self) -> Fields:
        """Return the elements of its content."""
        return Fields(self.content, self.budget)


class Fields:
    """Elements that follow each other, read from the first on. All methods raise DerError."""

    def __init__(self, data: bytes, budget: ElementBudget | None = None) -> None:
        self._data = data
        self._place = 0
        self._budget = budget

    def __bool__(self) -> bool:
        """True while something is left."""
        return self._place < len(self._data)

    def __iter__(self) -> Iterator[Element]:
        """Yield the elements that are left."""
        while self:
            yield self.any()

    def is_next(self, tag: int) -> bool:
        """Return whether another element follows, with this tag."""
        return self._data[self._place : self._place + 1] == bytes((tag,))

    def any(self) -> Element:
        """Return the next element."""
        data, place, budget = self._data, self._place, self._budget
        if budget is not None:
            budget.spend()
        if len(data) - place < 2 or data[place] & _LONG_TAG == _LONG_TAG:
            raise DerError("an element is cut off or has a tag of several octets")
        size, begin = data[place + 1], place + 2
        if size & 0x80:
            begin += size & 0x7F
            size = int.from_bytes(data[place + 2 : begin], "big")
            shortest = max(1, -(-size.bit_length() // 8))
            if size < 0x80 or begin - place - 2 != shortest:
                raise DerError("the length of an element is not in its shortest form")
        end = begin + size
        if end > len(data):
            raise DerError("an element is cut off")
        self._place = end
        return Element(data[place], data[begin:end], data[place:end], budget)

    def next(self, tag: int) -> Element:
        """Return the next element, which has this tag."""
        if not self.is_next(tag):
            raise DerError("an element is missing or of another type")
        return self.any()

    def optional(self, tag: int) -> Element | None:
        """Return the next element if it has this tag."""
        return self.any() if self.is_next(tag) else None


def only(data: bytes, tag: int, budget: ElementBudget | None = None) -> Element:
    """Return the one element of `data`. Raises DerError."""
    fields = Fields(data, budget)
    found = fields.next(tag)
    if fields:
        raise DerError("bytes follow the end")
    return found


def integer(element: Element) -> int:
    """Return the value of an INTEGER. Raises DerError."""
    content = element.content
    if not content or (len(content) > 1 and content[0] in (0, 0xFF) and content[0] >> 7 == content[1] >> 7):
        raise DerError("a number is not in its shortest form")
    return int.from_bytes(content, "big", signed=True)


def boolean(element: Element) -> bool:
    """Return the value of a BOOLEAN. Raises DerError."""
    if element.content not in (b"\0", b"\xff"):
        raise DerError("a truth value is neither 00 nor FF")
    return element.content == b"\xff"


def bits(element: Element) -> tuple[bytes, int]:
    """Return the octets of a BIT STRING and the number of unused bits at their end. Raises DerError."""
    unused, octets = element.content[:1], element.content[1:]
    count = unused[0] if unused else 8
    if count > 7 or (count and not octets) or (octets and octets[-1] & ((1 << count) - 1)):
        raise DerError("the unused bits of a bit string are wrong")
    return octets, count


def object_identifier(element: Element) -> ObjectIdentifier:
    """Return the value of an OBJECT IDENTIFIER. Raises DerError."""
    if len(element.content) > _LONGEST_OID:
        raise DerError(f"an object identifier has more than {_LONGEST_OID} octets")
    if element.budget is not None:
        element.budget.spend(len(element.content) // _OCTETS_OF_AN_ELEMENT)
    return _object_identifier(object_identifier_content(element))


def object_identifier_content(element: Element) -> bytes:
    """Return the octets of an OBJECT IDENTIFIER whose numbers may have any size. Raises DerError."""
    content = element.content
    if not content or content[-1] & 0x80 or _PADDED.search(content):
        raise DerError("an object identifier is cut off or not in its shortest form")
    return content


@lru_cache(512)
def _object_identifier(content: bytes) -> ObjectIdentifier:
    numbers = [octets[0] if len(octets) == 1 else _number(octets) for octets in _NUMBERS.findall(content)]
    if max(numbers) > _LARGEST_ARC:
        raise DerError("a number of an object identifier is too large")
    first = min(numbers[0] // 40, 2)
    return ObjectIdentifier(".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:]))))


def _number(octets: bytes) -> int:
    number = 0
    for octet in octets:
        number = number << 7 | octet & 0x7F
    return number


def time(element: Element) -> datetime:
    """Return a time. UTCTime without seconds is read, as by Go; of years with two digits 50 is 1950 (RFC 5280 4.1.2.5.1).

    Raises DerError.
    """
    found = _TIME.fullmatch(element.content)
    digits = {UTC_TIME: 2, GENERALIZED_TIME: 4}.get(element.tag)
    if found is None or len(found[1]) != digits or (digits == 4 and found[6] is None):
        raise DerError("a time has another form than YYMMDDHHMMSSZ or YYYYMMDDHHMMSSZ")
    year = int(found[1])
    if digits == 2:
        year += 1900 if year >= 50 else 2000
    offset = timedelta(hours=int(found[8] or 0), minutes=int(found[9] or 0))
    if found[7] and not offset:
        raise DerError("a time has the offset +0000 instead of Z")
    try:
        zone = timezone(-offset if found[7] == b"-" else offset)
        month, day, hour, minute, second = (int(one or 0) for one in found.group(2, 3, 4, 5, 6))
        return datetime(year, month, day, hour, minute, second, tzinfo=zone).astimezone(UTC)
    except (ValueError, OverflowError):
        raise DerError("a time is none of the calendar") from None


def encoded(tag: int, *contents: bytes) -> bytes:
    """Return the encoding of an element with these contents, one behind the other."""
    size = sum(map(len, contents))
    octets = size.to_bytes(-(-size.bit_length() // 8) or 1, "big")
    header = octets if size < 0x80 else bytes((0x80 | len(octets),)) + octets
    return b"".join((bytes((tag,)), header, *contents))
