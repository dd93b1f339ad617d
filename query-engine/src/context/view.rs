//! What a provider is sent of a conversation: a pure view, so that what is stored never changes.
//!
//! The view alternates roles, answers each call exactly once in the message after it (I1), holds no empty
//! content, and extends: the view of a longer history begins with the view of the shorter one.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use swarm_protocol::{Block, Message, ResultBlock, Role, ToolUseId};

use crate::state::OUTCOME_UNKNOWN;

/// The messages as they are sent to `model`. `asked` names the model of each assistant message; thinking
/// goes back to that model only.
pub fn api_messages(messages: &[Message], asked: &BTreeMap<usize, String>, model: &str) -> Vec<Message> {
    let mut view = View::default();
    view.grow(messages, asked, model, 0);
    view.messages.into_iter().map(Arc::unwrap_or_clone).collect()
}

/// The view of a conversation that grows: messages that cannot change any more are not made again, so that
/// a turn costs what it adds and not what was said before (spec 10.5).
#[derive(Debug, Default)]
pub struct View {
    messages: Vec<Arc<Message>>,
    /// The model it is for.
    model: String,
    /// How often the conversation had been rewritten.
    rewrites: u32,
    /// Stored messages taken in so far.
    taken: usize,
    /// A stored assistant message that begins a message of the view, and the view's length before it. What is
    /// before them stays; from there on it is made again.
    resume: Option<(usize, usize)>,
}

impl View {
    /// The messages as they are sent to `model`: those of [`api_messages`]. `rewrites` is another number
    /// whenever what was stored before was replaced.
    pub fn grow(
        &mut self,
        messages: &[Message],
        asked: &BTreeMap<usize, String>,
        model: &str,
        rewrites: u32,
    ) -> &[Arc<Message>] {
        let from = self.cut_back(messages, model, rewrites);
        let fresh = &messages[from..];
        let stored = results_by_call(fresh);
        for (index, message) in fresh.iter().enumerate() {
            match message.role {
                Role::Assistant => {
                    let foreign = asked.get(&(from + index)).is_some_and(|asked| asked != model);
                    let content = assistant_content(message, foreign);
                    let calls: Vec<ToolUseId> = calls_of(&content).cloned().collect();
                    let length = self.messages.len();
                    self.push(Role::Assistant, content);
                    if length > 0 && self.messages.len() > length {
                        self.resume = Some((from + index, length));
                    }
                    let results = calls.into_iter().map(|id| result_for(id, fresh, index, &stored)).collect();
                    self.push(Role::User, results);
                }
                Role::User => self.push(Role::User, message.content.iter().filter_map(user_block).collect()),
            }
        }
        self.taken = messages.len();
        &self.messages
    }

    /// Drops what is to be made again; answers with the first stored message of it.
    fn cut_back(&mut self, messages: &[Message], model: &str, rewrites: u32) -> usize {
        let is_same = self.model == model && self.rewrites == rewrites && self.taken <= messages.len();
        match self.resume {
            Some((from, length)) if is_same && answers_itself(&messages[from..]) => {
                self.messages.truncate(length);
                from
            }
            Some(_) | None => {
                *self = Self { model: model.to_owned(), rewrites, ..Self::default() };
                0
            }
        }
    }

    fn push(&mut self, role: Role, content: Vec<Block>) {
        if content.is_empty() {
            return;
        }
        match self.messages.last_mut() {
            Some(last) if last.role == role => Arc::make_mut(last).content.extend(content),
            None if role == Role::Assistant => {
                self.messages.push(Arc::new(Message::user_text("(the conversation goes on)")));
                self.messages.push(Arc::new(Message { role, content }));
            }
            Some(_) | None => self.messages.push(Arc::new(Message { role, content })),
        }
    }
}

/// Whether each result belongs to a call in a message before it, so that no earlier message gets one.
fn answers_itself(messages: &[Message]) -> bool {
    let mut called = HashSet::new();
    for message in messages {
        let is_own = |block: &Block| match block {
            Block::ToolResult { tool_use_id, .. } => called.contains(tool_use_id),
            _ => true,
        };
        if !message.content.iter().all(is_own) {
            return false;
        }
        if message.role == Role::Assistant {
            called.extend(calls_of(&message.content));
        }
    }
    true
}

fn calls_of(content: &[Block]) -> impl Iterator<Item = &ToolUseId> {
    content.iter().filter_map(|block| match block {
        Block::ToolUse { id, .. } => Some(id),
        _ => None,
    })
}

