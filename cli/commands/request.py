"""``triomq request``: send one message and write its reply."""

from triomq.cli.arguments.client_options import RequestOptions
from triomq.cli.message_text import message_fields, shown_body
from triomq.cli.output import write_json, write_text
from triomq.cli.session import client_command, client_config
from triomq.client import Message, Producer


@client_command
async def run(options: RequestOptions) -> None:
    """Send a request and write its reply."""
    message = Message(options.topic, options.body.encode(), tags=options.tag, keys=options.key)
    async with Producer(options.group, namesrv=options.namesrv, config=client_config(options)) as producer:
        reply = await producer.request(message, timeout_s=options.timeout)
    if options.json:
        write_json(message_fields(reply))
    else:
        write_text(shown_body(reply).decode("utf-8", "replace") + "\n")
