"""Queue locks of orderly consumers: LOCK_BATCH_MQ (41), UNLOCK_BATCH_MQ (42).

Source: behaviour.md A.14, wire.md 5.13; AdminBrokerProcessor.java.
"""

from triomq.broker.groups.queue_locks import QueueLocks
from triomq.broker.network.connection import Connection
from triomq.protocol.bodies.client import LockBatchRequestBody, LockBatchResponseBody
from triomq.protocol.wire.command import RemotingCommand


class LockProcessors:
    """Locks and unlocks queues."""

    def __init__(self, locks: QueueLocks) -> None:
        self._locks = locks

    def lock_batch_mq(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Lock queues; the answer names those that the client holds now."""
        body = LockBatchRequestBody.decode(command.body)
        granted = self._locks.lock(
            body.consumer_group,
            body.client_id,
            connection,
            body.mq_set,
            ends_with_connection=bool(body.ends_with_connection),
        )
        return command.reply(body=LockBatchResponseBody(granted).encode())

    def unlock_batch_mq(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Free those of the queues that the client holds."""
        body = LockBatchRequestBody.decode(command.body)
        self._locks.unlock(body.consumer_group, body.client_id, body.mq_set)
        return command.reply()
