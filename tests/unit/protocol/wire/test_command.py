"""RemotingCommand: golden frames of Apache's classes, replies, and frames that are none."""

import struct

import pytest

from tests.commands import make_command
from triomq.protocol.codes import VERSION, CommandFlag, LanguageCode, RequestCode, ResponseCode, SerializeType
from triomq.protocol.errors import FrameTooLargeError, ProtocolError
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import MAX_HEADER_BYTES, Frame, FrameSplitter

# Bytes that the 4.9.7 classes wrote.  Source: wire.md 17.1-17.7.
JSON_REQUEST = """
    00000087000000837b22636f6465223a3130352c226578744669656c6473223a7b22746f706963223a22546f70696354657374227d2c2266
    6c6167223a302c226c616e6775616765223a224a415641222c226f7061717565223a312c2273657269616c697a655479706543757272656e
    74525043223a224a534f4e222c2276657273696f6e223a3430377d"""
JSON_RESPONSE = """
    000000630000005f7b22636f6465223a302c22666c6167223a312c226c616e6775616765223a224a415641222c226f7061717565223a312c
    2273657269616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a3430377d"""
BINARY_REQUEST = """
    0000002d 01000029 0069 03 0197 00000001 00000000 00000000 00000014 0005 746f706963 00000009 546f70696354657374"""
BINARY_RESPONSE = "00000021 0100001d 0011 00 0197 00000001 00000001 00000008 6e6f20726f757465 00000000"
BINARY_SEND = """
    000000b4010000ae01360301970000000200000000000000000000009900016100000002504700016200000009546f706963546573740001
    63000000065442573130320001640000000134000165000000013000016600000001300001670000000d3137303030303030303030303000
    016800000001300001690000000954414753015461674100016a000000013000016b0000000566616c736500016d0000000566616c736500
    016e0000000862726f6b65722d616869"""
JSON_ONEWAY = """
    0000008c000000887b22636f6465223a31352c226578744669656c6473223a7b22746f706963223a2254222c2271756575654964223a2230
    227d2c22666c6167223a322c226c616e6775616765223a224a415641222c226f7061717565223a372c2273657269616c697a655479706543
    757272656e74525043223a224a534f4e222c2276657273696f6e223a3430377d"""
BINARY_NEGATIVE_OPAQUE = """
    0000002e 0100002a 000b 09 013d ffffffff 00000000 00000000 00000015 000d 636f6e73756d657247726f7570 00000002 4347"""

SEND_FIELDS = {
    "a": "PG", "b": "TopicTest", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
    "i": "TAGS\x01TagA", "j": "0", "k": "false", "m": "false", "n": "broker-a",
}  # fmt: skip

GOLDEN = [
    (
        JSON_REQUEST,
        make_command(105, 1, ext_fields={"topic": "TopicTest"}, language=LanguageCode.JAVA),
    ),
    (JSON_RESPONSE, make_command(0, 1, 1, language=LanguageCode.JAVA)),
    (BINARY_REQUEST, RemotingCommand(105, 1, ext_fields={"topic": "TopicTest"}, serialize_type=1)),
    (
        BINARY_RESPONSE,
        make_command(17, 1, 1, remark="no route", serialize_type=1, language=LanguageCode.JAVA),
    ),
    (BINARY_SEND, RemotingCommand(310, 2, ext_fields=SEND_FIELDS, body=b"hi", serialize_type=1)),
    (
        JSON_ONEWAY,
        make_command(15, 7, 2, ext_fields={"topic": "T", "queueId": "0"}, language=LanguageCode.JAVA),
    ),
    (
        BINARY_NEGATIVE_OPAQUE,
        make_command(
            11, -1, ext_fields={"consumerGroup": "CG"}, serialize_type=1, language=LanguageCode.GO, version=317
        ),
    ),
]
GOLDEN_IDS = [f"17.{number}" for number in range(1, 8)]


def from_hex(text: str) -> bytes:
    return bytes.fromhex("".join(text.split()))


def fields_of(command: RemotingCommand) -> dict[str, object]:
    return {name: getattr(command, name) for name in RemotingCommand.__slots__}


def split_one(frame: bytes) -> Frame:
    (found,), error = FrameSplitter().split(frame)
    assert error is None
    return found


def frame_of(header: bytes, serialize_type: int = 0, body: bytes = b"") -> bytes:
    """Return a frame as the splitter returns it."""
    return struct.pack(">I", serialize_type << 24 | len(header)) + header + body


# --- golden frames ---


