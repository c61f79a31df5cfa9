"""One remoting command: a request, a reply or a oneway notice.

`header` encodes and decodes it.

    flag bit 0   this is a reply          it repeats the request's opaque
    flag bit 1   oneway                   no reply is awaited, and none may be sent
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shmq.protocol.codes import PROTOCOL_VERSION, Codec, Language, Response

FLAG_REPLY = 1
FLAG_ONEWAY = 2


@dataclass(slots=True)
class Command:
    """A decoded command. `ext` holds the header fields of its code, all of them text, as on the wire."""

    code: int
    opaque: int = 0
    flag: int = 0
    ext: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    remark: str | None = None
    language: Language = Language.PYTHON
    version: int = PROTOCOL_VERSION
    codec: Codec = Codec.JSON

    @property
    def is_reply(self) -> bool:
        """Whether this answers a request of ours with the same opaque."""
        return bool(self.flag & FLAG_REPLY)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender must not be answered."""
        return bool(self.flag & FLAG_ONEWAY)

    def reply(
        self,
        code: int = Response.SUCCESS,
        *,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        remark: str | None = None,
    ) -> Command:
        """Return the answer to this request, in the request's own header encoding."""
        return Command(
            code=code,
            opaque=self.opaque,
            flag=FLAG_REPLY,
            ext=dict(ext) if ext else {},
            body=body,
            remark=remark,
            codec=self.codec,
        )


def oneway(code: int, ext: Mapping[str, str], *, opaque: int = 0, body: bytes = b"") -> Command:
    """Return a notice that expects no reply."""
    return Command(code=code, opaque=opaque, flag=FLAG_ONEWAY, ext=dict(ext), body=body)
