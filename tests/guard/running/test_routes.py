"""Variables lead to the proxy and back: each address of a vendor, set or not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.proxy import upstreams
from guard.running import routes
from guard.running.routes import ORIGINS, PROXY, VARIABLES, Address, Changed, Routes

URL = "http://127.0.0.1:4711"


def upstream_of(routed: Routes, text: str) -> str:
    """Return where the proxy itself leads a base URL."""
    path = text.removeprefix(PROXY).encode()
    return upstreams.Upstreams(routed.upstreams.named).find(path, b"").url


def test_the_origins_are_the_proxys() -> None:
    assert ORIGINS.items() <= upstreams.ORIGINS.items()


@pytest.mark.parametrize("each", [v for v in VARIABLES if v.has_default], ids=lambda v: v.name)
def test_what_is_not_set_leads_to_the_vendor(each: routes.Variable) -> None:
    routed = Routes.of({})
    text = routed.variables[each.name]
    assert text == f"{PROXY}/{each.vendor}{each.path}"
    assert routed.before[each.name] is None
    if each.vendor != "vertex":  # there the path of a request says it
        whole = upstream_of(routed, text).rstrip("/")
        assert whole == f"{ORIGINS[each.vendor]}{each.path}".rstrip("/")
    assert routed.upstreams.named == {}


@pytest.mark.parametrize("each", VARIABLES, ids=lambda v: v.name)
def test_what_is_set_leads_where_it_said(each: routes.Variable) -> None:
    address = "http://localhost:11434/some/v1"
    routed = Routes.of({each.name: address})
    text = routed.variables[each.name]
    assert text == f"{PROXY}/{each.vendor}/some/v1"
    assert routed.upstreams.named[each.vendor] == "http://localhost:11434"
    assert upstream_of(routed, text) == address
    assert routed.before[each.name] == address


@pytest.mark.parametrize("each", [v for v in VARIABLES if not v.has_default], ids=lambda v: v.name)
def test_what_has_no_default_is_left_alone(each: routes.Variable) -> None:
    assert each.name not in Routes.of({}).variables


def test_two_addresses_of_one_vendor_have_a_name_each() -> None:
    environ = {"OPENAI_BASE_URL": "http://one/v1", "OPENAI_API_BASE": "http://two:1/x"}
    routed = Routes.of(environ)
    for name, address in environ.items():
        assert upstream_of(routed, routed.variables[name]) == address
    # What reads neither goes to the first: the vendor's own host is where no key should arrive.
    assert upstream_of(routed, routed.variables["OPENAI_HOST"]) == "http://one/"


@pytest.mark.parametrize("each", VARIABLES, ids=lambda v: v.name)
@pytest.mark.parametrize("address", ["http://mirror:1", "http://mirror:1/llm"])
def test_an_alias_set_alone_takes_its_siblings_along(each: routes.Variable, address: str) -> None:
    environ = {each.name: address + each.path}
    routed = Routes.of(environ)
    siblings = [v for v in VARIABLES if v.vendor == each.vendor and v.name in routed.variables]
    assert each in siblings
    assert {v.name for v in siblings} >= {
        v.name for v in VARIABLES if v.vendor == each.vendor and v.has_default
    }
    for sibling in siblings:
        upstream = upstream_of(routed, routed.variables[sibling.name])
        assert upstream.rstrip("/") == (address + sibling.path).rstrip("/")
    for name, text in Routes.of({}).variables.items():  # and nobody else's
        if name not in {v.name for v in siblings} and PROXY in text:
            assert routed.variables[name] == text


def test_an_alias_that_does_not_end_as_usual() -> None:
    routed = Routes.of({"OPENAI_HOST": "http://h/v1", "GEMINI_API_BASE": "http://g/x/"})
    paths = {
        name: upstream_of(routed, routed.variables[name])
        for name in ("OPENAI_BASE_URL", "OPENAI_HOST", "GOOGLE_GEMINI_BASE_URL")
    }
    assert paths == {
        "OPENAI_BASE_URL": "http://h/v1",
        "OPENAI_HOST": "http://h/v1",
        "GOOGLE_GEMINI_BASE_URL": "http://g/x",
    }


def test_no_sibling_is_set_beside_what_the_proxy_cannot_replace() -> None:
    routed = Routes.of({"OPENAI_API_BASE": "mirror:1/v1"})
    assert not [name for name in routed.variables if name.startswith("OPENAI")]
    both = Routes.of({"OPENAI_API_BASE": "mirror:1/v1", "OPENAI_HOST": "http://h"})
    assert upstream_of(both, both.variables["OPENAI_BASE_URL"]) == "http://h/v1"


@pytest.mark.parametrize(
    "text",
    ["localhost:1", "ftp://host/v1", "http://user:key@host/v1", "http://host/v1?a=1", "http://h:x"],
)
def test_what_is_no_plain_address_is_left_alone(text: str) -> None:
    assert Address.of(text) is None
    assert "OPENAI_BASE_URL" not in Routes.of({"OPENAI_BASE_URL": text}).variables


def test_claude_code_is_told_that_anthropic_is_behind_it() -> None:
    name = "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL"
    assert Routes.of({}).variables[name] == "1"
    assert Routes.of({}).variables["ENABLE_TOOL_SEARCH"] == "true"
    assert name in Routes.of({"ANTHROPIC_BASE_URL": "https://api.anthropic.com"}).variables
    assert name not in Routes.of({"ANTHROPIC_BASE_URL": "https://llm.example"}).variables
    assert "ENABLE_TOOL_SEARCH" not in Routes.of({"ENABLE_TOOL_SEARCH": "false"}).variables


names = st.sampled_from([each.name for each in VARIABLES] + ["NO_PROXY", "HTTP_PROXY", "OTHER"])
values = st.sampled_from(["", "http://h:1/v1", "https://api.openai.com/v1", "nonsense", "*"])


@given(environ=st.dictionaries(names, values))
def test_it_is_put_back_as_it_was(environ: dict[str, str]) -> None:
    changed = Routes.of(environ).at(URL)
    assert routes.read(json.loads(json.dumps(routes.to_json(changed)))) == changed
    assert all(PROXY not in change.routed for change in changed.values())
    own = {**environ, **{name: change.routed for name, change in changed.items()}}
    routes.put_back(own, changed)
    assert own == environ


def test_what_a_program_has_set_since_stays() -> None:
    own = {"OPENAI_BASE_URL": "http://mine"}
    routes.put_back(own, {"OPENAI_BASE_URL": Changed("http://proxy", None)})
    assert own == {"OPENAI_BASE_URL": "http://mine"}


def test_torn_changes_are_none() -> None:
    assert routes.read({"A": 1, "B": ["x"], "C": ["x", 2], "D": ["x", None]}) == {
        "D": Changed("x", None)
    }
