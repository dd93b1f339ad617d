"""Points the vendors' own Python clients at the model server and checks that they understand all it sends.

Started by `run.sh`, which installs the clients: `check.py MODEL_SERVER`. Each check is a function of a client and prints
its failure; the last line counts them. The clients never retry here, so that one request is one answer.
"""

import json
import subprocess
import sys
import tempfile
import traceback
import urllib.request

import anthropic
import openai

WORDS = "Grüße, 世界."
RICH = {
    "parts": [
        {"thinking": {"text": "Let me think."}},
        {"text": WORDS},
        {"tool_use": {"name": "Read", "input": {"file_path": "a"}}},
        {"tool_use": {"name": "Glob", "input": {}}},
    ],
    "chunk": 3,
    "usage": {"input": 12, "cache_read": 9000, "cache_write": 5, "cache_write_1h": 3, "output": 89},
}
ODD_WIRE = dict(RICH, wire={"crlf": True, "comments": True, "multi_line_data": True, "split": 1})


def http(status, **more):
    return {"http": dict(more, status=status)}


def cut(how, **more):
    return dict({"parts": [{"text": "half an answer"}], "chunk": 4, "cut": {"after_event": 4, "how": how}}, **more)


RULES = {
    "rich": RICH,
    "odd": ODD_WIRE,
    "pings": {"parts": ["ping", {"text": WORDS}, "ping"]},
    "redacted": {"parts": [{"redacted_thinking": "AAAA"}, {"text": WORDS}]},
    "max": {"parts": [{"text": "half"}], "stop": "max_tokens"},
    "refusal": {
        "parts": [{"text": "No."}],
        "stop": "refusal",
        "stop_details": {"type": "refusal", "category": "cyber", "explanation": "not this"},
    },
    "status 400": http(400, message="prompt is too long: 2 tokens > 1 maximum"),
    "status 401": http(401),
    "status 404": http(404),
    "status 413": http(413, body="<html>413 Request Entity Too Large</html>"),
    "status 429": http(429, headers=[["retry-after", "7"]]),
    "status 500": http(500),
    "status 529": http(529),
    "in-band": {
        "parts": [{"text": "a"}, {"error": {"type": "overloaded_error", "message": "Overloaded"}}, {"end": "eof"}]
    },
    "cut eof": cut("eof"),
    "cut fin": cut("fin"),
    "cut reset": cut("reset"),
    "cached": {"parts": [{"text": "Yes."}]},
}
LONG = "cached " + "x" * 8000

READ = {"name": "Read", "description": "reads", "parameters": {"type": "object", "properties": {}}}
EPHEMERAL = {"type": "ephemeral"}


def raises(kinds, call):
    """The error that `call` ends with, which must be one of these."""
    try:
        call()
    except kinds as error:
        return error
    raise AssertionError(f"{kinds} was not raised")


def same(found, expected):
    assert found == expected, f"{found!r}, expected {expected!r}"


# ---------------------------------------------------------------------------------------------------- Anthropic