/// Stored results by call, each with the index of its message.
type Results<'a> = HashMap<&'a ToolUseId, Vec<(usize, &'a Block)>>;

/// Whether the view ends with the user's words or results: whether there is something to answer.
pub fn awaits_answer(messages: &[Message]) -> bool {
    for message in messages.iter().rev() {
        match message.role {
            Role::User => {
                if message.content.iter().any(|block| user_block(block).is_some()) {
                    return true;
                }
            }
            Role::Assistant => {
                if message.tool_uses().next().is_some() {
                    return true;
                }
                if !assistant_content(message, false).is_empty() {
                    return false;
                }
            }
        }
    }
    false
}

/// What is sent of an assistant message. One of thinking alone says nothing and is left out.
fn assistant_content(message: &Message, foreign: bool) -> Vec<Block> {
    let mut seen = HashSet::new();
    let mut says_something = false;
    let mut content = Vec::with_capacity(message.content.len());
    for block in &message.content {
        match block {
            Block::Text { text } if text.trim().is_empty() => {}
            Block::Text { .. } | Block::Opaque { .. } => {
                says_something = true;
                content.push(block.clone());
            }
            Block::Thinking { .. } | Block::RedactedThinking { .. } => {
                if !foreign {
                    content.push(block.clone());
                }
            }
            Block::ToolUse { id, name, input, provider_data } => {
                if seen.insert(id.clone()) {
                    says_something = true;
                    content.push(Block::ToolUse {
                        id: id.clone(),
                        name: sendable_name(name),
                        input: sendable_input(input),
                        provider_data: provider_data.clone(),
                    });
                }
            }
            Block::ToolResult { .. } | Block::Image { .. } => {}
        }
    }
    if says_something { content } else { Vec::new() }
}

/// Providers refuse a history with a name outside `[a-zA-Z0-9_-]{1,64}`, whoever wrote it.
fn sendable_name(name: &str) -> String {
    let fits = |character: char| character.is_ascii_alphanumeric() || character == '_' || character == '-';
    if !name.is_empty() && name.len() <= 64 && name.chars().all(fits) {
        return name.to_owned();
    }
    let name: String =
        name.chars().take(64).map(|character| if fits(character) { character } else { '_' }).collect();
    if name.is_empty() { "_".to_owned() } else { name }
}

/// Arguments are an object, whatever an older transcript holds (S13).
fn sendable_input(input: &serde_json::Value) -> serde_json::Value {
    if input.is_object() { input.clone() } else { serde_json::json!({ "INVALID_JSON": input }) }
}

/// What is sent of a user message besides results, which go out with their call.
fn user_block(block: &Block) -> Option<Block> {
    match block {
        Block::Text { text } if text.trim().is_empty() => None,
        Block::Text { .. } | Block::Image { .. } | Block::Opaque { .. } => Some(block.clone()),
        Block::ToolResult { .. }
        | Block::ToolUse { .. }
        | Block::Thinking { .. }
        | Block::RedactedThinking { .. } => None,
    }
}

/// Results by call, with the messages they stand in: the place of each is only looked up where the message
/// after the call does not hold it.
fn results_by_call(messages: &[Message]) -> Results<'_> {
    let mut results: Results<'_> = HashMap::new();
    for (index, message) in messages.iter().enumerate() {
        for block in &message.content {
            if let Block::ToolResult { tool_use_id, .. } = block {
                results.entry(tool_use_id).or_default().push((index, block));
            }
        }
    }
    results
}

/// The result of a call in the message `index`: the first one after it that belongs to no later call of
/// the same id.
fn result_for(id: ToolUseId, messages: &[Message], index: usize, results: &Results<'_>) -> Block {
    let next_same_call = || {
        messages
            .iter()
            .enumerate()
            .skip(index + 1)
            .find(|(_, message)| {
                message.role == Role::Assistant && message.tool_uses().any(|(other, _, _)| *other == id)
            })
            .map_or(messages.len(), |(at, _)| at)
    };
    let found = results
        .get(&id)
        .and_then(|places| places.iter().find(|(at, _)| *at > index))
        .filter(|(at, _)| *at == index + 1 || *at < next_same_call());
    match found {
        Some((_, Block::ToolResult { content, is_error, .. })) => {
            Block::ToolResult { tool_use_id: id, content: sendable_result(content), is_error: *is_error }
        }
        Some(_) | None => Block::tool_result(id, OUTCOME_UNKNOWN, true),
    }
}

