"""Which requests count for which quotas, and whose they are."""

from typing import Final

from triomq.broker.network.connection import Connection, Processor
from triomq.broker.quotas.quotas import Quotas
from triomq.protocol.acl.needs import SENDS
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import RefusedError
from triomq.protocol.names import retry_topic
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.append import Entry
from triomq.storage.message_store import MessageStore

_RECORD_BYTES: Final = 128  # of a record beside body and properties, about
_SEND_BACK: Final = int(RequestCode.CONSUMER_SEND_MSG_BACK)
_READS: Final = frozenset(
    (
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
    )
)


class QuotaCheck:
    """Checks requests."""

    def __init__(self, quotas: Quotas, store: MessageStore) -> None:
        self.quotas: Final = quotas
        self._store = store

    def limited(self, code: int, processor: Processor) -> Processor:
        """Return a processor that is called for requests that may pass; they count for the connection's ``usage``.

        What a request stores counts when it was stored: delayed and half messages for the topic where they will go.
        What it stores in a later step, after a read from the disk, counts for nobody.
        """
        quotas, store = self.quotas, self._store

        def serving(connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
            quotas.current = connection.usage
            try:
                return processor(connection, command)
            finally:
                quotas.current = None

        def reading(connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
            assert connection.usage is not None
            quotas.read(connection.usage)
            return serving(connection, command)

        def sending(connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
            usage, topic, begin = connection.usage, _topic(command), store.commit_log.max_offset
            assert usage is not None
            quotas.send(usage, topic, command.content_bytes)
            try:
                return serving(connection, command)
            finally:
                quotas.stored(usage, topic, store.commit_log.max_offset - begin)

        if code in SENDS or code == _SEND_BACK:
            return sending
        return reading if code in _READS else serving

    def passes(self, connection: Connection, topic: str, entry: Entry) -> bool:
        """Whether a plain send passes; if not, its processor tells why.

        One that then cannot be stored with those beside it is sent alone, and counts twice.
        """
        usage = connection.usage
        assert usage is not None
        size_bytes = _RECORD_BYTES + len(entry.body) + len(entry.properties)
        try:
            self.quotas.send(usage, topic, size_bytes)
        except RefusedError:
            return False
        self.quotas.stored(usage, topic, size_bytes)
        return True


def _topic(command: RemotingCommand) -> str:
    if command.code == _SEND_BACK:
        return retry_topic(command.ext_fields.get("group", ""))
    return command.ext_fields.get(SENDS[command.code], "")
