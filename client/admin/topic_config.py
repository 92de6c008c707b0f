"""The configuration of one topic, from brokers of all versions.

Source: wire.md 7; AdminBrokerProcessor.java.
"""

from triomq.client.cluster.requests import Requests, raise_for_code
from triomq.protocol.bodies.route import TopicConfig, TopicConfigSerializeWrapper
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import TopicNotExistError
from triomq.protocol.requests.topics import TopicRequestHeader


async def read_topic_config(requests: Requests, address: str, topic: str) -> TopicConfig:
    """Return the configuration of a topic on the broker at ``address``.

    Raises:
        BrokerResponseError, ClientError: as ``Admin``.
    """
    command = requests.command(RequestCode.GET_TOPIC_CONFIG, TopicRequestHeader(topic))
    response = await requests.invoke(address, command)
    if response.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return TopicConfig.decode(raise_for_code(response, address).body)
    response = await requests.ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)  # 4.x has no request for a single topic
    table = TopicConfigSerializeWrapper.decode(response.body).topic_config_table
    config = table.get(requests.namespace.wrap(topic))
    if config is None:
        raise TopicNotExistError(int(ResponseCode.TOPIC_NOT_EXIST), f"no topic {topic} in its table", address)
    return config
