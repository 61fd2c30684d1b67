"""Where a webhook may lead, what it is told, and how a delivery is signed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
from datetime import timedelta

import pytest

from headrace import webhook
from headrace.errors import ConfigError
from headrace.settings import Settings
from headrace.webhooks.declare import Allow, BadSignature, UnsafeWebhook, check_url, is_public, read_url

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "https://example.com/hook?x=1&y=%20",
        "http://example.com:8080/a",
        "https://EXAMPLE.com:8443/",
        "https://93.184.216.34/hook",
        "https://[2606:2800:220:1:248:1893:25c8:1946]/hook",
        "https://xn--bcher-kva.example/",
        "https://my_service.example.com./hook",
    ],
)
def test_ordinary_urls_are_taken(url: str):
    assert check_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        # this machine and its neighbours, however they are written
        "http://127.0.0.1",
        "http://127.0.0.1:8080/",
        "http://[::1]",
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.0.1",
        "http://172.16.3.4/",
        "http://192.168.1.1/",
        "http://100.64.0.1/",
        "http://0.0.0.0",
        "http://[::]",
        "http://[::ffff:127.0.0.1]",
        "http://[::ffff:7f00:1]",
        "http://[::127.0.0.1]",
        "http://[64:ff9b::7f00:1]/",
        "http://[64:ff9b:1::7f00:1]/",
        "http://[2002:7f00:1::]/",
        "http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/",
        "http://[fe80::1]/",
        "http://[fe80::1%25eth0]/",
        "http://[fc00::1]/",
        "http://[fec0::1]/",
        "http://[ff02::1]/",
        "http://[2001:db8::1]/",
        "http://224.0.0.1/",
        "http://255.255.255.255/",
        "http://240.0.0.1/",
        "http://168.63.129.16/",
        "http://192.0.0.192/latest/",
        "http://192.88.99.1/",
        "http://100.100.100.200/latest/meta-data",
        "http://[3fff::1]/",
        "http://[2001:20::1]/",
        "http://[fd00:ec2::254]/latest/meta-data",
        "http://127.1/",
        "http://0x7f.1/",
        "http://0x7f000001/",
        "http://017700000001/",
        "http://2130706433/",
        "http://127.0.0.1./",
        "http://localhost/",
        "http://LOCALHOST./",
        "http://a.localhost/",
        # other things than http
        "file:///etc/passwd",
        "gopher://example.com/",
        "ftp://example.com/",
        "javascript:alert(1)",
        "//example.com/",
        "example.com",
        "",
        # user and port
        "http://u:p@example.com/",
        "http://user@example.com/",
        "http://@example.com/",
        "http://example.com:22/",
        "http://example.com:0/",
        "http://example.com:99999/",
        "http://example.com:x/",
        # what parsers read differently
        "http://example.com\\@127.0.0.1/",
        "http://exa mple.com/",
        "http://example.com/\r\nX: y",
        "http://exämple.com/",
        "http://-bad-.com/",
        "http:///path",
        "http://[::1/",
        "http://[example.com]/",
        "http://1.2.3.4.5/",
        "http://" + "a" * 64 + ".com/",
        "https://example.com/" + "a" * 2000,
    ],
)
def test_s55_s59_others_are_refused_with_a_code(url: str):
    with pytest.raises(UnsafeWebhook) as caught:
        check_url(url)
    assert caught.value.code == "unsafe_callback_url"
    assert "p@" not in str(caught.value)


def test_what_the_operator_permits():
    allow = Allow.of(["127.0.0.0/8", "hooks.internal", "::1"])
    for url in ("http://127.0.0.1:9999/", "http://2130706433/", "http://[::1]:22/", "http://HOOKS.internal.:1234/x"):
        assert check_url(url, allow) == url
    for url in ("http://10.0.0.1/", "http://other.internal:1234/", "http://localhost/", "ftp://127.0.0.1/"):
        with pytest.raises(UnsafeWebhook):
            check_url(url, allow)
    for bad in ("127.0.0.1/33", "10.0.0.1/8", "not a host", "", "1.2.3"):
        with pytest.raises(ConfigError, match="webhook_allow"):
            Allow.of([bad])


def test_s55_mapped_addresses_are_what_they_hold():
    assert is_public(ipaddress.ip_address("::ffff:93.184.216.34"))
    assert not is_public(ipaddress.ip_address("::ffff:10.0.0.1"))
    assert not is_public(ipaddress.ip_address("fe80::1%eth0"))


def test_what_a_message_shows_of_a_url():
    target = read_url("https://example.com:8443/T000/secret?token=1")
    assert target.shown == "https://example.com:8443/…"
    assert read_url("http://[2606:2800::1]/").authority == "[2606:2800::1]"


# ── declared ─────────────────────────────────────────────────────────────────


def test_which_ends_it_is_told():
    every = webhook.declare("https://example.com/a")
    assert every.wants("done", "mail", "send")
    assert every.wants("alert", "mail")
    assert not every.wants("cancelled", "mail", "send")
    some = webhook.declare("https://example.com/a", on="dead", queue="mail", task="send")
    assert some.wants("dead", "mail", "send")
    assert not some.wants("done", "mail", "send")
    assert not some.wants("dead", "other", "send")
    assert not some.wants("dead", "mail", "receive")


def test_a_bad_declaration_says_what_to_write():
    with pytest.raises(ConfigError, match="some of done, dead, alert"):
        webhook.declare("https://example.com/a", on=("done", "lost"))
    with pytest.raises(ConfigError, match="some of"):
        webhook.declare("https://example.com/a", on=())
    with pytest.raises(ConfigError, match="queue name"):
        webhook.declare("https://example.com/a", queue="No!")
    with pytest.raises(ConfigError, match="whsec_") as caught:
        webhook.declare("https://example.com/a", secret="hunter2")
    assert "hunter2" not in str(caught.value)


def test_secrets_show_nowhere():
    made = webhook.declare("https://example.com/a", secret=SECRET)
    settings = Settings(webhook_secret=SECRET)
    shown = repr(made) + repr(settings) + "".join(each.value for each in settings.explain())
    assert SECRET not in shown
    loaded = Settings.load(environ={"HEADRACE_WEBHOOK_SECRET": SECRET, "HEADRACE_WEBHOOK_ALLOW": "10.0.0.0/8, hooks"})
    assert loaded.webhook_secret == SECRET
    assert loaded.webhook_allow == ("10.0.0.0/8", "hooks")
    with pytest.raises(ConfigError, match="HEADRACE_WEBHOOK_SECRET") as caught:
        Settings.load(environ={"HEADRACE_WEBHOOK_SECRET": "hunter2"})
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError, match="webhook_allow"):
        Settings(webhook_allow=("nonsense!",))


# ── signed ───────────────────────────────────────────────────────────────────


def test_s60_the_signature_is_that_of_the_standard():
    headers = webhook.sign([SECRET], "msg_1", 1_700_000_000, b'{"a":1}')
    digest = hmac.new(b"k" * 32, b'msg_1.1700000000.{"a":1}', hashlib.sha256).digest()
    assert headers == {
        "webhook-id": "msg_1",
        "webhook-timestamp": "1700000000",
        "webhook-signature": "v1," + base64.b64encode(digest).decode(),
    }


def test_s60_a_receiver_verifies():
    headers = webhook.sign([SECRET], "msg_1", 1_700_000_000, b"body")
    shouted = {name.upper(): value for name, value in headers.items()}
    assert webhook.verify(SECRET, shouted, b"body", now=1_700_000_299) == "msg_1"
    with pytest.raises(BadSignature, match="too old"):
        webhook.verify(SECRET, headers, b"body", now=1_700_000_301)
    with pytest.raises(BadSignature, match="too old, or from the future"):
        webhook.verify(SECRET, headers, b"body", now=1_699_999_699)
    assert webhook.verify(SECRET, headers, b"body", now=1_700_003_000, tolerance=timedelta(hours=1))
    with pytest.raises(BadSignature, match="not signed"):
        webhook.verify(SECRET, headers, b"other", now=1_700_000_000)
    with pytest.raises(BadSignature, match="not signed"):
        webhook.verify(webhook.new_secret(), headers, b"body", now=1_700_000_000)
    with pytest.raises(BadSignature, match="missing"):
        webhook.verify(SECRET, {}, b"body")
    with pytest.raises(BadSignature, match="not signed"):
        webhook.verify(SECRET, headers | {"webhook-signature": "v1,ü v2,x"}, b"body", now=1_700_000_000)


@pytest.mark.parametrize(
    "headers",
    [
        {"webhook-timestamp": "9" * 400},
        {"webhook-timestamp": "9" * 5000},
        {"webhook-timestamp": "-1"},
        {"webhook-timestamp": "1e9"},
        {"webhook-timestamp": "\u0661"},
        {"webhook-timestamp": " 1700000000"},
        {"webhook-timestamp": ""},
        {"webhook-id": "\udce9"},
        {"webhook-id": "é"},
        {"webhook-signature": "v1,\udce9"},
        {"webhook-signature": ""},
        {"webhook-signature": "v1"},
        {"webhook-signature": "v1," * 10_000},
    ],
    ids=range(13),
)
def test_s60_whatever_a_stranger_sends_is_a_bad_signature(headers: dict[str, str]):
    good = webhook.sign([SECRET], "msg_1", 1_700_000_000, b"body")
    with pytest.raises(BadSignature):
        webhook.verify(SECRET, good | headers, b"body", now=1_700_000_000)


def test_while_a_secret_is_replaced_both_sign():
    new = webhook.new_secret()
    headers = webhook.sign(webhook.read_secrets(f"{new}, {SECRET}"), "msg_1", 1_700_000_000, b"body")
    for secret in (new, SECRET):
        assert webhook.verify(secret, headers, b"body", now=1_700_000_000) == "msg_1"
