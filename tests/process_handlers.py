"""Handlers that worker processes import: plain functions, controlled by the body."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from triomq.client import ConsumeContext, ConsumeStatus, MessageExt, OrderlyContext


class ClumsyError(Exception):
    """Cannot be copied: its arguments are not those of ``__init__``."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def on_message(message: MessageExt) -> Any:
    match message.body.split():
        case [b"raise"]:
            raise ValueError("no such order")
        case [b"clumsy"]:
            raise ClumsyError(1, 2)
        case [b"later"]:
            return ConsumeStatus.RECONSUME_LATER
        case [b"lambda"]:
            return lambda: 0
        case [b"reply"]:
            return message.reply(b"pong")
        case [b"die"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case [b"die-once", path] if not Path(os.fsdecode(path)).exists():
            Path(os.fsdecode(path)).touch()
            os._exit(3)
        case [b"hang", path]:
            with Path(os.fsdecode(path)).open("w") as pipe:  # a named pipe: waits for the reader
                pipe.write(str(os.getpid()))
            time.sleep(600)
    return None


def on_messages(messages: list[MessageExt], context: ConsumeContext | OrderlyContext) -> Any:
    if isinstance(context, ConsumeContext):
        context.ack_index = len(messages) - 2
        context.delay_level = 3
    else:
        context.suspend_s = 0.5
    return on_message(messages[0])


def succeed(*_arguments: object) -> Any:
    return lambda: "consumed"  # no status, and it cannot be copied


async def on_message_async(message: MessageExt) -> None:
    on_message(message)