class Messages:
    """The Messages API."""

    def __init__(self, url):
        self.client = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)

    def ask(self, text, **more):
        tools = [{"name": "Read", "input_schema": {"type": "object"}}]
        return dict(
            {"model": "test-model", "max_tokens": 1000, "tools": tools, "messages": [{"role": "user", "content": text}]},
            **more,
        )

    def stream(self, text, **more):
        with self.client.messages.stream(**self.ask(text, **more)) as stream:
            events = list(stream)
            return events, stream.get_final_message()

    def is_rich(self, message):
        same([block.type for block in message.content], ["thinking", "text", "tool_use", "tool_use"])
        assert message.content[0].signature
        same(message.content[0].thinking, "Let me think.")
        same(message.content[1].text, WORDS)
        same((message.content[2].name, message.content[2].input), ("Read", {"file_path": "a"}))
        same(message.content[3].input, {})
        assert message.content[2].id != message.content[3].id
        same(message.stop_reason, "tool_use")
        usage = message.usage
        same((usage.input_tokens, usage.output_tokens), (12, 89))
        same((usage.cache_read_input_tokens, usage.cache_creation_input_tokens), (9000, 5))
        split = usage.cache_creation
        same((split.ephemeral_5m_input_tokens, split.ephemeral_1h_input_tokens), (2, 3))

    def check_a_streamed_answer(self):
        events, message = self.stream("rich")
        same((events[0].type, events[-1].type), ("message_start", "message_stop"))
        self.is_rich(message)
        texts = [event.text for event in events if event.type == "text"]
        assert len(texts) > 3, texts
        same("".join(texts), WORDS)

    def check_odd_but_legal_bytes(self):
        self.is_rich(self.stream("odd")[1])

    def check_an_answer_in_one_piece(self):
        self.is_rich(self.client.messages.create(**self.ask("rich")))

    def check_raw_events_are_of_known_types(self):
        kinds = {event.type for event in self.client.messages.create(**self.ask("rich"), stream=True)}
        same(
            kinds,
            {"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"},
        )

    def check_every_event_has_what_its_type_demands(self):
        # Fields are validated strictly, unknown ones allowed: the client itself is lenient.
        for event in self.client.messages.create(**self.ask("rich"), stream=True):
            type(event).model_validate(event.model_dump(), strict=True)

    def check_pings_are_nothing(self):
        same(self.stream("pings")[1].content[0].text, WORDS)

    def check_redacted_thinking(self):
        message = self.stream("redacted")[1]
        same((message.content[0].type, message.content[0].data), ("redacted_thinking", "AAAA"))

    def check_stop_reasons(self):
        same(self.stream("max")[1].stop_reason, "max_tokens")
        message = self.stream("refusal")[1]
        same(message.stop_reason, "refusal")
        same((message.stop_details.category, message.stop_details.explanation), ("cyber", "not this"))

    def check_refused_requests(self):
        for status, kind, word in [
            (400, anthropic.BadRequestError, "invalid_request_error"),
            (401, anthropic.AuthenticationError, "authentication_error"),
            (404, anthropic.NotFoundError, "not_found_error"),
            (413, anthropic.APIStatusError, None),
            (429, anthropic.RateLimitError, "rate_limit_error"),
            (500, anthropic.InternalServerError, "api_error"),
            (529, anthropic.APIStatusError, "overloaded_error"),
        ]:
            for ask in (self.stream, lambda text: self.client.messages.create(**self.ask(text))):
                error = raises(kind, lambda: ask(f"status {status}"))
                same(error.status_code, status)
                assert error.request_id, status
                if word:
                    same(error.body["error"]["type"], word)
                    same(error.body["request_id"], error.request_id)
        same(raises(anthropic.RateLimitError, lambda: self.stream("status 429")).response.headers["retry-after"], "7")

    def check_an_error_inside_the_stream(self):
        error = raises(anthropic.APIStatusError, lambda: self.stream("in-band"))
        same(error.body["error"]["type"], "overloaded_error")

    def check_cut_streams(self):
        # A body that ends as HTTP bodies do is not noticed by the client, but the message is not whole.
        seen = []
        for event in self.client.messages.create(**self.ask("cut eof"), stream=True):
            seen.append(event.type)
        same(seen, ["message_start", "content_block_start", "content_block_delta", "content_block_delta"])
        for how in ("fin", "reset"):
            seen = []

            def read():
                for event in self.client.messages.create(**self.ask(f"cut {how}"), stream=True):
                    seen.append(event.type)

            raises(Exception, read)
            same(len(seen), 4)

    def check_cache_figures(self):
        def used(marks=1, ttl=None):
            control = dict(EPHEMERAL, **({"ttl": ttl} if ttl else {}))
            block = {"type": "text", "text": LONG, "cache_control": control}
            system = [{"type": "text", "text": "s" * 8000, "cache_control": control}] * marks
            messages = [{"role": "user", "content": [block]}]
            return self.client.messages.create(**self.ask("", messages=messages, system=system)).usage

        first, second = used(), used()
        same(first.cache_read_input_tokens, 0)
        assert first.cache_creation_input_tokens > 3000, first
        same(second.cache_read_input_tokens, first.cache_creation_input_tokens)
        same(second.cache_creation_input_tokens, 0)
        raises(anthropic.BadRequestError, lambda: used(marks=4))
        control(self.client.base_url, "clock", {"seconds": 301})
        hour = used(ttl="1h")
        same(hour.cache_read_input_tokens, 0)
        same(hour.cache_creation.ephemeral_1h_input_tokens, hour.cache_creation_input_tokens)
        control(self.client.base_url, "clock", {"seconds": 301})
        same(used(ttl="1h").cache_read_input_tokens, hour.cache_creation_input_tokens)

    def check_counting_and_models(self):
        messages = self.ask("rich")["messages"]
        assert self.client.messages.count_tokens(model="test-model", messages=messages).input_tokens > 0
        same([model.id for model in self.client.models.list()][-1], "test-model")
        same(self.client.models.retrieve("test-model").max_input_tokens, 200_000)
        raises(anthropic.NotFoundError, lambda: self.client.models.retrieve("nobody"))


