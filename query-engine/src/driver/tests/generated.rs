//! What holds for every history.

use proptest::prelude::*;

use super::*;
use crate::{
    context::{
        accounting::{UNCALIBRATED, estimate, message_bytes},
        autocompact::{self, History},
        microcompact::microcompact,
        snip::snip,
        view::api_messages,
    },
    testing::RecordingTranscript,
};

/// A step of a generated history.
#[derive(Clone, Debug)]
enum Happening {
    Person(String),
    Notification(String),
    Answer {
        text: String,
        thinks: bool,
        calls: u8,
        finished: u8,
        committed: bool,
        intent: bool,
        results: bool,
    },
    Interrupted,
}

fn happening() -> impl Strategy<Value = Happening> {
    let words = prop_oneof!["[a-z ]{0,40}", Just("\n ".to_owned()), "[a-z]{200,900}"];
    prop_oneof![
        2 => words.clone().prop_map(Happening::Person),
        1 => words.clone().prop_map(Happening::Notification),
        6 => (words, any::<bool>(), 0..4_u8, 0..4_u8, prop::bool::weighted(0.9), any::<bool>(), prop::bool::weighted(0.9))
            .prop_map(|(text, thinks, calls, finished, committed, intent, results)| Happening::Answer {
                text, thinks, calls, finished, committed, intent, results,
            }),
        1 => Just(Happening::Interrupted),
    ]
}

fn user(text: &str, origin: Origin) -> RecordBody {
    RecordBody::User { message: Message::user_text(text), origin, commands: Vec::new() }
}

/// The records of a history, as live processes and dead ones write them.
fn records(happenings: &[Happening]) -> Vec<RecordBody> {
    let mut records = vec![user("the first request", Origin::Prompt)];
    let mut request = 0;
    for (n, happening) in happenings.iter().enumerate() {
        match happening {
            Happening::Person(text) => records.push(user(text, Origin::Person { message_id: None })),
            Happening::Notification(text) => records.push(user(text, Origin::Notifications)),
            Happening::Interrupted => records.push(RecordBody::Tombstone { note: "x".to_owned() }),
            Happening::Answer { text, thinks, calls, finished, committed, intent, results } => {
                request += 1;
                records.push(RecordBody::RequestStarted {
                    request,
                    model: "test/model".to_owned(),
                    estimated_tokens: 1,
                });
                let mut blocks = Vec::new();
                if *thinks {
                    blocks.push(Block::Thinking { thinking: text.clone(), signature: "s".to_owned() });
                }
                blocks.push(Block::text(text));
                let ids: Vec<ToolUseId> = (0..*calls).map(|call| id(&format!("t{n}-{call}"))).collect();
                blocks.extend(ids.iter().map(|id| Block::ToolUse {
                    id: id.clone(),
                    name: "Bash".to_owned(),
                    input: json!({ "command": text }),
                    provider_data: None,
                }));
                if *intent && *calls > 0 {
                    records.push(RecordBody::Intent { request, blocks: blocks.clone() });
                }
                let result = |id: &ToolUseId| Block::tool_result(id.clone(), text.repeat(3), false);
                for id in ids.iter().take(usize::from(*finished)) {
                    records.push(RecordBody::ToolFinished(swarm_protocol::record::ToolFinished {
                        tool_use_id: id.clone(),
                        name: "Bash".to_owned(),
                        result: result(id),
                        duration_ms: 1,
                        effect: Default::default(),
                        seen: None,
                    }));
                }
                if !committed {
                    continue;
                }
                records.push(RecordBody::Assistant {
                    message: Message::assistant(blocks),
                    request,
                    model: "test/model".to_owned(),
                    stop_reason: StopReason::ToolUse,
                    usage: Usage { input_tokens: 10, output_tokens: 1, ..Usage::default() },
                    cost: swarm_protocol::usage::Cost::default(),
                    incomplete: false,
                });
                if *results && *calls > 0 {
                    records.push(RecordBody::User {
                        message: Message::user(ids.iter().map(result).collect()),
                        origin: Origin::ToolResults,
                        commands: Vec::new(),
                    });
                }
            }
        }
    }
    records
}

