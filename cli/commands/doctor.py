"""``triomq doctor``: examine a cluster, and say what is wrong and what to do."""

from triomq.cli.arguments.client_options import ClientOptions
from triomq.cli.arguments.values import escape_controls
from triomq.cli.exit_codes import ExitCode
from triomq.cli.output import plural, write_json, write_text
from triomq.cli.session import client_command, open_admin


@client_command
async def run(options: ClientOptions) -> int:
    """Write all findings; fail if there is one.

    Raises:
        NameServerError: no name server answered, or it knows no broker.
    """
    async with open_admin(options) as admin:
        found = await admin.diagnose()
    if options.json:
        findings = [finding._asdict() for finding in found.findings]
        write_json({"healthy": not findings, "brokers": found.brokers, "groups": found.groups, "findings": findings})
    else:
        for finding in found.findings:
            write_text(escape_controls(f"{finding.kind}: {finding.text}") + "\n")
            write_text(escape_controls(f"  what to do: {finding.advice}") + "\n")
        problems = plural(len(found.findings), "problem") if found.findings else "no problem"
        examined = f"{plural(found.brokers, 'broker')} and {plural(found.groups, 'consumer group')}"
        write_text(f"{problems} found in {examined}\n")
    return ExitCode.FAILED if found.findings else ExitCode.OK
