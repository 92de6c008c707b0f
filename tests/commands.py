"""Commands of other clients, and their headers without the frame around them."""

from typing import Any

from triomq.protocol.wire.command import RemotingCommand

_PREFIX_BYTES = 8


def make_command(
    *values: Any, language: int | None = None, version: int | None = None, **fields: Any
) -> RemotingCommand:
    """Return a command, perhaps of another language or version than ours."""
    command = RemotingCommand(*values, **fields)
    command.language = command.language if language is None else language
    command.version = command.version if version is None else version
    return command


def encode_header(command: RemotingCommand) -> bytes:
    return command.encode_prefix(0)[_PREFIX_BYTES:]


def decode_header(header: bytes, serialize_type: int) -> RemotingCommand:
    return RemotingCommand.decode((serialize_type << 24 | len(header)).to_bytes(4) + header)
