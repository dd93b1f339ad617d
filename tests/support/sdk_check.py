#!/usr/bin/env python3
"""Points the vendors' own Python clients at the model server and checks that they understand it.

By hand, not in the test run:

    python3 -m venv VENV && VENV/bin/pip install anthropic openai
    cargo build -p integration-tests --bin model-server
    VENV/bin/python tests/support/sdk_check.py TARGET/debug/model-server
"""

import json
import subprocess
import sys
import tempfile

import anthropic
import openai

RICH = {
    "parts": [
        {"thinking": {"text": "Let me think."}},
        {"text": "Grüße, 世界."},
        {"tool_use": {"name": "Read", "input": {"file_path": "a"}}},
        {"tool_use": {"name": "Glob", "input": {}}},
    ],
    "chunk": 3,
    "usage": {"input": 12, "cache_read": 9000, "cache_write": 5, "output": 89},
}
ODD_WIRE = dict(RICH, wire={"crlf": True, "comments": True, "multi_line_data": True, "split": 1})
SCRIPT = {
    "rules": [
        {"when": {"agent": "rich"}, "reply": RICH},
        {"when": {"agent": "odd"}, "reply": ODD_WIRE},
        {"when": {"agent": "limit"}, "reply": {"http": {"status": 429, "headers": [["retry-after", "0"]]}}},
        {"when": {"agent": "long"}, "reply": {"http": {"status": 400, "message": "prompt is too long: 2 tokens > 1 maximum"}}},
        {"when": {"agent": "broken"}, "reply": {"parts": [{"text": "a"}, {"error": {"type": "overloaded_error", "message": "Overloaded"}}, {"end": "eof"}]}},
        {"when": {"agent": "cut"}, "reply": {"parts": [{"text": "half"}], "stop": "max_tokens"}},
    ]
}
FUNCTION = {"name": "Read", "description": "reads", "parameters": {"type": "object", "properties": {}}}


def check_anthropic(url):
    client = anthropic.Anthropic(base_url=url, api_key="k", max_retries=1)
    tools = [{"name": "Read", "input_schema": {"type": "object"}}]

    def ask(text):
        return {"model": "test-model", "max_tokens": 1000, "tools": tools, "messages": [{"role": "user", "content": text}]}

    for text in ("rich", "odd"):
        with client.messages.stream(**ask(text)) as stream:
            events = [event.type for event in stream]
            message = stream.get_final_message()
        assert events[0] == "message_start" and events[-1] == "message_stop", events
        check_message(message)
    check_message(client.messages.create(**ask("rich")))
    cut = client.messages.create(**ask("cut"))
    assert cut.stop_reason == "max_tokens", cut
    assert client.messages.count_tokens(model="test-model", messages=ask("rich")["messages"]).input_tokens > 0
    assert [model.id for model in client.models.list()][-1] == "test-model"
    assert client.models.retrieve("test-model").max_input_tokens == 200_000
    for text, kind in (("limit", anthropic.RateLimitError), ("long", anthropic.BadRequestError)):
        raises(kind, lambda text=text: client.messages.create(**ask(text)))

    def broken():
        with client.messages.stream(**ask("broken")) as stream:
            list(stream)

    raises(anthropic.APIStatusError, broken)


def check_message(message):
    kinds = [block.type for block in message.content]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"], kinds
    assert message.content[0].signature and message.content[0].thinking == "Let me think."
    assert message.content[1].text == "Grüße, 世界."
    assert message.content[2].input == {"file_path": "a"} and message.content[3].input == {}
    assert message.stop_reason == "tool_use"
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (12, 9000, 89), usage


def check_chat(url):
    client = openai.OpenAI(base_url=url + "/v1", api_key="k", max_retries=1)
    tools = [{"type": "function", "function": FUNCTION}]

    def ask(text):
        return {"model": "test-model", "tools": tools, "messages": [{"role": "user", "content": text}]}

    for text in ("rich", "odd"):
        said, arguments, finish, usage = "", {}, None, None
        stream = client.chat.completions.create(**ask(text), stream=True, stream_options={"include_usage": True})
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                said += choice.delta.content or ""
                finish = choice.finish_reason or finish
                for call in choice.delta.tool_calls or []:
                    arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
        assert said == "Grüße, 世界." and finish == "tool_calls", (said, finish)
        assert [json.loads(arguments[n]) for n in (0, 1)] == [{"file_path": "a"}, {}], arguments
        assert usage.prompt_tokens == 9017 and usage.prompt_tokens_details.cached_tokens == 9000, usage
    choice = client.chat.completions.create(**ask("rich")).choices[0]
    assert choice.message.tool_calls[0].function.name == "Read" and choice.finish_reason == "tool_calls"
    assert client.chat.completions.create(**ask("cut")).choices[0].finish_reason == "length"
    assert "test-model" in [model.id for model in client.models.list()]
    for text, kind in (("limit", openai.RateLimitError), ("long", openai.BadRequestError)):
        raises(kind, lambda text=text: client.chat.completions.create(**ask(text)))
    raises(openai.APIError, lambda: list(client.chat.completions.create(**ask("broken"), stream=True)))


def check_responses(url):
    client = openai.OpenAI(base_url=url + "/v1", api_key="k", max_retries=1)
    tools = [dict(FUNCTION, type="function", strict=False)]

    def ask(text):
        return {"model": "test-model", "tools": tools, "store": False, "input": [{"role": "user", "content": text}]}

    for text in ("rich", "odd"):
        with client.responses.stream(**ask(text)) as stream:
            events = list(stream)
            check_response(stream.get_final_response())
        assert events[0].type == "response.created" and events[-1].type == "response.completed"
        assert [event.sequence_number for event in events] == list(range(len(events)))
    check_response(client.responses.create(**ask("rich")))
    cut = client.responses.create(**ask("cut"))
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens", cut
    failed = list(client.responses.create(**ask("broken"), stream=True))[-1]
    assert failed.type == "response.failed" and failed.response.error.code == "overloaded_error", failed


def check_response(response):
    kinds = [item.type for item in response.output]
    assert kinds == ["reasoning", "message", "function_call", "function_call"], kinds
    assert response.output_text == "Grüße, 世界."
    assert json.loads(response.output[2].arguments) == {"file_path": "a"}
    assert response.usage.input_tokens == 9017 and response.usage.output_tokens == 89


def raises(kind, call):
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def main():
    with tempfile.NamedTemporaryFile("w", suffix=".json") as script:
        json.dump(SCRIPT, script)
        script.flush()
        command = [sys.argv[1], "--script", script.name, "--until-eof", "--without-prefix-rule"]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            url = json.loads(server.stdout.readline())["url"]
            for check in (check_anthropic, check_chat, check_responses):
                check(url)
                print(f"{check.__name__}: ok")
        finally:
            server.stdin.close()
            code = server.wait(timeout=10)
    print(f"anthropic {anthropic.__version__}, openai {openai.__version__}: no violations" if code == 0 else "violations")
    sys.exit(code)


if __name__ == "__main__":
    main()
