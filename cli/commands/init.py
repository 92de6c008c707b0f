"""``triomq init``: write accounts, a CA and a certificate for a broker on a network into a new folder.

The folder appears as a whole or not at all, and only its owner can read it.  Keys and certificates are made by the
program ``openssl``.
"""

import ipaddress
import re
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from triomq.broker.addresses import Address
from triomq.cli.arguments.options import InitOptions
from triomq.cli.errors import UsageError
from triomq.cli.output import write_result
from triomq.protocol.acl.plain_acl import ACCESS_KEY, SECRET_KEY, Value, set_account
from triomq.protocol.errors import ConfigError

_ADMIN: Final = "administrator"
_APPLICATION: Final = "application"
_ACCOUNTS: Final[Mapping[str, Mapping[str, Value]]] = {
    _ADMIN: {"admin": True},
    _APPLICATION: {"defaultTopicPerm": "PUB|SUB", "defaultGroupPerm": "SUB"},
}
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_NAME: Final = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")
_BROKER_PORT: Final = 10911
_NAMESRV_PORT: Final = 9876
_DAYS: Final = 3 * 365
_OPENSSL_CONFIG: Final = """\
[req]
prompt = no
distinguished_name = name
[name]
CN = {name}
[ca]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = {hosts}
"""


def run(options: InitOptions) -> None:
    """Write the folder and print the commands that use it.

    Raises:
        UsageError: the folder exists and is not empty, a host is none, or ``openssl`` is missing; nothing was written.
        OSError: the folder cannot be written.
    """
    if not options.acl and not options.tls:
        raise UsageError("nothing to write: give --acl for accounts, --tls for certificates, or both")
    names = _certificate_names((*_LOOPBACK, *options.host))
    folder = Path(options.dir).expanduser()
    parent = folder.absolute().parent
    with TemporaryDirectory(prefix=".triomq-init-", dir=parent) as scratch:  # others cannot enter it
        made = Path(scratch) / "made"
        for each in (made, made / "broker", made / "client"):
            each.mkdir()
        if options.acl:
            text = ""
            for key, rights in _ACCOUNTS.items():
                secret = secrets.token_urlsafe(32)
                text = set_account(text, {ACCESS_KEY: key, SECRET_KEY: secret, **rights})
                (made / "client" / f"{key}.account").write_text(f"{ACCESS_KEY}: {key}\n{SECRET_KEY}: {secret}\n")
            (made / "broker" / "plain_acl.yml").write_text(text)
        if options.tls:
            config, ca, ca_key = made / "openssl.cnf", made / "client" / "ca.pem", made / "ca.key"
            config.write_text(_OPENSSL_CONFIG.format(name=f"triomq CA {secrets.token_hex(4)}", hosts=names))
            _openssl(config, "ca", ca, ca_key)
            server, signer = made / "broker" / "server.pem", ("-CA", ca, "-CAkey", ca_key)
            _openssl(config, "server", server, server.with_suffix(".key"), "-subj", "/CN=triomq", *signer)
            config.unlink()
        files = sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file())
        for path in (made, *made.rglob("*")):
            path.chmod(0o700 if path.is_dir() else 0o600)
        try:
            made.rename(folder)  # replaces an empty folder, nothing else
        except OSError as exc:
            raise UsageError(f"cannot make {folder}: {exc.strerror}; choose a folder that does not exist") from exc
    written = [str(folder / file) for file in files]
    commands = [shlex.join(words) for words in _commands(options, folder)]
    text = "\n  ".join(["wrote, for its owner only:", *written]) + "\n" + "\n  ".join(["next:", *commands])
    write_result({"folder": str(folder), "files": written, "commands": commands}, text, as_json=options.json)


def _certificate_names(hosts: Sequence[str]) -> str:
    """Return the names of a certificate as OpenSSL reads them.

    Raises:
        UsageError: one is neither a host name nor an IP address.
    """
    names = []
    for host in dict.fromkeys(hosts):
        try:
            names.append(f"IP:{ipaddress.ip_address(host)}")
        except ValueError:
            if not _NAME.fullmatch(host):
                raise UsageError(f"--host {host!r}: write a host name or an IP address, without a port") from None
            names.append(f"DNS:{host}")
    return ", ".join(names)


def _openssl(config: Path, kind: str, cert: Path, key: Path, *signer: str | Path) -> None:
    """Make a key and a certificate for it, signed by itself or by ``signer``.

    Raises:
        UsageError: the program is missing.
        ConfigError: it failed.
    """
    program = shutil.which("openssl")
    if program is None:
        raise UsageError("--tls needs the program openssl, version 3 or newer: install it, or use own certificates")
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key)
    how = ("-config", config, "-extensions", kind, "-days", str(_DAYS), "-out", cert)
    command = (program, "req", "-x509", *new_key, *how, *signer)
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)  # noqa: S603
    if done.returncode:
        raise ConfigError(f"openssl (version 3 or newer is needed) failed: {done.stderr.strip()[-300:]}")


def _commands(options: InitOptions, folder: Path) -> Iterator[list[str]]:
    """Yield the command of the broker, and those of an application and of an administrator."""
    broker, client = folder / "broker", folder / "client"
    serve, reach = ["triomq", "broker"], []
    if options.host and options.acl:
        host = Address(options.host[0], _NAMESRV_PORT)
        serve += ["--listen", f"0.0.0.0:{_BROKER_PORT}", "--namesrv-listen", f"0.0.0.0:{_NAMESRV_PORT}"]
        serve += ["--advertise", str(host._replace(port=_BROKER_PORT))]
        reach += ["--namesrv", str(host)]
    if options.acl:
        serve += ["--acl", str(broker / "plain_acl.yml")]
    if options.tls:
        serve += ["--tls-cert", str(broker / "server.pem"), "--tls-key", str(broker / "server.key")]
        serve += ["--tls", "enforcing"]
        reach += ["--tls-ca", str(client / "ca.pem")]
    yield serve
    for key, words in ((_APPLICATION, ["produce", "greetings", "--count", "1"]), (_ADMIN, ["broker", "status"])):
        account = ["--credentials", f"file:{client / key}.account"] if options.acl else []
        yield ["triomq", *words, *account, *reach]
