"""Who may see and change something: tokens, cookies, forms, hosts, headers."""

import tracemalloc
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import httpx
import pytest
from starlette.requests import Request

from tests.visitor import BASE, check_html, open_visitor
from triomq.client import ClientConfig
from triomq.dashboard import app
from triomq.dashboard.security import MAX_SESSIONS, Gate
from triomq.dashboard.settings import Address, Settings, parse_listen, read_password
from triomq.protocol.errors import ConfigError
from triomq.testing import RunningBroker


def settings(**changes: object) -> Settings:
    return Settings(namesrv="127.0.0.1:9876", client=ClientConfig(connect=False), **changes)  # type: ignore[arg-type]


async def test_token_opens_one_session(rocketmq: RunningBroker) -> None:
    async with open_visitor(rocketmq.namesrv, signs_in=False) as visitor:
        http, token = visitor.http, visitor.application.gate.token
        for path in ("/", "/topics", "/account", "/?token=wrong"):
            answer = await http.get(path)
            assert answer.status_code == 401
            assert "not signed in" in answer.text
            check_html(answer.text)
        assert (await http.head("/", params={"token": token})).status_code == 401  # a preview does not use it up
        answer = await http.get("/", params={"token": token})
        assert answer.status_code == 200
        assert "SameSite=strict" in answer.headers["set-cookie"]
        assert "HttpOnly" in answer.headers["set-cookie"]
        assert "Path" not in answer.headers["set-cookie"]
        assert (await http.get("/account")).status_code == 200
        for again in (token, visitor.application.gate.token):  # a browser that is signed in keeps its session
            answer = await http.get("/", params={"token": again})
            assert (answer.status_code, "set-cookie" in answer.headers) == (200, False)
            assert again != visitor.application.gate.token
        stranger = httpx.AsyncClient(transport=httpx.ASGITransport(visitor.application.asgi), base_url=BASE)
        assert (await stranger.get("/", params={"token": token})).status_code == 401
        assert (await stranger.get("/", params={"token": visitor.application.gate.token})).status_code == 200


async def test_password_signs_in_and_out(rocketmq: RunningBroker) -> None:
    async with open_visitor(rocketmq.namesrv, signs_in=False, password="long enough") as visitor:
        http = visitor.http
        assert 'type="password"' in (await http.get("/")).text
        wrong = await http.post("/sign-in", data={"password": "wrong"})
        assert (wrong.status_code, "password is wrong" in wrong.text) == (401, True)
        cross = await http.post("/sign-in", data={"password": "long enough"}, headers={"sec-fetch-site": "cross-site"})
        assert cross.status_code == 401
        for origin in (BASE, BASE.replace("http:", "https:")):  # the second: a proxy has HTTPS
            answer = await http.post("/sign-in", data={"password": "long enough"}, headers={"origin": origin})
            assert answer.headers["location"] == "./"
            assert ("Secure" in answer.headers["set-cookie"]) is origin.startswith("https:")
        http.cookies.clear()  # this client sends no cookie that is secure over HTTP
        await http.post("/sign-in", data={"password": "long enough"})
        assert (await http.get("/account", headers={"host": "mq.example.org"})).status_code == 200
        assert (await visitor.post("sign-out", more="x" * 5000)).status_code == 413
        assert (await visitor.post("sign-out")).status_code == 303
        assert (await http.get("/account")).status_code == 401


@pytest.mark.parametrize(
    ("host", "is_known"),
    [
        ("127.0.0.1:8233", True),
        ("[::1]:8233", True),
        ("localhost", True),
        ("mq.lan:1", True),
        ("evil.example:8233", False),
        ("", False),
    ],
)
def test_names_of_other_sites_are_unknown(host: str, *, is_known: bool) -> None:
    gate = Gate(settings(listen=Address("mq.lan", 1), insecure=True))
    assert gate.is_host_known(host) is is_known


