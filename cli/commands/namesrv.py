"""``triomq namesrv``: run a name server without a broker until a signal ends it."""

import logging
import os
from pathlib import Path
from typing import Any, Final

from triomq.broker.config import NameServerConfig, default_store_root
from triomq.broker.name_server import NameServer, open_name_server
from triomq.cli.arguments.options import NamesrvOptions
from triomq.cli.commands.broker import check_host, parse_address
from triomq.cli.exit_codes import ExitCode
from triomq.cli.serving import network_settings, serve_until_signal

LOGGER: Final = logging.getLogger("triomq.cli.commands.namesrv")


def run(options: NamesrvOptions) -> int:
    """Serve until a signal; the first one stops the name server in order, a second one at once.

    Raises:
        ConfigError: an invalid setting, or an address that cannot be bound.
        StoreError: the folder cannot be used.
    """
    listen = parse_address("--listen", options.listen)
    check_host(listen)
    root = Path(options.store).expanduser() if options.store else default_store_root().with_name("namesrv")
    settings = network_settings(options.settings)
    config = NameServerConfig(root=root, listen=listen, order_messages=options.order_messages, **settings)
    serve_until_signal(open_name_server(config), _describe, options)
    LOGGER.info("stopped store=%s", root)
    return ExitCode.OK


def _describe(server: NameServer) -> tuple[dict[str, Any], str]:
    address, store = str(server.address), str(server.config.root)
    members = {"namesrv": address, "store": store}
    text = f"name server {address}, store {store}, pid {os.getpid()}"
    if server.admin_address is not None:
        members["admin"] = str(server.admin_address)
        text += f"; administration {server.admin_address}"
    if server.monitor is not None:
        members["metrics"] = str(server.monitor.address)
        text += f"; metrics http://{server.monitor.address}/metrics"
    return members, text