@pytest.mark.parametrize(("golden", "expected"), GOLDEN, ids=GOLDEN_IDS)
def test_golden_frame_read_byte_by_byte_decodes_alike(golden: str, expected: RemotingCommand) -> None:
    data = from_hex(golden)
    splitter = FrameSplitter()
    for index in range(len(data) - 1):
        assert splitter.split(data[index : index + 1]) == ([], None)
    (frame,), _ = splitter.split(data[-1:])
    assert fields_of(RemotingCommand.decode(frame)) == fields_of(expected)


@pytest.mark.parametrize(
    "golden",
    [BINARY_REQUEST, BINARY_RESPONSE, BINARY_SEND, BINARY_NEGATIVE_OPAQUE],
    ids=["17.3", "17.4", "17.5", "17.7"],
)
def test_golden_binary_frame_encoded_again_byte_for_byte(golden: str) -> None:
    data = from_hex(golden)
    assert RemotingCommand.decode(split_one(data)).encode() == data


# --- what we write ---


def test_json_response_is_written_as_java_writes_it() -> None:
    """Trap 1: no whitespace.  wire.md 2.2: no key named ``body``, which 5.5 clients fail on."""
    header = (
        b'{"code":0,"extFields":{"queueId":"1"},"flag":1,"language":"PYTHON","opaque":5,'
        b'"serializeTypeCurrentRPC":"JSON","version":407}'
    )
    frame = RemotingCommand(0, 5, CommandFlag.RESPONSE, {"queueId": "1"}, b"body").encode()
    assert frame == struct.pack(">iI", 4 + len(header) + 4, len(header)) + header + b"body"


@pytest.mark.parametrize("serialize_type", list(SerializeType))
def test_oversized_header_is_rejected_by_writer_and_reader(serialize_type: int) -> None:
    fields = {"properties": "x" * (MAX_HEADER_BYTES + 1)}
    with pytest.raises(FrameTooLargeError):
        RemotingCommand(10, ext_fields=fields, serialize_type=serialize_type).encode()
    with pytest.raises(FrameTooLargeError, match=str(MAX_HEADER_BYTES)):
        RemotingCommand.decode(frame_of(bytes(MAX_HEADER_BYTES + 1), serialize_type))


# --- requests and replies ---


@pytest.mark.parametrize("serialize_type", list(SerializeType))
def test_reply_takes_opaque_and_serialisation_of_its_request(serialize_type: int) -> None:
    """Trap 2: the serialisation belongs to the frame, not to the connection."""
    request = make_command(
        310, 77, 0, SEND_FIELDS, b"hi", serialize_type=serialize_type, language=LanguageCode.JAVA, version=399
    )
    reply = RemotingCommand.decode(request.encode()[4:]).reply(ResponseCode.SUCCESS, {"queueId": "1"}, b"body")
    assert fields_of(reply) == {
        "code": 0,
        "opaque": 77,
        "flag": CommandFlag.RESPONSE,
        "language": LanguageCode.PYTHON,
        "version": VERSION,
        "remark": None,
        "ext_fields": {"queueId": "1"},
        "body": b"body",
        "serialize_type": serialize_type,
        "account": "",
    }


def test_oneway_request_is_known_by_its_flag_alone() -> None:
    """Trap 13: never answer one-way requests, always answer the others."""
    oneway = RemotingCommand.decode(split_one(from_hex(JSON_ONEWAY)))
    assert oneway.is_oneway
    assert not oneway.is_response
    request = RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert not request.is_oneway
    assert not request.is_response
    assert request.reply().is_response
    assert not request.reply().is_oneway
    assert RemotingCommand(0, flag=0b101).is_response  # other bits do not hide ours
    assert RemotingCommand(0, flag=0b110).is_oneway


# --- frames that are none ---


UNREADABLE = [
    *((bytes(length), f"frame of {length} bytes") for length in range(4)),
    *((frame_of(b'{"code":1}', kind), f"unknown header serialisation {kind}") for kind in (2, 3, 76, 78, 255)),
    *(
        (struct.pack(">I", kind << 24 | claimed) + b'{"code":1}', f"header of {claimed} bytes in a frame with 10")
        for kind in (0, 1, 77, 2)
        for claimed in (11, 255, 2**20, 2**24 - 1)
    ),
]


@pytest.mark.parametrize(("frame", "reason"), UNREADABLE)
def test_unreadable_frame_is_refused_with_the_reason(frame: bytes, reason: str) -> None:
    """Trap 2: unknown serialisations close the connection."""
    with pytest.raises(ProtocolError, match=reason):
        RemotingCommand.decode(frame)
