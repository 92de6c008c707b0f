"""Response headers that are encoded once and filled for each response."""

from collections.abc import Mapping
from typing import Final

from triomq.protocol.codes import ResponseCode
from triomq.protocol.wire.command import RemotingCommand

_PREFIX_BYTES: Final = 8  # of a frame
_OPAQUE: Final = 1_234_567_890  # stands for the opaque while the template is made


def json_template(fields: Mapping[str, str], remark: str | None = None, code: int = ResponseCode.SUCCESS) -> bytes:
    """Return the JSON header of a response, as the general encoder writes it.

    It is filled by ``%`` with the values for the placeholders in ``fields``, the opaque, and those in ``remark``.
    """
    frame = RemotingCommand(code, _OPAQUE, 1, dict(fields), remark=remark).encode()
    return frame[_PREFIX_BYTES:].replace(b'"opaque":%d' % _OPAQUE, b'"opaque":%d')
