"""All that a reader of a Telegram message sees, over messages of python-telegram-bot."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from telegram import Message, Update

from spamdetect.service.visible import visible_text

_EVIL = {"id": -1009, "type": "channel", "title": "Evil Gains", "username": "evil_gains"}
_URL = "https://evil.com/claim"
_PERSON = {"id": 5, "is_bot": False, "first_name": "Unseen"}
_PHOTO = [{"file_id": "a", "file_unique_id": "b", "width": 1, "height": 1}]
_BUTTON = {"inline_keyboard": [[{"text": "Claim", "url": _URL}]]}


def _message(**fields: Any) -> Message:
    message = {
        "message_id": 1,
        "date": int(datetime(2026, 11, 1, tzinfo=UTC).timestamp()),
        "chat": {"id": -1001, "type": "supergroup", "title": "Unseen"},
        "from": _PERSON,
        **fields,
    }
    update = Update.de_json({"update_id": 1, "message": message})
    assert update.message is not None
    return update.message


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({"text": "here", "entities": [{"type": "text_link", "offset": 0, "length": 4,
          "url": _URL}]}, ["here", _URL]),
        ({"caption": "look", "photo": _PHOTO, "caption_entities": [{"type": "text_link",
          "offset": 0, "length": 4, "url": _URL}]}, ["look", _URL]),
        ({"text": "so true", "quote": {"text": "Claim at evil.com", "position": 0}},
         ["Claim at evil.com"]),
        ({"text": "see", "external_reply": {"origin": {"type": "channel", "date": 1,
          "chat": _EVIL, "message_id": 7}, "link_preview_options": {"url": _URL}}},
         [_URL, "Evil Gains https://t.me/evil_gains"]),
        ({"text": "see", "reply_markup": _BUTTON}, ["Claim", _URL]),
        ({"photo": _PHOTO, "reply_markup": _BUTTON}, ["Claim", _URL]),
        ({"contact": {"phone_number": "+18005551234", "first_name": "Claim", "last_name": "Now"}},
         ["+18005551234", "Claim", "Now"]),
        ({"poll": {"id": "1", "question": "Claim?", "options": [
            {"text": "evil.com", "voter_count": 0, "persistent_id": "1"}],
            "total_voter_count": 0, "is_closed": False, "is_anonymous": True, "type": "quiz",
            "allows_multiple_answers": False, "allows_revoting": False, "members_only": False,
            "explanation": "At evil.com"}},
         ["Claim?", "evil.com", "At evil.com"]),
        ({"story": {"id": 3, "chat": _EVIL}}, ["Evil Gains https://t.me/evil_gains"]),
        ({"document": {"file_id": "a", "file_unique_id": "b", "file_name": "claim-evil.com.apk"}},
         ["claim-evil.com.apk"]),
        ({"text": "see", "link_preview_options": {"url": _URL}}, [_URL]),
        ({"text": "see", "forward_origin": {"type": "channel", "date": 1, "chat": _EVIL,
          "message_id": 7}}, ["Evil Gains https://t.me/evil_gains"]),
        ({"venue": {"location": {"latitude": 1, "longitude": 1}, "title": "Claim",
          "address": "evil.com"}}, ["Claim", "evil.com"]),
        ({"audio": {"file_id": "a", "file_unique_id": "b", "duration": 1, "title": "Claim",
          "performer": "evil.com", "file_name": "x.mp3"}}, ["Claim", "evil.com", "x.mp3"]),
        # What a later version of Telegram adds is called as everything else is.
        ({"text": "see", "novelty": {"title": "Claim", "buttons": [{"url": _URL}]}},
         ["Claim", _URL]),
    ],
)  # fmt: skip
def test_everything_that_a_reader_sees_is_read(fields: dict[str, Any], seen: list[str]) -> None:
    lines = visible_text(_message(**fields)).split("\n")
    assert set(seen) <= set(lines)
    assert "Unseen" not in " ".join(lines)


def test_what_is_not_of_the_message_is_left_out() -> None:
    answered = _message(text="yes", reply_to_message=_message(text="no").to_dict())
    assert visible_text(answered) == "yes"
    assert visible_text(_message(new_chat_members=[_PERSON])) == ""
    # A preview of an address that the text has already is no second one.
    same = _message(text=f"see {_URL}", link_preview_options={"url": _URL})
    assert visible_text(same) == f"see {_URL}"
    other = _message(text=f"see {_URL}.au", link_preview_options={"url": _URL})
    assert visible_text(other) == f"see {_URL}.au\n{_URL}"
