"""Which of several brokers has a name: checks at the start, and while a master runs.

A broker is asked for the time of its promotion (``GET_PROMOTION``); Apache's brokers do not know the request, and count
as never promoted.
"""

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from ssl import SSLContext
from typing import Final

import trio

from triomq.broker.addresses import Address
from triomq.broker.config import BrokerConfig
from triomq.broker.network.sessions import ask_once, client_context
from triomq.protocol.bodies.route import ClusterInfo
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ConfigError, ProtocolError
from triomq.protocol.java import read_properties
from triomq.protocol.requests.topics import PROMOTED
from triomq.protocol.wire.command import RemotingCommand

_MASTER_ID: Final = 0
_MAX_DIGITS: Final = 13  # of a time in ms: until the year 2286


async def promoted_ms_of(address: str, tls: SSLContext | None) -> int | None:
    """Return when a broker was promoted, 0 for never; ``None``: no broker answers there within 3 s."""
    with suppress(ConfigError):
        answer = await ask_once(Address.parse(address), tls, RequestCode.GET_PROMOTION)
        return None if answer is None else promoted_ms_in(answer)
    return None


def promoted_ms_in(answer: RemotingCommand) -> int:
    """Return when a broker was promoted, from its answer; 0 for never, and from Apache's brokers."""
    text = answer.ext_fields.get(PROMOTED, "")
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else 0


def outranked(name: str, address: str, promoted_ms: int) -> str:
    """Return why a broker may not be the master any more, and what to do."""
    at = datetime.fromtimestamp(promoted_ms / 1000, UTC).isoformat(timespec="seconds")
    return (
        f"the master of broker name {name} is {address}, which was promoted at {at}: start this broker as its slave, "
        "with --role slave --broker-id NUMBER"
    )


async def check_broker_name(config: BrokerConfig, promoted_ms: int = 0) -> None:
    """Check that no other broker of this name and id serves clients, and that a slave has its master's file size.

    Call it before this broker listens, or it finds itself.

    A broker that is registered, but does not answer within 3 s, has left its name to this one, as after a crash; and so
    has a master that was not promoted, or before this one.  Name servers that do not answer are left out.

    Args:
        config: of this broker.
        promoted_ms: when it was promoted; 0: never.

    Raises:
        ConfigError: another broker has the name, the master has other files, or a file of TLS cannot be used.
    """
    tls = client_context(config.tls)
    wrong: list[str] = []

    async def check(name_server: Address) -> None:
        known = await _brokers(config, name_server, tls)
        at, master = known.get(config.broker_id), known.get(_MASTER_ID)
        their_ms = None if at is None else await promoted_ms_of(at, tls)
        if their_ms is not None:
            if their_ms > promoted_ms and not config.is_slave:
                wrong.append(outranked(config.broker_name, str(at), their_ms))
            elif their_ms == promoted_ms or config.is_slave:
                wrong.append(_in_use(config, name_server, str(at)))
        elif config.is_slave and master is not None:
            with suppress(ConfigError):
                answer = await ask_once(Address.parse(master), tls, RequestCode.GET_BROKER_CONFIG)
                wrong.extend(_wrong_size(config, master, answer))

    async with trio.open_nursery() as nursery:
        for name_server in config.register:
            nursery.start_soon(check, name_server)
    if wrong:
        raise ConfigError(wrong[0])


async def latest_promotion(config: BrokerConfig) -> int:
    """Return when the masters of this name that name servers know were promoted: the last time, 0 for never.

    Raises:
        ConfigError: a file of TLS cannot be used.
    """
    tls = client_context(config.tls)
    found = [0]

    async def ask(name_server: Address) -> None:
        known = await _brokers(config, name_server, tls)
        if (master := known.get(_MASTER_ID)) is not None:
            found.append(await promoted_ms_of(master, tls) or 0)

    async with trio.open_nursery() as nursery:
        for name_server in config.register:
            nursery.start_soon(ask, name_server)
    return max(found)


async def _brokers(config: BrokerConfig, name_server: Address, tls: SSLContext | None) -> dict[int, str]:
    """Return the addresses of this name's brokers by id; none if the name server does not answer."""
    answer = await ask_once(name_server, tls, RequestCode.GET_BROKER_CLUSTER_INFO)
    if answer is not None and answer.code == ResponseCode.SUCCESS:
        with suppress(ProtocolError):
            known = ClusterInfo.decode(answer.body).broker_addr_table.get(config.broker_name)
            return {} if known is None else known.broker_addrs
    return {}


def _in_use(config: BrokerConfig, name_server: Address, at: str) -> str:
    what = f"broker name {config.broker_name}"
    advice = "name with --broker-name, copy that broker with --role slave --broker-id NUMBER"
    if config.is_slave:
        what, advice = f"broker id {config.broker_id} of {what}", "number with --broker-id"
    return (
        f"{what} is in use: name server {name_server} knows such a broker at {at}, which answers; choose another "
        f"{advice}, or stop that broker first"
    )


def _wrong_size(config: BrokerConfig, master: str, answer: RemotingCommand | None) -> Iterator[str]:
    """Yield an error if the commit log files of a slave and its master differ in size."""
    text = "" if answer is None else bytes(answer.body).decode(errors="replace")
    own, size = str(config.store.commit_log_file_size_bytes), read_properties(text).get("mappedFileSizeCommitLog")
    if size is not None and size != own:
        yield f"commit log files of {own} bytes: those of the master, {master}, have {size} (--commit-log-file-size)"
