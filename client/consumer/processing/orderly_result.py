"""What a result of an orderly handler means for its queue: two tables.

Source: behaviour.md B.13, ConsumeMessageOrderlyService.processConsumeResult.
"""

import logging
from enum import Enum
from typing import Final

from triomq.client.consumer.config import ConsumeStatus

LOGGER: Final = logging.getLogger("triomq.client.consumer.handler")


class Step(Enum):
    """What to do with the messages that were handed out and not committed, the newest included."""

    COMMIT = "all of them are consumed"
    KEEP = "they stay handed out until the handler commits or rolls back"
    ROLLBACK = "all of them come again after a while"
    AGAIN = "those of this call come again after a while"


def next_step(status: ConsumeStatus, *, auto_commit: bool, suspends: bool) -> Step:
    """Return what a result means.

    Args:
        status: any but ``RECONSUME_LATER``.
        auto_commit: whether success consumes the messages at once.
        suspends: for ``SUSPEND_CURRENT_QUEUE_A_MOMENT``: whether a message has to come again, and has not become a
            dead letter instead.
    """
    if status is ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT:
        if suspends:
            return Step.AGAIN
        return Step.COMMIT if auto_commit else Step.KEEP
    if not auto_commit:
        return _WITHOUT_AUTO_COMMIT[status]
    if status is not ConsumeStatus.SUCCESS:
        LOGGER.warning("handler returned %s, which counts as success because auto_commit is on", status.name)
    return Step.COMMIT


_WITHOUT_AUTO_COMMIT: Final = {
    ConsumeStatus.SUCCESS: Step.KEEP,
    ConsumeStatus.COMMIT: Step.COMMIT,
    ConsumeStatus.ROLLBACK: Step.ROLLBACK,
}
