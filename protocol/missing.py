"""Features of RocketMQ that triomq lacks: the names that users will try, and what to do instead.

Names are compared without regard to case, dashes, dots and underscores: ``--use-tls`` is ``useTLS``.
docs/configuration.md has the table too.
"""

import re
from typing import Final, NamedTuple


class Missing(NamedTuple):
    """A feature: its name, RocketMQ's options and settings for it, separated by blanks, and what to do instead."""

    what: str
    names: str
    instead: str


MISSING: Final = (
    Missing(
        "a namespace in Spark", "namespace", "use NAMESPACE%NAME as topic and group, as Apache's clients send them"
    ),
    Missing(
        "a message trace in Spark",
        "trace enableMsgTrace enableTrace customizedTraceTopic traceTopic",
        "keep the id that a send returns, and look it up with triomq message show or message find",
    ),
    Missing(
        "the proxy protocol (gRPC) of RocketMQ 5.x",
        "pop popMode proxy grpc endpoints",
        "use the name server (port 9876) instead of the proxy (port 8081)",
    ),
    Missing(
        "RocketMQ's setting for accounts",
        "aclEnable authenticationEnabled authorizationEnabled",
        "start the broker with --acl FILE, a plain_acl.yml; clients sign their requests (credentials)",
    ),
    Missing(
        "a group of brokers that elects its master",
        "enableDLegerCommitLog enableControllerMode enableControllerInNamesrv",
        "run a master and a slave, with --role and --broker-id; triomq replica promote makes a slave the master",
    ),
)


def explain_missing(name: str) -> str | None:
    """Return the advice for an unsupported option; ``None`` for other options."""
    for what, names, instead in MISSING:
        if _plain(name) in _plain(names).split():
            return f"{what} is not supported yet; instead: {instead}"
    return None


def _plain(name: str) -> str:
    return re.sub(r"[-._]", "", name.lower())
