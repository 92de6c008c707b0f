"""What RocketMQ has and triomq has not: the names that its users will try, and what to do instead.

Names are compared without case, dashes, dots and underscores: ``--use-tls`` is ``useTLS``.  The table is also in
docs/configuration.md.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Missing(NamedTuple):
    """One thing.

    Attributes:
        what: it, for a sentence that ends with "not supported".
        names: options and settings that ask for it, as users of RocketMQ know them.
        instead: what to do.
    """

    what: str
    names: tuple[str, ...]
    instead: str


MISSING: Final = (
    Missing(
        "TLS",
        ("tls", "ssl", "useTLS", "tls.enable", "sslEnable"),
        "use a network you trust, or a tunnel and advertise as-dialled to go through it: nothing is encrypted",
    ),
    Missing(
        "a namespace",
        ("namespace",),
        "write NAMESPACE%NAME as topic and group, which is what Apache's clients send",
    ),
    Missing(
        "message trace",
        ("trace", "enableMsgTrace", "enableTrace", "customizedTraceTopic", "traceTopic", "traceTopicEnable"),
        "keep the id that a send returns; triomq message show and message find look messages up",
    ),
    Missing(
        "a filter in SQL",
        ("sql", "sql92", "filter", "filterType", "expressionType", "selector", "messageSelector", "bySql",
         "enablePropertyFilter"),
        "brokers filter by tag, A || B; filter the rest where it is consumed",
    ),
    Missing(
        "a transactional message",
        ("transaction", "transactional", "transactionListener", "transactionCheckListener"),
        "send after what it depends on is done: a message may come twice, and is not lost",
    ),
    Missing(
        "request and reply",
        ("request", "reply", "requestTimeout"),
        "let the other side answer to a topic of yours, with a key that tells to what",
    ),
    Missing(
        "the proxy protocol (gRPC) of RocketMQ 5.x",
        ("pop", "popMode", "proxy", "grpc", "endpoints"),
        "give the name server, port 9876, instead of the proxy, port 8081",
    ),
    Missing(
        "an account in triomq's broker",
        ("acl", "aclEnable", "authenticationEnabled", "authorizationEnabled"),
        "keep the broker on loopback or in a network you trust; for Apache's brokers clients sign: credentials",
    ),
    Missing(
        "a slave or a second broker",
        ("slave", "brokerRole", "brokerId", "haListenPort", "haMasterAddress", "enableDLegerCommitLog"),
        "the broker is its own name server and the only one there; keep its store on a disk that is safe",
    ),
    Missing(
        "an exporter of metrics",
        ("metrics", "prometheus", "metricsExporterType"),
        "triomq broker status --json has the figures",
    ),
)  # fmt: skip


def _key(name: str) -> str:
    return "".join(character for character in name.lower() if character not in "-._")


_BY_KEY: Final[Mapping[str, Missing]] = {_key(name): one for one in MISSING for name in one.names}


def explain_missing(name: str) -> str | None:
    """Return what to do instead of an option that is not there; ``None``: it is none of these."""
    found = _BY_KEY.get(_key(name))
    return None if found is None else f"{found.what} is not supported yet; instead: {found.instead}"
