"""Administration: topics, groups, messages, and the health of clusters."""

from triomq.client.admin.accounts import AccountAdmin
from triomq.client.admin.browsing import BrowseAdmin
from triomq.client.admin.dead_letters import DeadLetterAdmin
from triomq.client.admin.diagnosis import DiagnosisAdmin
from triomq.client.admin.replay import ReplayAdmin
from triomq.client.admin.replicas import ReplicaAdmin
from triomq.client.admin.topic_config import TopicAdmin
from triomq.client.admin.traffic import TrafficAdmin
from triomq.client.admin.transactions import TransactionAdmin


class Admin(
    TopicAdmin,
    DiagnosisAdmin,
    ReplicaAdmin,
    TrafficAdmin,
    AccountAdmin,
    BrowseAdmin,
    DeadLetterAdmin,
    ReplayAdmin,
    TransactionAdmin,
):
    """Reads and changes topics, groups and offsets on name servers and brokers.

    ::

        async with Admin(namesrv="127.0.0.1:9876") as admin:
            await admin.create_topic("Topic", queues=8)

    All methods raise ``NameServerError`` if no name server answers, ``BrokerResponseError`` if a broker rejects the
    request, and another ``ClientError`` if a broker cannot be reached.
    """