fn sendable_result(content: &[ResultBlock]) -> Vec<ResultBlock> {
    let mut parts: Vec<ResultBlock> = content.iter().filter(|part| !part.is_blank()).cloned().collect();
    if parts.is_empty() {
        parts.push(ResultBlock::text(""));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{id, render};
    use proptest::prelude::*;
    use serde_json::json;

    /// A message of a history that may be damaged in every way.
    fn message() -> impl Strategy<Value = Message> {
        let block = prop_oneof![
            prop_oneof![Just(" "), Just("a"), Just("b")].prop_map(Block::text),
            Just(Block::Thinking { thinking: "hm".to_owned(), signature: "s".to_owned() }),
            (0..4_u8).prop_map(|n| Block::ToolUse {
                id: id(&format!("t{n}")),
                name: "Read".to_owned(),
                input: json!({}),
                provider_data: None,
            }),
            (0..4_u8, "[a-z]?").prop_map(|(n, text)| Block::tool_result(id(&format!("t{n}")), text, false)),
        ];
        (any::<bool>(), prop::collection::vec(block, 0..4)).prop_map(|(is_user, content)| Message {
            role: if is_user { Role::User } else { Role::Assistant },
            content,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_view_that_grew_is_the_view_of_the_whole(
            messages in prop::collection::vec(message(), 0..12),
            steps in prop::collection::vec(1..4_usize, 12),
            foreign in any::<bool>(),
        ) {
            let asked = BTreeMap::from([(usize::from(foreign), "other".to_owned())]);
            let (mut view, mut end) = (View::default(), 0);
            for step in steps {
                end = (end + step).min(messages.len());
                let grown: Vec<Message> =
                    view.grow(&messages[..end], &asked, "m", 0).iter().map(|message| (**message).clone()).collect();
                prop_assert_eq!(grown, api_messages(&messages[..end], &asked, "m"));
            }
        }
    }

    #[test]
    fn what_was_sent_is_the_same_message_and_a_rewritten_history_is_another() {
        let turn = |n: u32| {
            let call = Block::ToolUse {
                id: id(&format!("t{n}")),
                name: "Read".to_owned(),
                input: json!({}),
                provider_data: None,
            };
            let result = Block::tool_result(id(&format!("t{n}")), "ok", false);
            [Message::assistant(vec![call]), Message::user(vec![result])]
        };
        let mut messages = vec![Message::user_text("a")];
        let mut view = View::default();
        messages.extend(turn(1));
        messages.extend(turn(2));
        let before = view.grow(&messages, &BTreeMap::new(), "m", 0).to_vec();
        messages.extend(turn(3));
        let after = view.grow(&messages, &BTreeMap::new(), "m", 0).to_vec();
        assert!(before[..3].iter().zip(&after).all(|(before, after)| Arc::ptr_eq(before, after)));
        assert_eq!(before, after[..5]);
        messages[0] = Message::user_text("b");
        assert_eq!(view.grow(&messages, &BTreeMap::new(), "m", 0)[0].text(), "a", "the number tells");
        assert_eq!(view.grow(&messages, &BTreeMap::new(), "m", 1)[0].text(), "b");
    }

    fn check(messages: &[Message], expected: &str) {
        assert_eq!(render(&api_messages(messages, &BTreeMap::new(), "m")), expected);
    }

    fn call(input: serde_json::Value) -> Block {
        Block::ToolUse { id: id("t1"), name: "Read".to_owned(), input, provider_data: None }
    }

    #[test]
    fn s13_arguments_that_are_no_object_become_one() {
        let messages = [Message::user_text("a"), Message::assistant(vec![call(json!("{\"a\":"))])];
        let view = api_messages(&messages, &BTreeMap::new(), "m");
        let (_, _, input) = view[1].tool_uses().next().unwrap();
        assert_eq!(*input, json!({ "INVALID_JSON": "{\"a\":" }));
    }

    #[test]
    fn one_id_in_two_turns_is_answered_in_each() {
        let messages = [
            Message::user_text("a"),
            Message::assistant(vec![call(json!({"n": 1}))]),
            Message::assistant(vec![call(json!({"n": 2}))]),
            Message::user(vec![Block::tool_result(id("t1"), "second", false)]),
        ];
        check(
            &messages,
            &format!(
                "user: a\nassistant calls t1: Read {{\"n\":1}}\nuser answers t1 failed: {OUTCOME_UNKNOWN}\n\
                 assistant calls t1: Read {{\"n\":2}}\nuser answers t1: second"
            ),
        );
    }

    #[test]
    fn thinking_goes_to_its_own_model_only() {
        let thinking = Block::Thinking { thinking: "hm".to_owned(), signature: "s".to_owned() };
        let messages = [Message::user_text("a"), Message::assistant(vec![thinking, Block::text("b")])];
        let asked = BTreeMap::from([(1, "m".to_owned())]);
        assert_eq!(
            render(&api_messages(&messages, &asked, "m")),
            "user: a\nassistant thinks: hm\nassistant: b"
        );
        assert_eq!(render(&api_messages(&messages, &asked, "other")), "user: a\nassistant: b");
    }

    #[test]
    fn what_awaits_an_answer() {
        let user = || Message::user_text("a");
        assert!(!awaits_answer(&[]));
        assert!(awaits_answer(&[user()]));
        assert!(!awaits_answer(&[user(), Message::assistant(vec![Block::text("b")])]));
        assert!(awaits_answer(&[user(), Message::assistant(vec![Block::text(" ")])]));
        assert!(awaits_answer(&[user(), Message::assistant(vec![call(json!({}))])]));
        assert!(!awaits_answer(&[
            user(),
            Message::assistant(vec![Block::text("b")]),
            Message::user_text(" ")
        ]));
    }
}
