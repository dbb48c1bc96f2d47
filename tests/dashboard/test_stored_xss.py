"""Names that come from outside are text, wherever they are shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.support.waiting import until

CORPUS: Final = [
    "<script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "\"><svg onload=window.pwned=1>",
    "'><iframe srcdoc='<script>parent.pwned=1</script>'>",
    "javascript:window.pwned=1",
    "</title></textarea></style></script><script>window.pwned=1</script>",
    "{{ 7 * 7 }}{% raw %}${7*7}",
    "\" autofocus onfocus=window.pwned=1 x=\"",
    "<a href=javascript:window.pwned=1>click</a>",
    "&lt;script&gt;window.pwned=1&lt;/script&gt;",
    "<math><mtext></p><img src=x onerror=window.pwned=1>",
    "\u202egnp.exe<script>window.pwned=1</script>",
    "<template><script>window.pwned=1</script></template>",
    "<meta http-equiv=refresh content='0;url=/sign-in'>",
    "#&organisation=other&notice=kill",
]  # fmt: skip


def plant(tenant: Any) -> None:
    """Put the corpus into every name and text that a key may send."""
    document = {"approval_tools": ["*needs*"], "tools_block": ["*bad*"]}
    tenant.admin.request("PUT", "/policies/p", {"document": document})
    for at, text in enumerate(CORPUS):
        # A tool's name is what policies match, so the wanted verdict rides on it.
        note = {"message": text, "details": {text: text, "deep": [text]}}
        tenant.gate(
            text,
            tool_name=f"needs {text}",
            agent=text,
            user=text,
            function=text,
            run_id=f"r{at}",
            note=note,
        )
        tenant.gate(text, tool_name=f"bad {text}", agent=text, function=text, run_id=f"r{at}")
        common = {
            "agent": text,
            "user": text,
            "run_id": f"r{at}",
            "tags": {text[:64]: text, "team": text},
            "call_id": text,
            "chain_id": text,
            "span_id": f"s{at}",
        }
        tenant.send(
            text,
            {"type": "llm", "data": {"model": text, "cost_nanousd": 10**9}, **common},
            {"type": "tool", "data": {"tool_name": text, "outcome": text}, **common},
            {"type": "span", "data": {"name": text, "outcome": text, "error_code": text}, **common},
            {"type": text, "data": {text: text}, **common},
        )  # fmt: skip
        tenant.admin.request(
            "PUT",
            "/budgets",
            {"scope_kind": "workflow", "scope_id": text, "window": "day", "limit_cents": 1000},
        )
        body = {"action": "pause", "workflow_id": text, "reason": text}
        tenant.admin.request("POST", "/control", body)


def test_no_name_becomes_markup(signed_in: Callable[..., Any], tenant: Any) -> None:
    plant(tenant)
    tenant.admin.create_key("<script>window.pwned=1</script>")
    tenant.admin.put_operator('"><img src=x onerror=window.pwned=1>', role="viewer")
    page = signed_in("/")
    page.evaluate("window.wasNotReloaded = true")
    calls = [None, "spans", "models", "decisions", "errors"]
    paths: list[tuple[str, dict[str, str]]] = [
        (path, {}) for path in ("/", "/workflows", "/users", "/events", "/approvals", "/budgets",
                                "/policies", "/keys", "/people", "/audit", "/settings/prices")
    ]  # fmt: skip
    for at, text in enumerate(CORPUS):
        paths.append(("/search", {"q": text}))
        page_of = ("/user", "/agent", "/model", "/tag")[at % 4]
        paths.append((page_of, {"id": text, "name": text[:64]}))
    paths += [
        ("/spend", {"by": by, "range": "24h"})
        for by in ("model", "workflow", "user", "agent", "tag:team", f"tag:{CORPUS[5][:64]}")
    ]
    paths += [("/latency", {}), ("/events", {"call": CORPUS[1], "type": CORPUS[0]})]
    paths += [("/events", {"show": "refused"}), ("/workflows", {"q": CORPUS[0]})]
    paths += [("/workflow", {"id": CORPUS[at % len(CORPUS)], "tab": tab or "calls"})
              for at, tab in enumerate(calls * 3)]  # fmt: skip
    paths += [("/control", {"action": "kill", "workflow": text}) for text in CORPUS[:4]]
    for path, query in paths:
        address = page.evaluate(
            "([path, query]) => path + '?' + new URLSearchParams(query)",
            [path, {**query, "organisation": tenant.organisation_id}],
        )
        page.goto(address)
        page.get_by_text("Live", exact=True).wait_for()
        assert page.evaluate("window.pwned === undefined"), address
        strange = page.evaluate(
            """() => [...document.querySelectorAll('*')].filter((node) =>
                 [...node.attributes].some((each) => /^on/i.test(each.name)
                   || /^\\s*javascript:/i.test(each.value) && /href|src|action/.test(each.name))
                 || /^(iframe|img|math|template|object|embed)$/i.test(node.tagName)
                 || (node.tagName === 'SCRIPT' && !node.src)
               ).map((node) => node.outerHTML.slice(0, 80))"""
        )
        assert strange == [], address
    # The live path renders the same names into a page that is open.
    page.goto(f"/events?organisation={tenant.organisation_id}")
    page.get_by_text("Live", exact=True).wait_for()
    tenant.spend("late", 5, model="<img src=x onerror=window.pwned=1>late")
    until(lambda: "late" in page.get_by_role("main").inner_text())
    assert page.evaluate("window.pwned === undefined && !document.querySelector('main img')")
    assert "<script>window.pwned=1</script>" in page.locator("body").inner_text()


def test_links_lead_to_the_very_workflow(signed_in: Callable[..., Any], tenant: Any) -> None:
    names = ["a/b?c=d&e#f", "100% + more", "../keys", CORPUS[-1], "日本語 ‘q’"]
    for name in names:
        tenant.spend(name, 10**6)
    page = signed_in("/workflows")
    for name in names:
        page.goto(f"/workflows?organisation={tenant.organisation_id}")
        page.get_by_role("link", name=name, exact=True).click()
        page.get_by_role("heading", level=1, name=name, exact=True).wait_for()
