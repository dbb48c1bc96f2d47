"""The agent of the demo: ordinary user code with two lines of guard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

import httpx

import guard
from guard.demo.inbox import Message

MODEL = "gpt-4o"
SHORT = 32
"""The most tokens of a short answer."""
LONG = 1024
"""The most tokens of a long one."""


class SpamChecker(Protocol):
    """What the agent needs from a spam client."""

    async def predict(self, text: str) -> Any:
        """Classify a text."""


class ChatClient(Protocol):
    """What the agent needs from an LLM client."""

    name: str

    async def ask(self, prompt: str) -> str:
        """Return the answer to a prompt."""

    def stream(self, prompt: str) -> AsyncIterator[str]:
        """Yield the answer to a prompt piece by piece."""

    async def close(self) -> None:
        """Close the connections."""


class InboxAgent:
    """Sorts an inbox: a spam check and an LLM step for each message."""

    def __init__(self, spam: SpamChecker, llm: ChatClient) -> None:
        self._spam = spam
        self._llm = llm

    @guard.protect
    async def check_spam(self, message: Message) -> Any:
        """Ask the spam service."""
        return await self._spam.predict(message.text)

    @guard.protect
    async def summarise(self, message: Message) -> str:
        """Ask the LLM what the message is about."""
        return await self._llm.ask(f"Say in one line what to do with this message:\n{message.text}")

    @guard.protect
    async def draft_reply(self, message: Message) -> str:
        """Ask the LLM for a reply."""
        return await self._llm.ask(f"Draft a short reply to this message:\n{message.text}")

    @guard.protect
    async def write_digest(self, messages: list[Message]) -> str:
        """Ask the LLM for a long text, read as it streams."""
        prompt = "Write a digest of these messages:\n" + "\n".join(m.subject for m in messages)
        pieces = [piece async for piece in self._llm.stream(prompt)]
        return "".join(pieces)

    @guard.sensitive
    @guard.protect
    async def delete_mailbox(self, name: str) -> None:
        """Delete a mailbox: a tool that no agent should get away with."""
        raise AssertionError(f"the mailbox {name!r} has been deleted; the guard did not hold")


def chat_client(base_url: str) -> ChatClient:
    """Return the vendor's own client when it is installed, else a plain httpx one."""
    try:
        import openai
    except ImportError:
        return _HttpxChat(base_url)
    return _OpenAIChat(openai.AsyncOpenAI(base_url=base_url, api_key="local-stand-in"))


class _OpenAIChat:
    def __init__(self, client: Any) -> None:
        import openai

        self.name = f"openai {openai.__version__}"
        self._client = client

    async def ask(self, prompt: str) -> str:
        answer = await self._client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": prompt}], max_tokens=SHORT
        )
        return str(answer.choices[0].message.content)

    async def stream(self, prompt: str) -> AsyncIterator[str]:
        stream = await self._client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=LONG,
            stream=True,
        )
        async for chunk in stream:
            if chunk.choices:
                yield chunk.choices[0].delta.content or ""

    async def close(self) -> None:
        await self._client.close()


class _HttpxChat:
    def __init__(self, base_url: str) -> None:
        self.name = f"httpx {httpx.__version__}"
        self._client = httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=60.0)

    async def ask(self, prompt: str) -> str:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": SHORT,
        }
        answer = await self._client.post("/chat/completions", json=body)
        answer.raise_for_status()
        return str(answer.json()["choices"][0]["message"]["content"])

    async def stream(self, prompt: str) -> AsyncIterator[str]:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": LONG,
            "stream": True,
        }
        async with self._client.stream("POST", "/chat/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data:") and "[DONE]" not in line:
                    yield line

    async def close(self) -> None:
        await self._client.aclose()
