"""Looks up a job's topics before Spark starts, so that a wrong address or name is reported within seconds.

Spark's JVM takes seconds to start, and a task would report a wrong address after a ``readTimeoutMs`` for each of its
four attempts.
"""

from collections.abc import Mapping
from functools import partial

from triomq.client.sync import Producer, PullConsumer
from triomq.spark.connections import borrow_client, close_clients
from triomq.spark.jobs.shared.stopping import Stopper
from triomq.spark.options.options import Use, parse_options
from triomq.spark.reading.discovery import Discovery
from triomq.spark.retry import is_missing_topic


class _SignalledError(Exception):
    """A signal arrived during a pause."""


def find_topics(options: Mapping[Use, Mapping[str, str]], stopper: Stopper) -> None:
    """Return once all topics are found, or at a signal.

    Args:
        options: of the data source, by use.
        stopper: knows whether a signal arrived.

    Raises:
        NoRouteError: a topic does not exist; for a write, no broker creates it either.
        RequestTimeoutError: no name server answered within 5 s, or none knew a broker within ``planTimeoutMs``.
    """

    def pause(pause_s: float) -> None:
        if stopper.wait(pause_s):
            raise _SignalledError

    try:
        for use, texts in options.items():
            given = parse_options(texts, use)
            with borrow_client(given) as instance, PullConsumer(given["readGroup"], instance=instance) as consumer:
                discovery = Discovery(given, instance, consumer, sleep=pause)
                if use is not Use.WRITE:
                    discovery.queues(discovery.retry())
                    continue
                discovery.reach_name_server()
                with Producer(given["readGroup"], instance=instance) as producer:
                    find = partial(producer.publish_queues, given["topic"])
                    discovery.retry().call(find, is_final=is_missing_topic)
    except _SignalledError:
        return
    finally:
        close_clients()
