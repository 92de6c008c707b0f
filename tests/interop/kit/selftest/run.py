#!/usr/bin/env python3
"""Proves that scenarios can fail: runs each against an Apache broker behind a proxy that breaks one thing.

usage: run.py --namesrv HOST:PORT [--client 4.9|5] [SCENARIO ...]

The broker must listen on 127.0.0.1 only (run-apache.sh with a 5.x version): the proxy takes the same ports on
127.0.0.2.
First every scenario runs through the proxy unharmed and must pass, then once with its fault and must fail.
Exit code 0 only if all did.
"""

import argparse
import asyncio
import json
import pathlib
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

KIT = pathlib.Path(__file__).resolve().parent.parent
REAL, PROXY = "127.0.0.1", "127.0.0.2"
SEND, SEND_BATCH, PULL, QUERY, UPDATE_OFFSET, MAKE_TOPIC = 310, 320, 11, 12, 15, 17
OFFSET_BY_TIME, SEND_BACK, END_TRANSACTION, CHECK, NOTIFY, LOCK, CLUSTER, PUSH_REPLY = 29, 36, 37, 39, 40, 41, 106, 326


class Frame:
    """One command; ``code`` is that of the request, for an answer too."""

    def __init__(self, header: dict[str, Any], body: bytes, code: int, *, answer: bool) -> None:
        self.header, self.body, self.code, self.answer = header, body, code, answer
        self.fields: dict[str, str] = header.setdefault("extFields", {})
        self.request: Frame | None = None  # what an answer answers
        self.asked: object = None  # what a fault wants to remember of a request

    def encode(self) -> bytes:
        header = json.dumps(self.header).encode()
        return struct.pack(">II", 4 + len(header) + len(self.body), len(header)) + header + self.body


def stored(body: bytes) -> Iterator[bytes]:
    """The messages of the body of an answer to a pull."""
    while body:
        size = struct.unpack_from(">I", body)[0]
        yield body[:size]
        body = body[size:]


Fault = Callable[[Frame], bool | float | str | None]
# A fault takes a frame and changes it in place.  It returns False to swallow it, "answer" to swallow a request and
# answer its sender with success, seconds (a float) to delay it, anything else to pass it on.


def lost(code: int) -> Fault:
    def fault(frame: Frame) -> bool:
        return frame.answer or frame.code != code

    return fault


def changed(code: int, field: str, value: str) -> Fault:
    def fault(frame: Frame) -> None:
        if frame.code == code and not frame.answer:
            frame.fields[field] = value

    return fault


def shift_offset(frame: Frame) -> None:
    if frame.answer and frame.code == SEND and "queueOffset" in frame.fields:
        frame.fields["queueOffset"] = str(int(frame.fields["queueOffset"]) + 1)


def lose_batch_ids(frame: Frame) -> None:
    if frame.answer and frame.code == SEND_BATCH:
        frame.fields["msgId"] = frame.fields["msgId"].rsplit(",", 1)[0]


def lose_last_message(frame: Frame) -> None:
    if frame.answer and frame.code == PULL:
        messages = list(stored(frame.body))
        frame.body = b"".join(messages[:-1]) if len(messages) > 1 else frame.body


def deliver_twice(frame: Frame) -> None:
    if frame.answer and frame.code == PULL:
        frame.body += frame.body


def other_body(frame: Frame) -> None:
    if not frame.answer and frame.code in (SEND, SEND_BATCH):
        frame.body = bytes(b ^ 1 if i == len(frame.body) - 1 else b for i, b in enumerate(frame.body))


def pretend_sent_back(frame: Frame) -> bool | str:
    return not (frame.code == SEND_BACK and not frame.answer) or "answer"


def lock_for_all(frame: Frame) -> None:
    if frame.code == LOCK and not frame.answer:
        frame.asked = json.loads(frame.body)["mqSet"]
    if frame.code == LOCK and frame.answer:
        asked = frame.request.asked if frame.request else []
        frame.body = json.dumps({"lockOKMQSet": asked}).encode()


def index_blind(frame: Frame) -> None:
    if frame.code == QUERY and frame.answer:
        frame.header["code"], frame.body = 22, b""


def no_delay(frame: Frame) -> None:
    if frame.code == SEND and not frame.answer:
        frame.fields["i"] = "\x02".join(
            p for p in frame.fields.get("i", "").split("\x02") if not p.startswith("DELAY\x01")
        )


def forget_offsets(frame: Frame) -> bool | str:
    if frame.code == PULL and not frame.answer:
        frame.fields["sysFlag"] = str(int(frame.fields["sysFlag"]) & ~1)
    return frame.code != UPDATE_OFFSET or frame.answer or "answer"


def wrong_time(frame: Frame) -> None:
    if frame.code == OFFSET_BY_TIME and frame.answer:
        frame.fields["offset"] = str(int(frame.fields["offset"]) + 1)


def slow_pull(frame: Frame) -> bool | float:
    return not (frame.answer and frame.code == PULL) or 0.7