async def test_unknown_host_gets_a_page(rocketmq: RunningBroker) -> None:
    async with open_visitor(rocketmq.namesrv) as visitor:
        answer = await visitor.http.get("/account", headers={"host": "<b>evil.example"})
        assert answer.status_code == 403
        assert "&lt;b&gt;evil.example" in answer.text


async def test_form_needs_its_token(rocketmq: RunningBroker) -> None:
    async with open_visitor(rocketmq.namesrv) as visitor:
        right = {"form_token": await visitor.form_token()}
        cross = {"sec-fetch-site": "cross-site"}
        for form, headers in (({}, {}), ({"form_token": "x"}, {}), (right, cross)):
            answer = await visitor.http.post("/account-sign-out", data=form, headers=headers)
            assert answer.status_code == 403
            assert "out of date" in answer.text
        assert (await visitor.post("account-sign-out")).status_code == 303
        assert (await visitor.post("account-sign-out", more="x" * 70_000)).status_code == 413


async def form_of(body: bytes) -> dict[str, str]:
    """Return the fields that the dashboard reads from a form."""

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body}

    return await app._read_form(Request({"type": "http", "method": "POST", "headers": []}, receive), len(body))


@pytest.mark.parametrize("part_bytes", [3, 4, 5, 7, 64])
async def test_forms_are_decoded(monkeypatch: pytest.MonkeyPatch, part_bytes: int) -> None:
    monkeypatch.setattr(app, "_PART_BYTES", part_bytes, raising=False)
    fields = {"name": "a b+c%d&e=f", "<b>": "\u4e2d\U0001f600" * 3, "": "", "empty": ""}
    assert await form_of(urlencode(fields).encode()) == fields
    odd = b"&&x&=&a=1&a=2&p=%&q=%zz%4&r=%ff%%41&s==&t=+%2B+&u=%E4%B8"
    assert await form_of(odd) == dict(parse_qsl(odd.decode(), keep_blank_values=True))


async def test_long_form_takes_little_memory() -> None:
    text = "\u4e2d" * 250_000
    body = urlencode({"body": text}).encode()
    tracemalloc.start()
    try:
        assert await form_of(body) == {"body": text}
        assert tracemalloc.get_traced_memory()[1] < 8 * len(body)
    finally:
        tracemalloc.stop()


async def test_every_answer_has_the_headers(rocketmq: RunningBroker) -> None:
    async with open_visitor(rocketmq.namesrv) as visitor:
        for path in ("/", "/nothing", "/static/app.css", "/static/nothing", "/account-sign-out"):
            answer = await visitor.http.get(path)
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'self';")
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "cache-control" in answer.headers


def test_sessions_are_bounded_and_end() -> None:
    now = 0.0
    gate = Gate(settings(), clock=lambda: now)
    cookies = []
    for _ in range(MAX_SESSIONS + 1):
        now += 1
        cookies.append(gate.open_session())
    assert gate.session(cookies[0]) is None
    assert gate.session(cookies[1]) is not None
    now += 12 * 3600 + 100
    assert not any(map(gate.session, cookies))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"listen": Address("0.0.0.0", 1)}, "beyond loopback the dashboard needs HTTPS"),
        ({"listen": Address("mq.lan", 1)}, "beyond loopback the dashboard needs HTTPS"),
        ({"cert": Path("c")}, "both a certificate and its private key"),
    ],
)
def test_exposed_dashboard_needs_https(changes: dict[str, object], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        settings(**changes)
    settings(**changes | {"insecure": True, "cert": Path("c"), "key": Path("k")})


@pytest.mark.parametrize("text", ["8233", "host:", ":1", "h:70000", "h:x", ""])
def test_malformed_listen_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_listen(text)


def test_password_file_needs_a_long_first_line(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("correct horse\nmore\n")
    assert read_password(path) == "correct horse"
    path.write_text("short\nlonger line\n")
    with pytest.raises(ConfigError, match="at least 8"):
        read_password(path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_password(tmp_path / "missing")
