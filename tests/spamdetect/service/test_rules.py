"""A key's lists and feedback: what they decide, for whom, and where they end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from spamdetect import AsyncSpamClient, Context, SpamClient, SpamConfigError, SpamRequestError
from spamdetect.engine import Engine
from spamdetect.links import found_in
from spamdetect.service.analysis import Item, analyse
from spamdetect.service.app import open_store
from spamdetect.service.keys import KeySpec
from spamdetect.service.phrases import PhraseIndex
from spamdetect.service.rules import MAX_SHIFT, Found, KeyRules, make_entry
from spamdetect.service.traces import similarity, sketch_of
from spamdetect.testing import run_service_async
from tests.support.private_server import schema_in


class Site:
    """A service with two keys, each with a client."""

    def __init__(self, base_url: str, a: AsyncSpamClient, b: AsyncSpamClient) -> None:
        self.base_url = base_url
        self.a = a
        self.b = b


@pytest_asyncio.fixture(params=["sqlite", "postgres"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    async with contextlib.AsyncExitStack() as stack:
        url = f"sqlite:///{tmp_path / 'keys.sqlite3'}"
        if request.param == "postgres":
            url = await stack.enter_async_context(
                schema_in(request.getfixturevalue("postgres_url"))
            )
        service = await stack.enter_async_context(
            run_service_async(database_url=url, max_queue_wait_ms=60_000)
        )
        store = await open_store(url)
        other = await store.create(KeySpec("other"))
        await store.close()
        a = await stack.enter_async_context(AsyncSpamClient(service.base_url, service.api_key))
        b = await stack.enter_async_context(AsyncSpamClient(service.base_url, other.api_key))
        yield Site(service.base_url, a, b)


HAM = "Hi Anna, the meeting is moved to Thursday at ten. See you there, Tom"
SPAM = "Congratulations! You won a free prize. Claim now: http://bit.ly/x1 or call 0800 123 456"


async def _spam_with(spam: AsyncSpamClient, text: str, **context: str) -> bool:
    return (await spam.predict(text, context=Context(**context))).is_spam


@pytest.mark.asyncio
async def test_lists_decide_and_the_reasons_say_so(site: Site) -> None:
    spam = site.a
    entry = await spam.add_to_list("block", "phrase", "Meeting is  MOVED")
    result = await spam.predict(HAM, reasons=True)
    assert (result.is_spam, result.prediction.spam_score, result.prediction.ham_score) == (
        True,
        1,
        0,
    )
    assert result.reasons is not None
    assert result.reasons[0].feature == f"list:block:phrase:{entry.entry_id}"
    assert result.reasons[0].weight == 20
    assert "Meeting is MOVED" in result.reasons[0].explanation
    assert len(result.reasons) == 11
    assert (await spam.predict_batch([HAM, SPAM]))[0].unwrap().is_spam
    # An allow entry goes first.
    allowed = await spam.add_to_list("allow", "sender", "Tom@Example.com")
    assert not await _spam_with(spam, HAM, address="tom@example.COM")
    assert await _spam_with(spam, HAM, address="bob@example.com")
    assert (await spam.lists()) == [entry, allowed]
    await spam.remove_from_list(entry.entry_id)
    assert not (await spam.predict(HAM)).is_spam
    with pytest.raises(SpamRequestError) as caught:
        await spam.remove_from_list(entry.entry_id)
    assert caught.value.status_code == 404


@pytest.mark.asyncio
async def test_what_each_kind_is_compared_with(site: Site) -> None:
    spam = site.a
    await spam.add_to_list("block", "sender", "Crypto King")
    await spam.add_to_list("block", "sender", "@bad.example")
    await spam.add_to_list("block", "link", "https://www.evil.example")
    await spam.add_to_list("block", "phrase", "cash")
    await spam.add_to_list("block", "phrase", "无料")
    await spam.add_to_list("block", "phrase", "guest house", text_kind="form")
    text = "See you at five"
    for context, expected in [
        ({"author": "crypto KING"}, True),
        ({"author": "Crypto\u200b King"}, True),
        ({"author": "Crypto Kings"}, False),
        ({"address": "anyone@BAD.example"}, True),
        ({"address": "anyone@not-bad.example"}, False),
        ({"author": "@bad.example"}, True),
        ({"address": "Anna <anyone@bad.example>"}, True),
    ]:
        assert await _spam_with(spam, text, **context) is expected, context
    for text, expected in [
        ("look at http://evil.example/x", True),
        ("look at http://shop.evil.example", True),
        ("look at http://notevil.example/", False),
        ("the cashier was kind to us today", False),
        ("fast сash today", True),  # a Cyrillic letter, as the engine sees through it
        ("全部无料です", True),
        ("the guest house was lovely", False),
    ]:
        assert (await spam.predict(text)).is_spam is expected, text
    assert await _spam_with(spam, "the guest house was lovely", kind="form")


@pytest.mark.asyncio
async def test_an_allowed_link_lets_no_scam_through(site: Site) -> None:
    spam = site.a
    before = (await spam.predict(SPAM)).prediction.spam_score
    await spam.add_to_list("allow", "link", "bit.ly")
    # Another link, of whatever ending, or a number: it counts as before.
    for more in ("", " or http://evil.example/claim", " or claim-win.help", " or claim.cfd,"):
        assert (await spam.predict(f"{SPAM}{more}")).is_spam, more
    await spam.add_to_list("allow", "contact", "0800 123 456")
    after = await spam.predict(SPAM, reasons=True)
    assert after.is_spam
    assert after.prediction.spam_score < before
    assert after.reasons is not None
    assert {each.weight for each in after.reasons[:2]} == {-3.0}
    # What is spam because of its link alone passes.
    assert not (await spam.predict("The photos: http://bit.ly/x1")).is_spam


@pytest.mark.parametrize(
    ("kind", "value", "matching", "others"),
    [
        ("contact", "+1 800 555 1234", ["call 800-555-1234", "+1 (800) 555 1234!"],
         ["call 800-555-1235", "call +49 30 5551234", "555 1234"]),
        ("contact", "t.me/channel", ["see https://t.me/Channel?start=1", "write to @channel,"],
         ["see t.me/channels", "see t.me/other", "write to @channel_two", "t.me"]),
        ("contact", "@channel", ["see t.me/channel/12", "(telegram.me/channel)"], ["@chan"]),
        ("contact", "Sales@Evil.example", ["mail sales@evil.example."],
         ["mail other@evil.example", "http://evil.example"]),
        ("link", "evil.example/offers", ["[x](https://evil.example/offers/7)",
         "http://evil.example/Offers, today"],
         ["http://evil.example/", "http://evil.example/offersome", "http://a.evil.example/offers"]),
        ("link", "evil.com", ["evil.com;", "看evil.com看", "https://good.com@evil.com/x",
         "evil。com", "a.evil.com:80"], ["evil.co", "notevil.com", "me@evil.com", "evil.com.tr"]),
        ("link", "münchen.de", ["xn--mnchen-3ya.de/x", "MÜNCHEN.de"], ["munchen.de"]),
        ("link", "t.me/channel", ["t.me/channel"], ["t.me/other"]),
        ("phrase", "call 0800 123 456", ["Call 0800 123 456 now"], ["Call 0800 123 457 now"]),
    ],
)  # fmt: skip
def test_an_entry_matches_what_it_identifies_and_no_other(
    kind: Any, value: str, matching: list[str], others: list[str]
) -> None:
    rules = KeyRules([make_entry("block", kind, value, None)])
    engine = Engine.load()

    def is_blocked(text: str) -> bool:
        [found] = analyse(engine, [Item(text, True, 0.5, traces=True)])
        assert isinstance(found, Found)
        judged = rules.judge(found, Context(), 0.5)
        return any(each.feature.startswith("list:") for each in judged.reasons)

    assert {text: is_blocked(text) for text in matching} == dict.fromkeys(matching, True)
    assert {text: is_blocked(text) for text in others} == dict.fromkeys(others, False)


@pytest.mark.asyncio
async def test_a_name_that_looks_like_an_allowed_address_lets_nobody_through(site: Site) -> None:
    spam = site.a
    await spam.add_to_list("allow", "sender", "boss@good.example")
    await spam.add_to_list("allow", "sender", "@good.example")
    for context in (
        {"author": "boss@good.example"},
        {"author": "@good.example"},
        {"author": "Boss <boss@good.example>", "address": "eve@evil.example"},
        {"address": "boss@good.example <eve@evil.example>"},
        {"address": "eve@evil.example", "author": "boss@good.example"},
    ):
        assert await _spam_with(spam, SPAM, **context), context
    for address in ("boss@good.example", "Boss <boss@good.example>", "a@good.example"):
        assert not await _spam_with(spam, SPAM, address=address)


@pytest.mark.asyncio
async def test_feedback_whitens_no_new_link_number_or_name(site: Site) -> None:
    spam = site.a
    text = f"{SPAM} and write to @prizes"
    await spam.send_feedback(text, is_spam=False)
    assert not (await spam.predict(text)).is_spam
    assert not (await spam.predict(SPAM)).is_spam
    for old, new in (
        ("http://bit.ly/x1", "http://bit.ly/x2"),
        ("0800 123 456", "0800 123 457"),
        ("@prizes", "@prizes_two"),
    ):
        assert (await spam.predict(text.replace(old, new))).is_spam, new
    # What was spam is spam with every number.
    await spam.send_feedback(HAM, is_spam=True)
    assert (await spam.predict(f"{HAM} 0800 765 432")).is_spam


@pytest.mark.asyncio
async def test_feedback_counts_at_once_and_can_be_taken_back(site: Site) -> None:
    spam = site.a
    before = await spam.predict(SPAM)
    assert before.is_spam
    feedback_id = await spam.send_feedback(SPAM, is_spam=False)
    after = await spam.predict(SPAM, reasons=True)
    assert not after.is_spam
    assert after.reasons is not None
    assert after.reasons[0].feature == f"feedback:{feedback_id}"
    assert after.reasons[0].weight == -MAX_SHIFT
    # A text with little in common is another one.
    other = "You have won our lottery, send your bank details to collect the money today"
    assert (await spam.predict(other)) == (await site.b.predict(other))
    [shown] = await spam.feedback()
    assert (shown.feedback_id, shown.is_spam) == (feedback_id, False)
    # The same again changes nothing; the opposite replaces it.
    assert await spam.send_feedback(SPAM, is_spam=False) == feedback_id
    assert len(await spam.feedback()) == 1
    assert await spam.send_feedback(SPAM, is_spam=True) == feedback_id
    assert [each.is_spam for each in await spam.feedback()] == [True]
    assert (await spam.predict(SPAM)).is_spam
    await spam.withdraw_feedback(feedback_id)
    assert (await spam.predict(SPAM)) == before
    assert await spam.feedback() == []
    with pytest.raises(SpamRequestError):
        await spam.withdraw_feedback(feedback_id)
    assert await spam.send_feedback(HAM, is_spam=True, feedback_id="mine / 7 %") == "mine / 7 %"
    await spam.withdraw_feedback("mine / 7 %")
    assert await spam.send_feedback(" ", is_spam=True) == ""


@pytest.mark.asyncio
async def test_nothing_of_one_key_is_seen_or_felt_by_another(site: Site) -> None:
    before = [await site.b.predict(text) for text in (HAM, SPAM)]
    entry = await site.a.add_to_list("block", "phrase", "meeting")
    feedback_id = await site.a.send_feedback(SPAM, is_spam=False, feedback_id="a")
    assert [(await site.a.predict(text)).is_spam for text in (HAM, SPAM)] == [True, False]
    assert [await site.b.predict(text) for text in (HAM, SPAM)] == before
    assert await site.b.lists() == []
    assert await site.b.feedback() == []
    for remove in (
        site.b.remove_from_list(entry.entry_id),
        site.b.withdraw_feedback(feedback_id),
    ):
        with pytest.raises(SpamRequestError) as caught:
            await remove
        assert caught.value.status_code == 404
    # The same ids of another key are other things.
    await site.b.add_to_list("block", "phrase", "meeting")
    await site.b.send_feedback(HAM, is_spam=False, feedback_id="a")
    await site.b.remove_from_list(entry.entry_id)
    await site.b.withdraw_feedback("a")
    assert [(await site.a.predict(text)).is_spam for text in (HAM, SPAM)] == [True, False]


@pytest.mark.asyncio
async def test_another_replica_feels_a_change_at_the_next_request(
    postgres_url: str,
) -> None:
    async with (
        schema_in(postgres_url) as url,
        run_service_async(database_url=url) as one,
        run_service_async(database_url=url) as two,
        AsyncSpamClient(one.base_url, one.api_key) as here,
        AsyncSpamClient(two.base_url, one.api_key) as there,
    ):
        assert not (await there.predict(HAM)).is_spam
        for phrase in ("anna", "thursday"):
            entry = await here.add_to_list("block", "phrase", phrase)
            assert (await there.predict(HAM)).is_spam
            await here.remove_from_list(entry.entry_id)
            assert not (await there.predict(HAM)).is_spam


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("link", "not a domain"),
        ("link", "localhost"),
        ("link", "evil.example/a?b=1"),
        ("link", "evil.example:8080"),
        ("link", "evil.example other.example"),
        ("link", "a@evil.example"),
        ("contact", "evil.example"),
        ("contact", "call +1 800 555 1234"),
        ("contact", "12"),
        ("contact", "@a @b"),
        ("sender", "Tom <tom@evil.example>"),
        ("sender", "a@b@c.example"),
        ("phrase", "..."),
        ("phrase", "go to http://example.com now"),
        ("phrase", "x" * 201),
        ("phrase", " "),
        ("sender", "a\x00b"),
        ("colour", "red"),
    ],
)
async def test_a_value_that_can_match_nothing_is_refused(kind: Any, value: str) -> None:
    async with (
        run_service_async() as service,
        AsyncSpamClient(service.base_url, service.api_key) as spam,
    ):
        with pytest.raises(SpamRequestError) as caught:
            await spam.add_to_list("block", kind, value)
        assert caught.value.status_code == 422
        assert await spam.lists() == []


@pytest.mark.asyncio
async def test_methods_paths_and_keys_are_checked(site: Site) -> None:
    async with httpx.AsyncClient(base_url=f"{site.base_url}/v1/spam-detection") as client:
        for path, allowed in (("/lists", "GET, POST"), ("/feedback/x", "DELETE")):
            answer = await client.put(path)
            assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
            assert (await client.request(allowed.split(",")[0], path)).status_code == 401
        assert (await client.get("/lists/")).status_code == 404


@pytest.mark.asyncio
async def test_nothing_of_a_rule_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="spamdetect")
    async with (
        run_service_async() as service,
        AsyncSpamClient(service.base_url, service.api_key) as spam,
    ):
        entry = await spam.add_to_list("block", "sender", "canary@example.com")
        await spam.send_feedback("canary text of four words", is_spam=True)
        await spam.predict("canary", context=Context(address="canary@example.com"))
        assert "canary" not in repr(entry)
    assert "canary" not in caplog.text


def test_local_mode_has_no_lists() -> None:
    with SpamClient(local=True) as spam:
        for call in (spam.lists, spam.feedback, lambda: spam.send_feedback("a", is_spam=True)):
            with pytest.raises(SpamConfigError, match="local mode"):
                call()


_words = st.lists(st.sampled_from("abc"), min_size=1, max_size=5)


@given(st.lists(_words, max_size=12), st.lists(st.sampled_from("abcd"), max_size=60))
def test_the_index_finds_what_looking_everywhere_finds(
    phrases: list[list[str]], text: list[str]
) -> None:
    index = PhraseIndex((phrase, number) for number, phrase in enumerate(phrases))
    expected = sorted(
        number
        for number, phrase in enumerate(phrases)
        if any(text[at : at + len(phrase)] == phrase for at in range(len(text) - len(phrase) + 1))
    )
    assert sorted(index.find(text)) == expected


def test_a_text_made_to_take_long_does_not() -> None:
    assert len(found_in("http://" + "a." * 49_000 + "example/x")) <= 1
    many = found_in(" ".join(f"http://h{n}.example" for n in range(5000)))
    assert (len(many), many[-1]) == (201, "?")
    # Each phrase is named once, however often and however deep in one another they come.
    index = PhraseIndex((["a"] * size, size) for size in range(1, 100))
    assert sorted(index.find(["a"] * 50_000)) == list(range(1, 100))


def test_similarity_is_near_what_two_texts_share() -> None:
    chosen = random.Random(7)
    words = [f"word{n}" for n in range(2000)]
    text = " ".join(chosen.choices(words, k=400))
    same = sketch_of(text, ())
    assert similarity(same, same) == 1
    assert similarity(same, sketch_of(" ".join(chosen.choices(words, k=400)), ())) < 0.1
    half = text.split()[:300]
    assert 0.6 < similarity(same, sketch_of(" ".join(half), ())) < 0.9
    assert similarity((), ()) == 0
    # A short text stands for itself alone, and a link to another host makes another text of it.
    assert (
        similarity(sketch_of("see <url>", ("a.example",)), sketch_of("see <url>", ("b.example",)))
        < 0.5
    )


@pytest.mark.asyncio
async def test_a_change_in_the_middle_of_many_requests_spoils_none(site: Site) -> None:
    async def change() -> None:
        for n in range(10):
            entry = await site.a.add_to_list("block", "phrase", f"meeting {n}")
            await site.a.remove_from_list(entry.entry_id)

    changing = asyncio.create_task(change())
    while not changing.done():
        assert not (await site.a.predict(HAM)).is_spam
    await changing