FAULTS: Final[dict[str, Fault]] = {
    "send_sync": shift_offset,
    "send_batch": lose_batch_ids,
    "send_large_body_compressed": other_body,
    "push_concurrent_star": lose_last_message,
    "push_two_groups": deliver_twice,
    "push_retry_then_succeed": pretend_sent_back,
    "push_dead_letter": changed(SEND_BACK, "maxReconsumeTimes", "9"),
    "push_orderly_busy_queue": lock_for_all,
    "rebalance_join_leave": lost(NOTIFY),
    "offsets_persist_across_restart": forget_offsets,
    "pull_offsets": wrong_time,
    "transaction_commit": lost(END_TRANSACTION),
    "transaction_rollback": changed(END_TRANSACTION, "commitOrRollback", "8"),
    "transaction_check_back": lost(CHECK),
    "query_by_key": index_blind,
    "request_reply": lost(PUSH_REPLY),
    "admin_create_topic": changed(MAKE_TOPIC, "perm", "6"),
    "delayed_message": no_delay,
    "long_poll_latency": slow_pull,
}


async def read(reader: asyncio.StreamReader, swap: tuple[bytes, bytes] | None) -> tuple[dict[str, Any], bytes]:
    length, mark = struct.unpack(">II", await reader.readexactly(8))
    rest = await reader.readexactly(length - 4)
    if mark >> 24:
        raise ValueError("the clients must write headers in JSON")
    header = json.loads(rest[:mark])
    body = rest[mark:]
    if swap and header.get("flag", 0) & 1:
        body = body.replace(*swap)
    return header, body


def all_is_well(request: Frame) -> Frame:
    """An answer that a client takes for a success, also of a send."""
    fields = {"msgId": "0" * 32, "queueId": request.fields.get("e", "0"), "queueOffset": "0"}
    header = {"code": 0, "flag": 1, "language": "JAVA", "opaque": request.header["opaque"], "version": 401}
    return Frame(header | {"extFields": fields}, b"", 0, answer=True)


class Proxy:
    """Stands for one server; opaque numbers lead from answers back to requests."""

    def __init__(self, port: int, swap: tuple[bytes, bytes] | None) -> None:
        self.port, self.swap = port, swap
        self.fault: Fault | None = None

    async def serve(self) -> None:
        self.server = await asyncio.start_server(self.connection, PROXY, self.port)

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up, out = await asyncio.open_connection(REAL, self.port)
        except OSError:
            writer.close()
            return
        by_client: dict[int, Frame] = {}
        by_server: dict[int, Frame] = {}
        await asyncio.gather(
            self.pump(reader, out, writer, by_client, by_server), self.pump(up, writer, out, by_server, by_client)
        )

    async def pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        back: asyncio.StreamWriter,
        mine: dict[int, Frame],
        theirs: dict[int, Frame],
    ) -> None:
        try:
            while True:
                header, body = await read(reader, self.swap)
                answer = bool(header["flag"] & 1)
                request = theirs.pop(header["opaque"], None) if answer else None
                frame = Frame(header, body, request.code if request else header["code"], answer=answer)
                frame.request = request
                if not answer and not header["flag"] & 2:
                    mine[header["opaque"]] = frame
                verdict = self.fault(frame) if self.fault else None
                if verdict == "answer":
                    mine.pop(header["opaque"], None)
                    back.write(all_is_well(frame).encode())
                elif verdict is not False:
                    if isinstance(verdict, float):
                        await asyncio.sleep(verdict)
                    writer.write(frame.encode())
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def verdict_of(client: str, namesrv: str, scenario: str) -> dict[str, Any]:
    command = (str(KIT / "run.sh"), "--client", client, "--json", "--namesrv", namesrv, scenario)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    verdict: dict[str, Any] = json.loads(output.splitlines()[0])
    return verdict


async def broker_port(namesrv_port: int) -> int:
    """Ask the name server where its broker listens."""
    reader, writer = await asyncio.open_connection(REAL, namesrv_port)
    header = {"code": CLUSTER, "flag": 0, "language": "JAVA", "opaque": 1, "version": 401}
    writer.write(Frame(header, b"", CLUSTER, answer=False).encode())
    _, body = await read(reader, None)
    address = body.decode().split(f"{REAL}:")[1]
    return int("".join(c for c in address[:5] if c.isdigit()))


async def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--client", default="4.9")
    parser.add_argument("scenarios", nargs="*")
    options = parser.parse_args()
    namesrv_port = int(options.namesrv.split(":")[1])
    port = await broker_port(namesrv_port)
    broker = Proxy(port, None)
    await broker.serve()
    await Proxy(namesrv_port, (f"{REAL}:{port}".encode(), f"{PROXY}:{port}".encode())).serve()
    bad = 0
    for name in options.scenarios or FAULTS:
        for fault, wanted in ((None, "PASS"), (FAULTS[name], "FAIL")):
            broker.fault = fault
            told = await verdict_of(options.client, f"{PROXY}:{namesrv_port}", name)
            right = told["verdict"] == wanted
            bad += not right
            judged = "as it should" if right else "NOT AS IT SHOULD"
            state = "harmed" if fault else "unharmed"
            print(judged, name, state, told["verdict"], told["detail"], sep=" | ", flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    asyncio.run(main())