# ---------------------------------------------------------------------------------------------------- OpenAI


STATUSES = [
    (400, openai.BadRequestError),
    (401, openai.AuthenticationError),
    (404, openai.NotFoundError),
    (413, openai.APIStatusError),
    (429, openai.RateLimitError),
    (500, openai.InternalServerError),
    (529, openai.InternalServerError),
]


class Chat:
    """Chat completions."""

    def __init__(self, url):
        self.client = openai.OpenAI(base_url=url + "/v1", api_key="k", max_retries=0)

    def ask(self, text):
        tools = [{"type": "function", "function": READ}]
        return {"model": "test-model", "tools": tools, "messages": [{"role": "user", "content": text}]}

    def create(self, text):
        return self.client.chat.completions.create(**self.ask(text))

    def chunks(self, text):
        options = {"include_usage": True}
        return list(self.client.chat.completions.create(**self.ask(text), stream=True, stream_options=options))

    def read(self, text):
        """What was said, the calls' arguments, why it ended, what it used."""
        said, thought, calls, finish, usage = "", "", {}, None, None
        for chunk in self.chunks(text):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                said += choice.delta.content or ""
                thought += getattr(choice.delta, "reasoning_content", None) or ""
                finish = choice.finish_reason or finish
                for call in choice.delta.tool_calls or []:
                    name, arguments = calls.get(call.index, ("", ""))
                    calls[call.index] = (name + (call.function.name or ""), arguments + (call.function.arguments or ""))
        return said, thought, calls, finish, usage

    def is_rich(self, answer):
        said, thought, calls, finish, usage = answer
        same((said, thought, finish), (WORDS, "Let me think.", "tool_calls"))
        same([(calls[n][0], json.loads(calls[n][1])) for n in (0, 1)], [("Read", {"file_path": "a"}), ("Glob", {})])
        self.is_used(usage)

    def is_used(self, usage):
        same((usage.prompt_tokens, usage.completion_tokens, usage.total_tokens), (9017, 89, 9106))
        same(usage.prompt_tokens_details.cached_tokens, 9000)

    def check_a_streamed_answer(self):
        self.is_rich(self.read("rich"))

    def check_odd_but_legal_bytes(self):
        self.is_rich(self.read("odd"))

    def check_the_helper_that_puts_a_stream_together(self):
        with self.client.chat.completions.stream(**self.ask("rich"), stream_options={"include_usage": True}) as stream:
            for _ in stream:
                pass
            message = stream.get_final_completion().choices[0].message
        same(message.content, WORDS)
        same([call.function.name for call in message.tool_calls], ["Read", "Glob"])

    def check_every_chunk_has_what_its_type_demands(self):
        for chunk in self.chunks("rich"):
            type(chunk).model_validate(chunk.model_dump(), strict=True)

    def check_an_answer_in_one_piece(self):
        answer = self.create("rich")
        choice = answer.choices[0]
        same((choice.finish_reason, choice.message.content), ("tool_calls", WORDS))
        same([call.function.name for call in choice.message.tool_calls], ["Read", "Glob"])
        self.is_used(answer.usage)

    def check_finish_reasons(self):
        same((self.read("max")[3], self.create("max").choices[0].finish_reason), ("length", "length"))
        same(self.read("refusal")[3], "content_filter")

    def check_refused_requests(self):
        for status, kind in STATUSES:
            for ask in (self.create, self.chunks):
                error = raises(kind, lambda: ask(f"status {status}"))
                same(error.status_code, status)
                assert error.request_id, status
        same(raises(openai.RateLimitError, lambda: self.create("status 429")).response.headers["retry-after"], "7")

    def check_an_error_inside_the_stream(self):
        raises(openai.APIError, lambda: self.chunks("in-band"))

    def check_cut_streams(self):
        for how in ("fin", "reset"):
            raises(Exception, lambda: self.chunks(f"cut {how}"))
        finishes = [choice.finish_reason for chunk in self.chunks("cut eof") for choice in chunk.choices]
        assert finishes and not any(finishes), finishes

    def check_cache_figures(self):
        first, second = self.create(LONG).usage, self.create(LONG).usage
        same(first.prompt_tokens_details.cached_tokens, 0)
        cached = second.prompt_tokens_details.cached_tokens
        assert cached % 128 == 0 and cached >= 1024, cached
        same(self.read(LONG)[4].prompt_tokens_details.cached_tokens, cached)

    def check_models(self):
        assert "test-model" in [model.id for model in self.client.models.list()]


