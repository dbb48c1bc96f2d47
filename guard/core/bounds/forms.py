"""Fields and files of a request that is a form (``multipart/form-data``)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from guard.core.usage.message import Message
from guard.core.usage.request_body import twice

_NAME: Final = re.compile(rb'[ ;]name="?([^";\r\n]{1,256})"?', re.IGNORECASE)
_FIELD_BYTES_MAX: Final = 256 * 1024
_PARTS_MAX: Final = 1000


class Upload(NamedTuple):
    """One file of a form."""

    field: str
    content: bytes


def form(body: bytes) -> tuple[Message, list[Upload]] | None:
    r"""Return the fields and the files of a form; whole numbers as such; None for anything else.

    Raises:
        UnreadableError: it names a field twice.

    >>> form(b'--x\r\nContent-Disposition: form-data; name="n"\r\n\r\n2\r\n--x--\r\n')
    ({'n': 2}, [])
    """
    boundary = body[: body.find(b"\r\n")]
    if not boundary.startswith(b"--") or not 3 <= len(boundary) <= 200:
        return None
    fields: Message = {}
    uploads: list[Upload] = []
    for part in body.split(boundary, _PARTS_MAX)[1:]:
        head, _, content = part.partition(b"\r\n\r\n")
        found = _NAME.search(head)
        if found is None:
            continue
        name, value = found[1].decode("utf-8", "replace"), content.removesuffix(b"\r\n")
        if b"filename" in head.lower() or len(value) > _FIELD_BYTES_MAX:
            uploads.append(Upload(name, value))
        else:
            text = value.decode("utf-8", "replace")
            if name in fields and not name.endswith("[]"):  # the first or the last: readers differ
                raise twice(name)
            fields[name] = int(text) if re.fullmatch(r"\d{1,12}", text) else text
    return fields, uploads
