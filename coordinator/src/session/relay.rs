//! The coordinator of a session that has one agent alone (`run --solo`): it does not think. What people say is handed to
//! the agent, what the agent says at its end is said to them; by the same tools, the same FIFO and the same turns as
//! those of a coordinator that thinks, so that the same promises hold.

use async_trait::async_trait;
use futures::stream;
use query_engine::ports::{
    BlockKind, ClosedBlock, Model, ModelError, ModelErrorKind, ModelInfo, ModelRequest, ModelStream,
    StreamEvent,
};
use serde_json::json;
use swarm_protocol::{
    Block, MessageId, ToolUseId, Usage, WorkerId,
    message::Role,
    notification::{Notification, NotificationKind, NotificationStatus},
    record::StopReason,
    usage::Cost,
};

use super::{SessionHandle, model::SessionModel};

/// A model that is a rule.
pub(super) struct Relay {
    handle: SessionHandle,
}

impl Relay {
    pub(super) fn new(handle: SessionHandle) -> Self {
        Self { handle }
    }
}

/// What a request is about.
#[derive(Debug, Default, PartialEq)]
struct Waiting {
    request: u64,
    /// What the agent is called when it is started.
    title: String,
    /// The agent, once there is one.
    agent: Option<WorkerId>,
    /// What people said.
    messages: Vec<(MessageId, String)>,
    /// How runs of the agent ended.
    ends: Vec<Notification>,
}

impl Waiting {
    /// Of the request under way: it is recorded before it is sent.
    fn of(model: &SessionModel) -> Self {
        let mut waiting = Self {
            title: model.spec.title.clone(),
            agent: model.workers.first().map(|worker| worker.spec.id.clone()),
            ..Self::default()
        };
        let Some(in_flight) = &model.in_flight else { return waiting };
        waiting.request = in_flight.request;
        let is_new = |id: &MessageId| in_flight.messages.contains(id);
        let messages = model.waiting_messages.iter().filter(|message| is_new(&message.id));
        waiting.messages = messages.map(|message| (message.id, message.text.clone())).collect();
        let entries = in_flight.entries.iter().filter(|sent| sent.key.kind == NotificationKind::End);
        waiting.ends = entries
            .filter_map(|sent| model.fifo.iter().find(|entry| entry.notification.key == sent.key))
            .map(|entry| entry.notification.clone())
            .collect();
        waiting
    }

    /// The answer: what is said, and at most one call. Pure.
    fn answer(&self, results: &[(String, bool)]) -> (String, Option<Block>) {
        let mut words: Vec<String> = self.ends.iter().map(said).collect();
        let refused = results.iter().filter(|(_, is_error)| *is_error);
        words.extend(refused.map(|(text, _)| text.clone()));
        let text: Vec<&str> = self.messages.iter().map(|(_, text)| text.as_str()).collect();
        let text = text.join("\n\n");
        let Some((last, _)) = self.messages.last() else {
            if words.is_empty() {
                words.push("Handed over.".to_owned());
            }
            return (words.join("\n\n"), None);
        };
        let (name, input) = match &self.agent {
            None => {
                let input = json!({
                    "description": self.title, "prompt": text, "isolation": "none", "expects": "report"
                });
                ("Agent", input)
            }
            // Two that say the same are two.
            Some(agent) => ("SendMessage", json!({"to": agent, "message": text, "summary": last})),
        };
        let id: Result<ToolUseId, _> = format!("relay_{}", self.request).parse();
        let call = id.ok().map(|id| Block::ToolUse { id, name: name.to_owned(), input, provider_data: None });
        (words.join("\n\n"), call)
    }
}

/// The agent's own words; what the server knows better stands before them.
fn said(end: &Notification) -> String {
    let mut parts = Vec::new();
    if end.status != NotificationStatus::Completed {
        parts.push(format!("{}.", end.summary));
    }
    parts.extend(Some(end.result.clone()).filter(|result| !result.trim().is_empty()));
    if parts.is_empty() {
        parts.push("The agent ended without a word.".to_owned());
    }
    parts.join("\n\n")
}