class Responses:
    """The Responses API."""

    def __init__(self, url):
        self.client = openai.OpenAI(base_url=url + "/v1", api_key="k", max_retries=0)

    def ask(self, text):
        tools = [dict(READ, type="function", strict=False)]
        return {"model": "test-model", "tools": tools, "store": False, "input": [{"role": "user", "content": text}]}

    def create(self, text):
        return self.client.responses.create(**self.ask(text))

    def events(self, text):
        return list(self.client.responses.create(**self.ask(text), stream=True))

    def is_rich(self, response):
        same([item.type for item in response.output], ["reasoning", "message", "function_call", "function_call"])
        same(response.output[0].summary[0].text, "Let me think.")
        assert response.output[0].encrypted_content
        same(response.output_text, WORDS)
        same([json.loads(item.arguments) for item in response.output[2:]], [{"file_path": "a"}, {}])
        usage = response.usage
        same((usage.input_tokens, usage.output_tokens, usage.total_tokens), (9017, 89, 9106))
        same(usage.input_tokens_details.cached_tokens, 9000)

    def check_a_streamed_answer(self):
        for text in ("rich", "odd"):
            with self.client.responses.stream(**self.ask(text)) as stream:
                events = list(stream)
                self.is_rich(stream.get_final_response())
            same((events[0].type, events[-1].type), ("response.created", "response.completed"))
            same([event.sequence_number for event in events], list(range(len(events))))

    def check_every_event_has_what_its_type_demands(self):
        for event in self.events("rich"):
            type(event).model_validate(event.model_dump(), strict=True)

    def check_an_answer_in_one_piece(self):
        self.is_rich(self.create("rich"))

    def check_incomplete_answers(self):
        for text, reason in (("max", "max_output_tokens"), ("refusal", "content_filter")):
            whole, last = self.create(text), self.events(text)[-1]
            same((whole.status, whole.incomplete_details.reason), ("incomplete", reason))
            same((last.type, last.response.incomplete_details.reason), ("response.incomplete", reason))

    def check_refused_requests(self):
        for status, kind in STATUSES:
            for ask in (self.create, self.events):
                error = raises(kind, lambda: ask(f"status {status}"))
                same(error.status_code, status)

    def check_an_error_inside_the_stream(self):
        failed = self.events("in-band")[-1]
        same((failed.type, failed.response.error.code), ("response.failed", "overloaded_error"))

    def check_cut_streams(self):
        for how in ("fin", "reset"):
            raises(Exception, lambda: self.events(f"cut {how}"))
        kinds = [event.type for event in self.events("cut eof")]
        assert kinds and "response.completed" not in kinds, kinds

    def check_cache_figures(self):
        long = LONG + " of responses"
        first, second = self.create(long).usage, self.create(long).usage
        cached = second.input_tokens_details.cached_tokens
        assert first.input_tokens_details.cached_tokens < cached or cached % 128 == 0, (first, second)
        assert cached % 128 == 0 and cached >= 1024, cached


# ---------------------------------------------------------------------------------------------------- running


def control(base_url, what, body=None):
    """The answer of the server's control endpoint; it is asked directly, whatever proxy there is."""
    url = f"{str(base_url).rstrip('/')}/__control/{what}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    return json.load(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10))


class Server:
    """The model server itself, when all is asked."""

    def __init__(self, url):
        self.url = url

    def check_the_clients_broke_no_rule_but_the_one_on_purpose(self):
        violations = control(self.url, "violations")["violations"]
        assert len(violations) == 1 and "5 cache_control breakpoints" in violations[0], violations


def run(url):
    passed, failed = 0, 0
    for api in (Messages, Chat, Responses, Server):
        tests = api(url)
        for name in [name for name in dir(api) if name.startswith("check_")]:
            try:
                getattr(tests, name)()
                passed += 1
            except Exception:  # noqa: BLE001: every failure is told, and the rest goes on
                failed += 1
                print(f"FAILED {api.__name__}.{name}\n{traceback.format_exc()}")
    return passed, failed


def main():
    rules = [{"when": {"agent": name}, "reply": reply} for name, reply in RULES.items()]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as script:
        json.dump({"rules": rules}, script)
        script.flush()
        command = [sys.argv[1], "--script", script.name, "--until-eof", "--without-prefix-rule"]
        # It ends with an error that lists violations; those are looked at before.
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        server = subprocess.Popen(command, text=True, **pipes)
        try:
            passed, failed = run(json.loads(server.stdout.readline())["url"])
        finally:
            server.stdin.close()
            server.wait(timeout=20)
    print(f"anthropic {anthropic.__version__}, openai {openai.__version__}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
