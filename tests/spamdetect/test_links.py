"""Links as the programs of readers cut them."""

from __future__ import annotations

import pytest

from spamdetect.links import found_in, hosts_of

# What stands around an address in messages and mails, with {} for the address.
AROUND = [
    "{}", "{},", "{};", "{}.", "{}!", "{}?", "{}:", "{}…", "{}'", "({})", "[{}]", "<{}>", "“{}”",
    "«{}»", "*{}*", "_{}_", "~{}~", "`{}`", "[x]({})", "{}看这里", "{}です", "{}에서",
    "{}。", "{}、",
    "{}，", "{}）", "看 {} 看", "a\u00a0{}\u00a0b", "{}\u200b", "{}|x", "see\n{}\nnow",
    '"{}"', "{}—go",
]  # fmt: skip
ADDRESSES = {
    "https://evil.com": "evil.com",
    "http://evil.cfd": "evil.cfd",
    "evil.com": "evil.com",
    "EVIL.com": "evil.com",
    "www.evil.com": "evil.com",
    "evil.cfd": "evil.cfd",
    "evil.zip": "evil.zip",
    "claim-win.help": "claim-win.help",
    "evil.com/a/b": "evil.com/a/b",
    "https://evil.com:8443/a": "evil.com/a",
    "https://good.com@evil.com": "evil.com",
    "https://evil.com\\@good.com"[:16]: "evil.com",
    "hxxps://evil.com": "evil.com",
    "münchen.de": "xn--mnchen-3ya.de",
    "https://xn--mnchen-3ya.de": "xn--mnchen-3ya.de",
    "пример.рф": "xn--e1afmkfd.xn--p1ai",
    "evil[.]com": "evil.com",
    "ｅｖｉｌ．ｃｏｍ": "evil.com",
    "t.me/name": "t.me/name",
    "http://1.2.3.4/x": "1.2.3.4/x",
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_ends_where_readers_see_its_end(address: str) -> None:
    wrong = {
        around: found
        for around in AROUND
        if (found := found_in(around.format(address))) != (ADDRESSES[address],)
    }
    assert wrong == {}


def test_what_is_no_address_is_none() -> None:
    for text in (
        "e.g. this", "v1.2.3 of 3.14", "12.50 or 1,234,567.00", "node.js", "a@b", "U.S.A.", "...",
        "on 2026-11-28 20:45", "28.11.2026 20:45", "well.this is", "http://", "://x",
    ):  # fmt: skip
        assert found_in(text) == (), text


def test_contacts_have_one_form() -> None:
    assert found_in("+1 (800) 555-1234, 001 800 555 1234 and 800.555.1234") == ("+8005551234",)
    assert found_in("mail A.B@Evil.com, or @Name or http://evil.com") == (
        "a.b@evil.com",
        "@name",
        "evil.com",
    )
    assert hosts_of(("a.b@evil.com", "@name", "+123456", "evil.com/x/@y", "evil.com", "?")) == (
        "evil.com",
    )
