"""A browser that reaches the dashboard through nginx, under a path."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.dashboard.browser import open_browser
from tests.dashboard.cluster import open_dashboard
from triomq.testing import RunningBroker

pytestmark = [pytest.mark.browser, pytest.mark.nginx, pytest.mark.timeout(120)]

_CONFIG: Final = """
daemon off; master_process off; pid {folder}/pid; error_log stderr;
events {{}}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{ listen {address}; location /tools/mq/ {{ proxy_pass http://{upstream}/; }} }}
}}
"""
_PASSWORD: Final = "a password of some length"


@contextmanager
def behind_nginx(upstream: str, folder: Path) -> Iterator[str]:
    """Run nginx before a server; yields the address of its path."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = folder / "nginx.conf"
    config.write_text(_CONFIG.format(folder=folder, address=address, upstream=upstream))
    with subprocess.Popen([shutil.which("nginx") or "nginx", "-p", str(folder), "-c", str(config)]) as nginx:
        try:
            yield f"http://{address}/tools/mq/"
        finally:
            nginx.terminate()


def test_pages_polling_and_changes_work_under_a_path(rocketmq: RunningBroker, tmp_path: Path) -> None:
    topic = rocketmq.new_topic("proxied")
    password = tmp_path / "password"
    password.write_text(_PASSWORD + "\n")
    password.chmod(0o600)
    with open_dashboard(rocketmq.namesrv, "--password-file", str(password)) as address, open_browser() as browser:
        with behind_nginx(urlsplit(address).netloc, tmp_path) as base:
            browser.wait_until_shown(base)
            browser.script("document.querySelector('[type=password]').value = arguments[0]", _PASSWORD)
            browser.script("document.querySelector('main form').requestSubmit()")
            browser.wait_for("document.querySelector('header nav')")
            assert browser.driver.current_url == base
            browser.bad()  # forgets the status 401 of the page that asks for the password
            for link in browser.links():
                assert link.startswith(base)
                browser.show(link)
                assert browser.script("return document.styleSheets.length") == 2
                assert not browser.bad(), link
            browser.show(f"{base}topic?name={topic}")
            browser.wait_for("seen.settled > 0")
            browser.show(f"{base}send?name={topic}")
            browser.send_filled_form("message-send")
            browser.wait_for("document.querySelector('[role=status].message')")
            assert browser.driver.current_url.startswith(base)
    assert [message.body for message in rocketmq.messages(topic)] == [b"something"]
