"""An agent that tidies an inbox and does not know when to stop: OpenAI's client and a loop."""

import json

import openai

MESSAGES = ["invoice 2041", "lunch on Friday?", "URGENT: your parcel", "minutes of Monday"]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": text,
            "parameters": {
                "type": "object",
                "properties": {"subject": {"type": "string"}},
                "required": ["subject"],
            },
        },
    }
    for name, text in (("read_mail", "Read a message."), ("delete_mail", "Delete a message."))
]


def read_mail(subject: str) -> str:
    return f"The text of {subject!r}."


def delete_mail(subject: str) -> str:
    MESSAGES.remove(subject)
    return "It is gone."


def main() -> None:
    client = openai.OpenAI()
    history = [{"role": "user", "content": f"Tidy my inbox: {MESSAGES}"}]
    while True:
        reply = client.chat.completions.create(
            model="gpt-4o", messages=history, tools=TOOLS, max_tokens=500
        )
        message = reply.choices[0].message
        history.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            print(message.content)
            return
        for call in message.tool_calls:
            arguments = json.loads(call.function.arguments)
            print(f"agent: {call.function.name}({arguments['subject']!r})", flush=True)
            result = {"read_mail": read_mail, "delete_mail": delete_mail}[call.function.name]
            content = result(**arguments)
            history.append({"role": "tool", "tool_call_id": call.id, "content": content})


if __name__ == "__main__":
    main()
