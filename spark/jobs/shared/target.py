"""Looks for the topic that a job will write to, before Spark starts.

In a task a wrong address would be told after a ``readTimeoutMs`` for each of its four tries.
"""

import time

from triomq.client.sync import Producer
from triomq.protocol.errors import NoBrokerError, NoRouteError, TriomqError
from triomq.spark.connections import borrow_client, close_clients
from triomq.spark.jobs.shared.stopping import Stopper
from triomq.spark.options.options import Options
from triomq.spark.retry import Patience


def find_target(options: Options, stopper: Stopper) -> None:
    """Return when the topic was found, or a signal came.

    Args:
        options: of a write, with a topic.
        stopper: tells of signals.

    Raises:
        NoRouteError: the topic does not exist, and no broker creates it.
        RequestTimeoutError: name servers did not answer within ``planTimeoutMs``, or knew no broker.
    """
    topic = options["topic"]
    what = f"finding topic {topic} at {options['nameServer']} (option 'planTimeoutMs')"
    patience = Patience(options["planTimeoutMs"] / 1000, what, sleep=lambda pause_s: _pause(stopper, pause_s))
    try:
        with borrow_client(options) as instance, Producer(options["readGroup"], instance=instance) as producer:
            while stopper.signal is None:
                began = time.monotonic()
                try:
                    producer.publish_queues(topic)
                except TriomqError as exc:
                    if isinstance(exc, NoRouteError) and not isinstance(exc, NoBrokerError):
                        raise
                    patience.failed(exc, time.monotonic() - began)
                else:
                    return
    finally:
        close_clients()


def _pause(stopper: Stopper, pause_s: float) -> None:
    stopper.wait(pause_s)