fn blocks(messages: &[Message]) -> Vec<(Role, Block)> {
    messages
        .iter()
        .flat_map(|message| message.content.iter().map(|block| (message.role, block.clone())))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_fold_keeps_every_invariant(happenings in prop::collection::vec(happening(), 0..12)) {
        let records = records(&happenings);
        let state = LoopState::fold(records.iter());
        prop_assert_eq!(&state, &LoopState::fold(records.iter()));
        prop_assert!(state.open.is_none());
        let view = api_messages(&state.messages, &state.asked, "test/model");
        check_messages(&view);
        prop_assert!(view[0].text().starts_with("the first request"));
        // A snapshot reads back as it was.
        let json = serde_json::to_string(&state).unwrap();
        prop_assert_eq!(&serde_json::from_str::<LoopState>(&json).unwrap(), &state);
        // Written or not, what closes a turn says the same.
        let next = user("next", Origin::Person { message_id: None });
        let unwritten = LoopState::fold(records.iter().chain([&next]));
        let written = LoopState::fold(records.iter().chain(&state.unsaved).chain([&next]));
        prop_assert_eq!(unwritten.messages, written.messages);
    }

    #[test]
    fn each_view_extends_the_one_before(happenings in prop::collection::vec(happening(), 0..10)) {
        let records = records(&happenings);
        let mut last: Vec<(Role, Block)> = Vec::new();
        let mut state = LoopState::default();
        for record in &records {
            state.apply(record);
            // A request leaves when the last message is the user's and nothing is open.
            if let RecordBody::RequestStarted { .. } = record {
                let sent = blocks(&api_messages(&state.messages, &state.asked, "test/model"));
                prop_assert_eq!(&sent[..last.len().min(sent.len())], &last[..]);
                last = sent;
            }
        }
    }

    #[test]
    fn clearing_results_keeps_every_invariant(happenings in prop::collection::vec(happening(), 1..40)) {
        let records = records(&happenings);
        let state = LoopState::fold(records.iter());
        let view = api_messages(&state.messages, &state.asked, "test/model");
        let last_turn = view.iter().rposition(|message| message.role == Role::Assistant).unwrap_or(0);
        let snipped = snip(&view).unwrap_or_else(|| view.clone());
        let done = microcompact(&snipped);
        prop_assert_eq!(&done, &microcompact(&snipped));
        let cleared = done.as_ref().map_or(&snipped, |done| &done.messages);
        check_messages(cleared);
        prop_assert!(message_bytes(cleared) <= message_bytes(&view));
        prop_assert!(estimate(cleared, UNCALIBRATED) <= estimate(&view, UNCALIBRATED));
        prop_assert!(cleared[0].text().starts_with("the first request"));
        // The same calls and words; only results change, and none that was not sent.
        prop_assert_eq!(&cleared[last_turn..], &view[last_turn..]);
        let without_results = |messages: &[Message]| -> Vec<(Role, Block)> {
            blocks(messages).into_iter().filter(|(_, block)| !matches!(block, Block::ToolResult { .. })).collect()
        };
        prop_assert_eq!(without_results(cleared), without_results(&view));
        // Once done there is nothing left to do, and every original is there.
        prop_assert_eq!(snip(cleared).and_then(|again| microcompact(&again)), None);
        prop_assert_eq!(microcompact(cleared), None);
        for (id, content) in done.iter().flat_map(|done| &done.originals) {
            let is_original = |block: &Block| match block {
                Block::ToolResult { tool_use_id, content: original, .. } => {
                    tool_use_id == id && original == content
                }
                _ => false,
            };
            prop_assert!(view.iter().flat_map(|message| &message.content).any(is_original));
        }
    }

    #[test]
    fn compaction_keeps_every_invariant(
        happenings in prop::collection::vec(happening(), 1..16),
        window in 500..40_000_u64,
        left_out in 0..4_u32,
    ) {
        let records = records(&happenings);
        let state = LoopState::fold(records.iter());
        let view = api_messages(&state.messages, &state.asked, "test/model");
        check_messages(&autocompact::summary_request(&view, left_out));
        prop_assert!(autocompact::summary_request(&view, left_out).len() <= view.len() + 1);
        if !view.iter().any(|message| message.role == Role::Assistant) {
            return Ok(());
        }
        let history = History {
            messages: &view,
            first: state.first.as_ref(),
            person: &state.person,
            attachments: &[],
            window,
            scale: UNCALIBRATED,
        };
        let compacted = autocompact::compact(&history, "summary");
        prop_assert_eq!(&compacted, &autocompact::compact(&history, "summary"));
        check_messages(&compacted.messages);
        prop_assert!(compacted.messages[0].text().starts_with("the first request"));
        prop_assert_eq!(blocks(&compacted.messages).iter().filter(|(_, block)| matches!(block, Block::Thinking { .. })).count(), 0);
        // What is not smaller is refused.
        let (before, after) = (estimate(&view, UNCALIBRATED), estimate(&compacted.messages, UNCALIBRATED));
        if autocompact::saves_enough(before, after) {
            prop_assert!(after <= before);
        }
        // The view of what a boundary leaves is what it leaves.
        prop_assert_eq!(
            api_messages(&compacted.messages, &Default::default(), "test/model"),
            compacted.messages
        );
    }
}

#[test]
fn a_transcript_renders_its_shape() {
    assert_eq!(RecordingTranscript::default().shape(), "");
}
