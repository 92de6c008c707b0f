"""``triomq namesrv``: run a name server without a broker until a signal ends it."""

import json
import logging
import os
from functools import partial
from pathlib import Path
from typing import Final

import trio

from triomq import __version__
from triomq.broker.config import NameServerConfig, default_store_root
from triomq.broker.name_server import NameServer, open_name_server
from triomq.cli.arguments.options import NamesrvOptions
from triomq.cli.commands.broker import check_host, parse_address
from triomq.cli.exit_codes import ExitCode
from triomq.cli.process import raise_open_files_limit
from triomq.cli.serving import serve_until_signal, tls_config, write_ready_line

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
    config = NameServerConfig(
        root=root,
        listen=listen,
        insecure=options.insecure,
        tls=tls_config(options),
        order_messages=options.order_messages,
    )
    raise_open_files_limit()
    announce = partial(_announce, as_json=options.json)
    trio.run(serve_until_signal, open_name_server(config), announce, options.log_file is not None)
    LOGGER.info("stopped store=%s", root)
    return ExitCode.OK


def _announce(server: NameServer, *, as_json: bool) -> None:
    address, store, pid = str(server.address), str(server.config.root), os.getpid()
    if as_json:
        ready = {"event": "ready", "namesrv": address, "store": store, "pid": pid}
        write_ready_line(json.dumps(ready, separators=(",", ":")))
    else:
        write_ready_line(f"triomq {__version__} is ready: name server {address}, store {store}, pid {pid}")
