"""Everything that a reader of a Telegram message sees, as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from telegram import Message

# Where readers see something: what is called so in any part of a message is read.
_SEEN: Final = (
    "text",
    "caption",
    "title",
    "description",
    "url",
    "question",
    "explanation",
    "prize_description",
    "address",
    "file_name",
    "performer",
    "phone_number",
    "first_name",
    "last_name",
    "vcard",
)
# Who writes, and where; and the message that is answered, which was read itself. What of another
# chat's message is shown (`quote`, `external_reply`) is read.
_UNSEEN: Final = frozenset(
    {
        "from",
        "chat",
        "sender_chat",
        "sender_business_bot",
        "sender_boost_count",
        "reply_to_message",
        "pinned_message",
        "new_chat_members",
        "left_chat_member",
        "forward_origin",
        "origin",
        "user",
        "users",
        "via_bot",
        "thumbnail",
        "cover",
    }
)


def visible_text(message: Message) -> str:
    """What a reader sees of a message, each thing on a line, each line once.

    That is the text or the caption, and then: where links lead that hide it, quotes, answers to
    other chats, buttons, contacts, polls, stories, places, names of files, the address of the
    preview, and the channel that it was forwarded from.
    """
    lines = dict.fromkeys(line for line in _lines(message.to_dict()) if line.strip())
    first, *others = lines or [""]
    words = first.split()
    return "\n".join((first, *(line for line in others if line not in words)))


def _lines(part: Any) -> Iterator[str]:
    if isinstance(part, list | tuple):
        for each in part:
            yield from _lines(each)
    if not isinstance(part, dict):
        return
    for name in _SEEN:
        if isinstance(part.get(name), str):
            yield part[name]
    for name, inside in part.items():
        if name in {"story", "reply_to_story", "forward_origin", "origin"}:
            yield from _source(inside)
        if name not in _UNSEEN:
            yield from _lines(inside)


def _source(part: Any) -> Iterator[str]:
    """The channel that a story or a message is from, which a touch opens."""
    chat = part.get("chat") if isinstance(part, dict) else None
    if isinstance(chat, dict) and chat.get("username"):
        yield f"{chat.get('title') or ''} https://t.me/{chat['username']}".strip()