/// Texts of the results since the last answer, and whether they are errors.
fn results(request: &ModelRequest) -> Vec<(String, bool)> {
    let since = request.messages.iter().rev().take_while(|message| message.role == Role::User);
    let blocks = since.flat_map(|message| &message.content);
    let result = |block: &Block| match block {
        Block::ToolResult { content, is_error, .. } => {
            let text: Vec<&str> = content.iter().filter_map(|part| part.as_text()).collect();
            Some((text.join("\n"), *is_error))
        }
        _ => None,
    };
    blocks.filter_map(result).collect()
}

#[async_trait]
impl Model for Relay {
    fn info(&self) -> ModelInfo {
        // No conversation of people fills it.
        ModelInfo { name: "relay".to_owned(), context_window: 1 << 40, max_output: 1 << 20, caches: false }
    }

    async fn stream(&self, request: &ModelRequest) -> Result<ModelStream, ModelError> {
        let waiting = self.handle.read(Waiting::of).await.map_err(|error| ModelError {
            kind: ModelErrorKind::Cancelled,
            message: error.to_string(),
            retry_after: None,
            status: None,
        })?;
        let (words, call) = waiting.answer(&results(request));
        let stop = if call.is_some() { StopReason::ToolUse } else { StopReason::EndTurn };
        let mut events = vec![StreamEvent::Started { model: "relay".to_owned() }];
        let text = Some(words).filter(|words| !words.is_empty()).map(Block::text);
        for (index, block) in text.into_iter().chain(call).enumerate() {
            let kind = match &block {
                Block::ToolUse { name, .. } => BlockKind::ToolUse { name: name.clone() },
                _ => BlockKind::Text,
            };
            events.push(StreamEvent::BlockStarted { index, kind });
            events.push(StreamEvent::BlockClosed { index, block: ClosedBlock::Valid(block) });
        }
        events.push(StreamEvent::Usage(Usage::default()));
        events.push(StreamEvent::Stopped(stop));
        Ok(Box::pin(stream::iter(events.into_iter().map(Ok))))
    }

    fn cost(&self, _: &str, _: &Usage) -> Cost {
        Cost::usd(0.0)
    }

    fn request_bytes(&self, _: &ModelRequest) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(texts: &[&str], agent: Option<&str>) -> Waiting {
        Waiting {
            request: 7,
            title: "Fix it".to_owned(),
            agent: agent.map(|id| id.parse().unwrap()),
            messages: texts
                .iter()
                .map(|text| (MessageId(uuid::Uuid::now_v7()), (*text).to_owned()))
                .collect(),
            ends: Vec::new(),
        }
    }

    fn call(answer: &(String, Option<Block>)) -> (&str, &serde_json::Value) {
        match &answer.1 {
            Some(Block::ToolUse { name, input, .. }) => (name, input),
            other => panic!("no call: {other:?}"),
        }
    }

    #[test]
    fn the_first_words_start_the_agent_and_later_ones_reach_it() {
        let first = waiting(&["<task-notification> is a word", "and more"], None).answer(&[]);
        let (name, input) = call(&first);
        assert_eq!((name, &input["prompt"]), ("Agent", &json!("<task-notification> is a word\n\nand more")));
        assert_eq!((&input["isolation"], &input["description"]), (&json!("none"), &json!("Fix it")));
        let later = waiting(&["again"], Some("agent-a1b")).answer(&[]);
        let (name, input) = call(&later);
        assert_eq!(
            (name, &input["to"], &input["message"]),
            ("SendMessage", &json!("agent-a1b"), &json!("again"))
        );
        assert_ne!(
            call(&waiting(&["again"], Some("agent-a1b")).answer(&[])).1,
            input,
            "said twice is two calls"
        );
    }

    #[test]
    fn what_was_refused_is_said_and_what_was_taken_needs_few_words() {
        let nothing = waiting(&[], Some("agent-a1b"));
        assert_eq!(nothing.answer(&[("{}".to_owned(), false)]), ("Handed over.".to_owned(), None));
        assert_eq!(nothing.answer(&[("No place.".to_owned(), true)]), ("No place.".to_owned(), None));
    }
}
