"""Facts from files: read, refused in one sentence, written so that they are read as the same."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from guard.core import vendors
from guard.core.gateway_facts import TRUST, TRUSTED_KINDS
from guard.core.vendors.bodies import FORMATS
from guard.gateway.cli.fact_files import FILE_BYTES_MAX, read_facts, written
from guard.gateway.cli.main import gateway as command
from guard.gateway.domain.facts import JUDGED, OwnFact, check, distinct
from tests.support.hostile_text import HOSTILE

FILES: Final = 2000
SHIPPED: Final = sorted(Path(vendors.__file__).parent.glob("*.toml"))


@pytest.fixture
def invoke(tenant: Any) -> Callable[..., Result]:
    env = {"GUARD_API_URL": tenant.gateway.base_url, "GUARD_ADMIN_KEY": tenant.gateway.admin_key,
           "COLUMNS": "200"}  # fmt: skip

    def run(*arguments: str, expect: int = 0) -> Result:
        words = ["facts", *arguments, "--organisation", tenant.organisation_id]
        result = CliRunner().invoke(command, words, env=env)
        assert result.exit_code == expect, result.output
        return result

    return run


def test_facts_are_set_listed_and_deleted(invoke: Callable[..., Result], tenant: Any) -> None:
    assert invoke("list").output.startswith("none on http://")
    assert "2 added; 2 facts on" in invoke("set", "tool:orbit", "member:theme").output
    words = ("deep", "--format", "chat", "--judged", "repeats", "--source", "its page")
    assert invoke("set", *words, "--json").output.startswith("{")
    table = invoke("list").output
    assert "repeats" in table
    assert "its page" in table
    assert json.loads(invoke("list", "--json").output) == tenant.admin.facts()
    assert "no fact is about deep" in invoke("delete", "deep", expect=1).output
    assert "1 removed; 2 facts" in invoke("delete", "deep", "--format", "chat").output
    assert "is none of member:NAME" in invoke("set", "orbit", expect=1).output


def test_what_list_prints_is_imported_as_the_same(
    invoke: Callable[..., Result], tenant: Any, tmp_path: Path
) -> None:
    names = [text for text in HOSTILE.values() if text.isprintable() and len(text) < 90]
    names += [
        'quo"te',
        "back\\slash",
        "two words",
        "pay\u202eexe",
        "a\u3164b",
        "#",
        "=",
        "[[chat]]",
    ]
    given = [{"name": f"tool:{name}", "source": name, "date": "2026-11-29"} for name in names]
    given += [{"name": name, "format": "chat", "at": name, "judged": "opens"} for name in names]
    tenant.admin.change_facts(given)
    stored, file = tenant.admin.facts(), tmp_path / "facts.toml"
    text = invoke("list", "--toml").output
    assert text.isprintable() or set(text) - {"\n"} == {c for c in text if c.isprintable()}
    file.write_text(text, "utf-8")
    assert "nothing changed" in invoke("import", str(file), "--replace").output
    tenant.admin.change_facts([], "replace")
    invoke("import", str(file))
    assert tenant.admin.facts() == stored
    for line in invoke("list").output.splitlines():
        assert line.isprintable()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_file_of_a_release_can_be_imported(
    path: Path, invoke: Callable[..., Result], tenant: Any
) -> None:
    result = invoke("import", str(path))
    assert "facts on http" in result.output
    assert len(tenant.admin.facts()) > 20
    if "bounds" in path.read_text():
        assert "only a release can act on these" in result.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there are no facts in it"),
        ("[[chat]]\nat = ''", "there are no facts in it"),
        ("[[chat]]\ncosts = 'x'", "no facts in it; 'costs' is not known here, and was not taken"),
        ("[[chat]]\nneutral = 3", "[[chat]] number 1: neutral takes names in one text, or a list"),
        ("[[chat]]\nneutral = ['x', 3]", "neutral takes names in one text, or a list"),
        ("[chat]\nneutral = 'x'", "chat is written as [[chat]], once for each place"),
        ("chat = 'x'", "chat is written as [[chat]]"),
        ("[[chat]]\nat = 3\nneutral = 'x'", "[[chat]] number 1: "),
        ("[[chat]]\ndate = 2026-11-29T00:00:00\nneutral = 'x'", "[[chat]] number 1: "),
        ("[[chat]]\ndate = '29.11.'\nneutral = 'x'", "'29.11.' is no date such as 2026-11-29"),
        ('[[chat]]\nneutral = ["\\u001b[31m"]', "has a control character"),
        ("[[chat]]\nneutral = ['']", "[[chat]] number 1: "),
        (f"[[chat]]\nneutral = '{'x' * 101}'", "[[chat]] number 1: "),
        ("[[trust]]\nneutral = 'orbit'", "'orbit' is none of member:NAME"),
        ("[[trust]]\nopens = 'tool:x'", "neutral everywhere"),
        ("[[chat]", "facts.toml: "),
        ("x = " + "[" * 5000, "nested too deeply"),
        ("#" * (FILE_BYTES_MAX + 1), "has more than 1,048,576 bytes"),
    ],
)
def test_a_file_that_holds_no_facts_is_refused_in_one_sentence(
    text: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "facts.toml"
    file.write_text(text)
    with pytest.raises(click.ClickException) as refused:
        read_facts(file)
    assert said in refused.value.message
    assert "\n" not in refused.value.message


def test_what_a_newer_file_has_besides_is_named_and_left_out(tmp_path: Path) -> None:
    file = tmp_path / "facts.toml"
    newer = "[[chat]]\nneutral = 'x'\nbounds = 'n'\nweather = { x = 3 }"
    file.write_text(f"[[hosts]]\nexact = 'evil.example'\n{newer}")
    found, left_out = read_facts(file)
    assert found == [OwnFact(name="x", format="chat")]
    assert left_out == [
        "'hosts' is not known here, and was not taken",
        "bounds: only a release can act on these, so they were not taken",
        "'weather' is not known here, and was not taken",
    ]


_text = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)
_plain = st.builds(
    OwnFact, name=_text, judged=st.sampled_from(JUDGED), format=st.sampled_from(FORMATS), at=_text,
    source=_text | st.just(""), date=st.dates().map(lambda day: day.isoformat()) | st.just(""),
)  # fmt: skip
_trust = st.builds(
    lambda kind, name: OwnFact(name=kind + name), st.sampled_from(TRUSTED_KINDS), _text
)


@given(st.lists(_plain | _trust, min_size=1, max_size=20))
def test_any_facts_are_written_and_read_as_the_same(
    tmp_path_factory: pytest.TempPathFactory, facts: list[OwnFact]
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.toml"
    kept = distinct(facts)  # as a gateway has them
    file.write_text(written(kept), "utf-8")
    assert read_facts(file) == (kept, [])


def _hostile_value(draw: random.Random, depth: int = 0) -> str:
    """Return something for the right side of a line of TOML, mostly of a wrong type."""
    if depth < 3 and draw.random() < 0.2:
        inner = [_hostile_value(draw, depth + 1) for _ in range(draw.randrange(5))]
        names = ", ".join(f"k{n} = {each}" for n, each in enumerate(inner))
        return draw.choice([f"[{', '.join(inner)}]", f"{{{names}}}"])
    text = draw.choice([*HOSTILE.values(), "x", "tool:x", "max_rounds", "x" * 3000, "\0", "\x7f"])
    days = "2026-11-29", "2026-13-40", "07:00:00", "1979-05-27T07:32:00Z"
    numbers = "0", "-1", str(2**63), str(10**30), "nan", "inf", "true", "[" * 50, "[" * 3000
    return draw.choice(
        [json.dumps(text), f"'{text}'", text, draw.choice(days), draw.choice(numbers)]
    )


def _hostile_file(draw: random.Random) -> str:
    keys = [*JUDGED, "at", "source", "date", "bounds", "any", "like", "neutral", "costs", '"a.b"']
    lines: list[str] = []
    hostility = draw.random()
    for _ in range(draw.randrange(1, 8)):
        kind, header, names = draw.choice(FORMATS), "[[{}]]", draw.sample(JUDGED, 2)
        if draw.random() < hostility:
            kind = draw.choice([TRUST, "hosts", '"\\u001b[2J"', "a.b.c", ""])
            header = draw.choice(["[[{}]]", "[{}]", "{} = 1", "[[{}"])
            names = draw.sample(keys, draw.randrange(4))
        lines.append(header.format(kind))
        for key in names:
            value = draw.choice(["'x y'", '["a", "pay\\u202eexe"]', "'tool:a'"])
            value = _hostile_value(draw) if draw.random() < hostility else value
            lines += [f"{key} = {value}"] * (2 if draw.random() < hostility / 8 else 1)
    return "\n".join(lines)


@pytest.mark.generator("hostile facts files")
def test_a_hostile_file_is_read_or_refused_in_a_sentence(
    tmp_path: Path, count_cases: Callable[[int], None]
) -> None:
    file, read, said = tmp_path / "facts.toml", 0, []
    for seed in range(FILES):
        file.write_text(_hostile_file(random.Random(seed)), "utf-8", "replace")
        try:
            facts, left_out = read_facts(file)
        except click.ClickException as exc:
            said.append(exc.message)
            continue
        read += 1
        for fact in facts:
            check(fact)
        file.write_text(written(facts), "utf-8")
        assert read_facts(file) == (facts, []), seed
        assert all(isinstance(each, str) for each in left_out)
    assert [each for each in said if not each.isprintable()] == []
    assert read > FILES // 50
    assert len(said) > FILES // 4
    count_cases(FILES)
