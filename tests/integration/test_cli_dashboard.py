"""``triomq dashboard`` and ``triomq broker --dashboard`` as processes: ready line, signals, taken ports, log."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urljoin

import httpx
import pytest

from tests.certificates import Authority, Identity
from tests.integration.cli_tools import LIMIT_S, complaint, read_line, running, triomq
from tests.processes import ANY_DISK
from triomq.testing import RunningBroker

ANY_PORTS = ("--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0", "--metrics", "off")


def ready_line(process: subprocess.Popen[bytes]) -> dict[str, str]:
    ready: dict[str, str] = json.loads(read_line(process))
    return ready


def status_of(link: str) -> int:
    try:
        with urllib.request.urlopen(link, timeout=LIMIT_S) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def wait_closed(link: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            status_of(link)
        except (URLError, ConnectionError):
            return
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_dashboard_and_log_has_no_token(rocketmq: RunningBroker, number: signal.Signals) -> None:
    words = ("dashboard", "--listen", "127.0.0.1:0", "--log-level", "debug", "--json")
    with running(*words, namesrv=rocketmq.namesrv) as process:
        link = ready_line(process)["dashboard"]
        page, _, token = link.partition("?token=")
        assert [status_of(page), status_of(link), status_of(link), status_of(page + "nothing")] == [401, 200, 401, 404]
        address = page.removeprefix("http://").removesuffix("/").split(":")
        with socket.create_connection((address[0], int(address[1]))) as half:  # a request that never ends
            half.sendall(b"GET /?token=" + token.encode() + b" HTTP/1.1\r\nhost: x")
            with socket.socket() as deaf:  # it never reads
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                deaf.connect((address[0], int(address[1])))
                deaf.sendall(b"GET /static/htmx-2.0.11.min.js HTTP/1.1\r\nhost: x\r\n\r\n" * 500)
                assert status_of(page) == 401
                process.send_signal(number)
                rest, log = process.communicate(timeout=LIMIT_S)
    other = json.loads(rest)["dashboard"].partition("?token=")[2]
    assert process.returncode == 0
    assert b"Traceback" not in log
    assert not {token, other} & set(re.findall(r"[\w-]{40,}", log.decode()))


def test_second_browser_gets_another_address(rocketmq: RunningBroker) -> None:
    with running("dashboard", "--listen", "127.0.0.1:0", namesrv=rocketmq.namesrv) as process:
        links = re.findall("http:[^, ]+", read_line(process))
        for _ in range(3):
            assert status_of(links[-1]) == 200
            before, _, link = read_line(process).rstrip("\n").partition(": ")
            assert before == "dashboard for the next browser"
            links.append(link)
        assert [status_of(link) for link in links] == [401, 401, 401, 200]


def test_taken_port_is_refused_or_replaced(rocketmq: RunningBroker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = triomq("dashboard", "--listen", address, namesrv=rocketmq.namesrv)
        assert done.returncode == 2
        assert done.stderr.decode() == f"triomq dashboard: cannot listen on {address}: Address already in use\n"
    with running("dashboard", "--json", namesrv=rocketmq.namesrv) as first:
        one = ready_line(first)["dashboard"]
        with running("dashboard", "--json", namesrv=rocketmq.namesrv) as second:
            other = ready_line(second)["dashboard"]
            assert one.partition("?")[0] != other.partition("?")[0]
            assert status_of(one) == status_of(other) == 200


def test_https_has_secure_cookie_and_refuses_bad_files(
    rocketmq: RunningBroker, authority: Authority, identity: Identity, tmp_path: Path
) -> None:
    files = ("--https-cert", str(identity.cert), "--https-key", str(identity.key))
    bad = tmp_path / "bad.pem"
    bad.write_text("nothing")
    text = complaint(2, "dashboard", *files[:3], str(bad), namesrv=rocketmq.namesrv)
    assert f"{bad} contains no private key" in text
    with running("dashboard", "--json", "--listen", "0.0.0.0:0", *files, namesrv=rocketmq.namesrv) as process:
        link = ready_line(process)["dashboard"]
        assert link.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=str(authority.ca))
        with urllib.request.urlopen(link, timeout=LIMIT_S, context=context) as answer:
            assert "; Secure" in answer.headers["set-cookie"]
    text = complaint(2, "dashboard", "--listen", "0.0.0.0:0", namesrv=rocketmq.namesrv)
    assert "needs HTTPS" in text


NGINX = """
pid {folder}/pid; error_log {folder}/error.log; daemon off; worker_processes 1;
events {{ worker_connections 64; }}
http {{
  access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{ listen 127.0.0.1:{port}; location /mq/ {{ proxy_pass {dashboard}; proxy_set_header Host $http_host; }} }}
}}
"""


@pytest.mark.nginx
def test_pages_work_under_a_path_of_nginx(rocketmq: RunningBroker, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("correct horse\n")
    words = ("dashboard", "--json", "--listen", "127.0.0.1:0", "--password-file", str(password))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with running(*words, namesrv=rocketmq.namesrv) as process:
        text = NGINX.format(folder=tmp_path, port=port, dashboard=ready_line(process)["dashboard"])
        (tmp_path / "nginx.conf").write_text(text)
        with subprocess.Popen(("nginx", "-c", str(tmp_path / "nginx.conf"))) as nginx:
            try:
                base = f"http://127.0.0.1:{port}/mq/"
                transport = httpx.HTTPTransport(retries=10)
                with httpx.Client(transport=transport, headers={"host": "mq.example.org"}) as browser:
                    assert browser.get(base).status_code == 401
                    answer = browser.post(base + "sign-in", data={"password": "correct horse"})
                    assert (answer.status_code, answer.headers["location"]) == (303, "./")
                    page = browser.get(base)
                    assert page.status_code == 200
                    links = {urljoin(base, link) for link in re.findall(r'(?:href|src|action)="([^"]+)"', page.text)}
                    assert all(link.startswith(base) for link in links)
                    assert {browser.get(link).status_code for link in links if "sign-out" not in link} == {200}
            finally:
                nginx.terminate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_dashboard_of_broker_ends_with_it(tmp_path: Path, number: signal.Signals) -> None:
    words = ("broker", "--dashboard", "--json", "--store", str(tmp_path), *ANY_PORTS, *ANY_DISK)
    with running(*words) as process:
        link = ready_line(process)["dashboard"]
        assert status_of(link) == 200
        assert status_of(ready_line(process)["dashboard"]) == 200  # a second browser
        os.kill(process.pid, number)
        process.wait(LIMIT_S)
        wait_closed(link)
    assert process.returncode == (0 if number is signal.SIGTERM else -signal.SIGKILL)
