"""Ask one question of each kind with openai-python and print the answers as JSON.

    client.py BASE_URL
"""

import asyncio
import json
import sys

import openai

MESSAGES = [{"role": "system", "content": "ba ko"}, {"role": "user", "content": "lu mi za"}]
GREEDY = {"model": "tiny", "temperature": 0, "extra_body": {"ignore_eos": True}}


def ask(client):
    """Yield a name and an answer."""
    yield "models", [m.id for m in client.models.list()]
    yield "completion", client.completions.create(prompt="ba ko lu", max_tokens=20, logprobs=2, **GREEDY).choices[0].model_dump()
    yield "chat", client.chat.completions.create(messages=MESSAGES, max_tokens=20, **GREEDY).choices[0].model_dump()
    chunks = list(client.completions.create(prompt="ba ko lu", max_tokens=20, stream=True, **GREEDY))
    yield "completion stream", ["".join(c.choices[0].text for c in chunks), chunks[-1].choices[0].finish_reason, len({c.id for c in chunks})]
    chunks = list(client.chat.completions.create(messages=MESSAGES, max_tokens=20, stream=True, stream_options={"include_usage": True}, **GREEDY))
    usage = chunks[-1].usage
    yield "chat stream", ["".join(c.choices[0].delta.content or "" for c in chunks if c.choices), usage.prompt_tokens, usage.completion_tokens]
    yield "choices", [c.message.content for c in client.chat.completions.create(messages=MESSAGES, max_tokens=20, n=2, seed=3, model="tiny").choices]
    with client.chat.completions.stream(messages=MESSAGES, max_tokens=20, **GREEDY) as stream:
        yield "chat helper", "".join(e.delta for e in stream if e.type == "content.delta")
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {
        "type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}, "required": ["a"]}}}
    yield "schema", client.chat.completions.create(messages=MESSAGES, max_tokens=30, response_format=schema, model="tiny", temperature=0).choices[0].message.content
    for name, call in {
        "unknown model": lambda: client.completions.create(prompt="ba", model="other"),
        "too long": lambda: client.completions.create(prompt="ba " * 9000, model="tiny"),
    }.items():
        try:
            call()
            yield name, "no error"
        except openai.APIStatusError as e:
            yield name, [type(e).__name__, e.status_code, e.message]


async def ask_together(base):
    """Return the answers of 12 streams at once."""
    async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
        async def one(i):
            stream = await client.completions.create(prompt=f"ba {i} ko", max_tokens=40, stream=True, **GREEDY)
            return "".join([c.choices[0].text async for c in stream])
        return await asyncio.gather(*(one(i) for i in range(12)))


base = sys.argv[1] + "/v1"
answers = dict(ask(openai.OpenAI(base_url=base, api_key="none", max_retries=0)))
answers["together"] = asyncio.run(ask_together(base))
print(json.dumps(answers, indent=1))
