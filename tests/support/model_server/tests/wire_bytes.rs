use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::{CHAT, MESSAGES, RESPONSES, answering, body_for, parsed, post, stream};
use crate::model_server::Reply;

async fn check(path: &str, reply: Reply, expected: Expect) {
    let server = answering(reply);
    expected.assert_eq(&stream(&server, path).await);
}

fn rich() -> Reply {
    let reply = Reply::new().thinking_signed("Hm.", "sig").text("Hello").chunk(3);
    reply.tool_with_id("toolu_01", "Read", json!({"p": 1})).usage(12, 9000, 5, 89)
}

#[tokio::test]
async fn anthropic_stream() {
    check(MESSAGES, rich(), expect![[r#"
        event: message_start
        data: {"type":"message_start","message":{"id":"msg_000000000000000000000001","type":"message","role":"assistant","model":"test-model","content":[],"stop_reason":null,"stop_sequence":null,"stop_details":null,"container":null,"diagnostics":null,"usage":{"input_tokens":12,"cache_creation_input_tokens":5,"cache_read_input_tokens":9000,"cache_creation":{"ephemeral_5m_input_tokens":5,"ephemeral_1h_input_tokens":0},"output_tokens":1,"service_tier":"standard","speed":"standard","inference_geo":"global","server_tool_use":null,"output_tokens_details":null}}}

        event: content_block_start
        data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

        event: content_block_delta
        data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hm."}}

        event: content_block_delta
        data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"sig"}}

        event: content_block_stop
        data: {"type":"content_block_stop","index":0}

        event: content_block_start
        data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}

        event: content_block_delta
        data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Hel"}}

        event: content_block_delta
        data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"lo"}}

        event: content_block_stop
        data: {"type":"content_block_stop","index":1}

        event: content_block_start
        data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"toolu_01","name":"Read","input":{}}}

        event: content_block_delta
        data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":""}}

        event: content_block_delta
        data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"p"}}

        event: content_block_delta
        data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"\":1"}}

        event: content_block_delta
        data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"}"}}

        event: content_block_stop
        data: {"type":"content_block_stop","index":2}

        event: message_delta
        data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null,"stop_details":null,"container":null},"usage":{"input_tokens":12,"cache_creation_input_tokens":5,"cache_read_input_tokens":9000,"output_tokens":89,"server_tool_use":null,"output_tokens_details":null},"context_management":null}

        event: message_stop
        data: {"type":"message_stop"}

    "#]]).await;
}

#[tokio::test]
async fn chat_stream() {
    check(CHAT, rich(), expect![[r#"
        data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"test-model","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}

        data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"test-model","choices":[{"index":0,"delta":{"reasoning_content":"Hm."},"finish_reason":null}],"usage":null}

        data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"test-model","choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":null}],"usage":null}

        data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"test-model","choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":null}],"usage":null}

        data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"test-model","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"toolu_01","type":"function","function":{"name":"Read","arguments":""}}]},"finish_reason":null}],"usage":null}

        data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"test-model","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"p"}}]},"finish_reason":null}],"usage":null}

        data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"test-model","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\":1"}}]},"finish_reason":null}],"usage":null}

        data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"test-model","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]},"finish_reason":null}],"usage":null}

        data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"test-model","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}],"usage":null}

        data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"test-model","choices":[],"usage":{"prompt_tokens":9017,"completion_tokens":89,"total_tokens":9106,"prompt_tokens_details":{"cached_tokens":9000,"cache_write_tokens":5},"completion_tokens_details":{"reasoning_tokens":0}}}

        data: [DONE]

    "#]]).await;
}

#[tokio::test]
async fn responses_stream() {
    check(RESPONSES, rich(), expect![[r#"
        event: response.created
        data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_000000000000000000000001","object":"response","created_at":1,"status":"in_progress","error":null,"incomplete_details":null,"instructions":null,"metadata":{},"model":"test-model","output":[],"parallel_tool_calls":true,"temperature":null,"tool_choice":"auto","tools":[],"top_p":null,"usage":null}}

        event: response.in_progress
        data: {"type":"response.in_progress","sequence_number":1,"response":{"id":"resp_000000000000000000000001","object":"response","created_at":1,"status":"in_progress","error":null,"incomplete_details":null,"instructions":null,"metadata":{},"model":"test-model","output":[],"parallel_tool_calls":true,"temperature":null,"tool_choice":"auto","tools":[],"top_p":null,"usage":null}}

        event: response.output_item.added
        data: {"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":{"type":"reasoning","id":"rs_00000000000000000001_000","summary":[],"encrypted_content":"enc-1-0"}}

        event: response.reasoning_summary_part.added
        data: {"type":"response.reasoning_summary_part.added","sequence_number":3,"part":{"type":"summary_text","text":""},"item_id":"rs_00000000000000000001_000","output_index":0,"summary_index":0}

        event: response.reasoning_summary_text.delta
        data: {"type":"response.reasoning_summary_text.delta","sequence_number":4,"delta":"Hm.","item_id":"rs_00000000000000000001_000","output_index":0,"summary_index":0}

        event: response.reasoning_summary_text.done
        data: {"type":"response.reasoning_summary_text.done","sequence_number":5,"text":"Hm.","item_id":"rs_00000000000000000001_000","output_index":0,"summary_index":0}

        event: response.reasoning_summary_part.done
        data: {"type":"response.reasoning_summary_part.done","sequence_number":6,"part":{"type":"summary_text","text":"Hm."},"item_id":"rs_00000000000000000001_000","output_index":0,"summary_index":0}

        event: response.output_item.done
        data: {"type":"response.output_item.done","sequence_number":7,"output_index":0,"item":{"type":"reasoning","id":"rs_00000000000000000001_000","summary":[{"type":"summary_text","text":"Hm."}],"encrypted_content":"enc-1-0"}}

        event: response.output_item.added
        data: {"type":"response.output_item.added","sequence_number":8,"output_index":1,"item":{"type":"message","id":"msg_00000000000000000001_001","status":"in_progress","role":"assistant","content":[]}}

        event: response.content_part.added
        data: {"type":"response.content_part.added","sequence_number":9,"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]},"item_id":"msg_00000000000000000001_001","output_index":1,"content_index":0}

        event: response.output_text.delta
        data: {"type":"response.output_text.delta","sequence_number":10,"delta":"Hel","logprobs":[],"item_id":"msg_00000000000000000001_001","output_index":1,"content_index":0}

        event: response.output_text.delta
        data: {"type":"response.output_text.delta","sequence_number":11,"delta":"lo","logprobs":[],"item_id":"msg_00000000000000000001_001","output_index":1,"content_index":0}

        event: response.output_text.done
        data: {"type":"response.output_text.done","sequence_number":12,"text":"Hello","logprobs":[],"item_id":"msg_00000000000000000001_001","output_index":1,"content_index":0}

        event: response.content_part.done
        data: {"type":"response.content_part.done","sequence_number":13,"part":{"type":"output_text","text":"Hello","annotations":[],"logprobs":[]},"item_id":"msg_00000000000000000001_001","output_index":1,"content_index":0}

        event: response.output_item.done
        data: {"type":"response.output_item.done","sequence_number":14,"output_index":1,"item":{"type":"message","id":"msg_00000000000000000001_001","status":"completed","role":"assistant","content":[{"type":"output_text","text":"Hello","annotations":[],"logprobs":[]}]}}

        event: response.output_item.added
        data: {"type":"response.output_item.added","sequence_number":15,"output_index":2,"item":{"type":"function_call","id":"fc_00000000000000000001_002","status":"in_progress","call_id":"toolu_01","name":"Read","arguments":""}}

        event: response.function_call_arguments.delta
        data: {"type":"response.function_call_arguments.delta","sequence_number":16,"item_id":"fc_00000000000000000001_002","output_index":2,"delta":"{\"p"}

        event: response.function_call_arguments.delta
        data: {"type":"response.function_call_arguments.delta","sequence_number":17,"item_id":"fc_00000000000000000001_002","output_index":2,"delta":"\":1"}

        event: response.function_call_arguments.delta
        data: {"type":"response.function_call_arguments.delta","sequence_number":18,"item_id":"fc_00000000000000000001_002","output_index":2,"delta":"}"}

        event: response.function_call_arguments.done
        data: {"type":"response.function_call_arguments.done","sequence_number":19,"item_id":"fc_00000000000000000001_002","output_index":2,"name":"Read","arguments":"{\"p\":1}"}

        event: response.output_item.done
        data: {"type":"response.output_item.done","sequence_number":20,"output_index":2,"item":{"type":"function_call","id":"fc_00000000000000000001_002","status":"completed","call_id":"toolu_01","name":"Read","arguments":"{\"p\":1}"}}

        event: response.completed
        data: {"type":"response.completed","sequence_number":21,"response":{"id":"resp_000000000000000000000001","object":"response","created_at":1,"status":"completed","error":null,"incomplete_details":null,"instructions":null,"metadata":{},"model":"test-model","output":[{"type":"reasoning","id":"rs_00000000000000000001_000","summary":[{"type":"summary_text","text":"Hm."}],"encrypted_content":"enc-1-0"},{"type":"message","id":"msg_00000000000000000001_001","status":"completed","role":"assistant","content":[{"type":"output_text","text":"Hello","annotations":[],"logprobs":[]}]},{"type":"function_call","id":"fc_00000000000000000001_002","status":"completed","call_id":"toolu_01","name":"Read","arguments":"{\"p\":1}"}],"parallel_tool_calls":true,"temperature":null,"tool_choice":"auto","tools":[],"top_p":null,"usage":{"input_tokens":9017,"input_tokens_details":{"cached_tokens":9000,"cache_write_tokens":5},"output_tokens":89,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":9106}}}

    "#]]).await;
}

#[tokio::test]
async fn responses_number_every_event() {
    let server = answering(rich().ping());
    let events = parsed(&stream(&server, RESPONSES).await);
    let numbers: Vec<u64> = events.iter().filter_map(|e| e["sequence_number"].as_u64()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
}

#[tokio::test]
async fn whole_answers() {
    let server = answering(rich());
    for (path, expected) in [
        (
            MESSAGES,
            expect![[r#"
            {"id":"msg_000000000000000000000001","type":"message","role":"assistant","model":"test-model","content":[{"type":"thinking","thinking":"Hm.","signature":"sig"},{"type":"text","text":"Hello"},{"type":"tool_use","id":"toolu_01","name":"Read","input":{"p":1}}],"stop_reason":"tool_use","stop_sequence":null,"stop_details":null,"container":null,"diagnostics":null,"usage":{"input_tokens":12,"cache_creation_input_tokens":5,"cache_read_input_tokens":9000,"cache_creation":{"ephemeral_5m_input_tokens":5,"ephemeral_1h_input_tokens":0},"output_tokens":89,"service_tier":"standard","speed":"standard","inference_geo":"global","server_tool_use":null,"output_tokens_details":null}}
        "#]],
        ),
        (
            CHAT,
            expect![[r#"
            {"id":"chatcmpl-2","object":"chat.completion","created":1,"model":"test-model","choices":[{"index":0,"message":{"role":"assistant","content":"Hello","reasoning_content":"Hm.","tool_calls":[{"id":"toolu_01","type":"function","function":{"name":"Read","arguments":"{\"p\":1}"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":9017,"completion_tokens":89,"total_tokens":9106,"prompt_tokens_details":{"cached_tokens":9000,"cache_write_tokens":5},"completion_tokens_details":{"reasoning_tokens":0}}}
        "#]],
        ),
        (
            RESPONSES,
            expect![[r#"
                {"id":"resp_000000000000000000000003","object":"response","created_at":1,"status":"completed","error":null,"incomplete_details":null,"instructions":null,"metadata":{},"model":"test-model","output":[{"type":"reasoning","id":"rs_00000000000000000003_000","summary":[{"type":"summary_text","text":"Hm."}],"encrypted_content":"enc-3-0"},{"type":"message","id":"msg_00000000000000000003_001","status":"completed","role":"assistant","content":[{"type":"output_text","text":"Hello","annotations":[],"logprobs":[]}]},{"type":"function_call","id":"fc_00000000000000000003_002","status":"completed","call_id":"toolu_01","name":"Read","arguments":"{\"p\":1}"}],"parallel_tool_calls":true,"temperature":null,"tool_choice":"auto","tools":[],"top_p":null,"usage":{"input_tokens":9017,"input_tokens_details":{"cached_tokens":9000,"cache_write_tokens":5},"output_tokens":89,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":9106}}
            "#]],
        ),
    ] {
        let response = post(&server, path, &body_for(path, false)).await;
        assert_eq!(response.headers()["content-type"], "application/json");
        assert!(response.headers()["request-id"].to_str().expect("ascii").starts_with("req_"));
        let body = response.text().await.expect("a body");
        let body: Value = serde_json::from_str(&body).expect("JSON");
        expected.assert_eq(&format!("{body}\n"));
    }
}

#[tokio::test]
async fn a_call_without_arguments_has_one_empty_delta() {
    let server = answering(Reply::call("Read", Value::Null));
    let events = parsed(&stream(&server, MESSAGES).await);
    let deltas = events.iter().filter(|e| e["type"] == "content_block_delta");
    let deltas: Vec<&Value> = deltas.map(|e| &e["delta"]["partial_json"]).collect();
    assert_eq!(deltas, [&json!("")]);
}

#[tokio::test]
async fn stop_reasons_are_translated() {
    for (reason, chat, responses) in [
        ("end_turn", "stop", "response.completed"),
        ("max_tokens", "length", "response.incomplete"),
        ("refusal", "content_filter", "response.incomplete"),
    ] {
        let server = answering(Reply::say("x").stop(reason));
        let events = parsed(&stream(&server, MESSAGES).await);
        let delta = events.iter().find(|e| e["type"] == "message_delta");
        assert_eq!(delta.expect("a message_delta")["delta"]["stop_reason"], reason);
        let events = parsed(&stream(&server, CHAT).await);
        let finish = events.iter().find_map(|e| e["choices"][0]["finish_reason"].as_str());
        assert_eq!(finish, Some(chat));
        let events = parsed(&stream(&server, RESPONSES).await);
        assert_eq!(events.last().expect("events")["type"], responses);
    }
}

#[tokio::test]
async fn a_reply_can_come_from_another_model() {
    let reply = Reply { model: Some("fallback".to_owned()), ..Reply::say("x") };
    let server = answering(reply);
    let events = parsed(&stream(&server, MESSAGES).await);
    assert_eq!(events[0]["message"]["model"], "fallback");
}
