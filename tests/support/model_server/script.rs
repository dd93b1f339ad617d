//! Who gets which reply: an ordered list of rules. The first rule that matches and is not used up answers.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

use super::{
    record::{Api, RecordedRequest},
    reply::Reply,
};

/// All named conditions must hold; an empty matcher matches every request.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Matcher {
    pub api: Option<Api>,
    pub model: Option<String>,
    pub system_contains: Option<String>,
    /// The first user message contains this: which agent asks.
    pub agent: Option<String>,
    /// Any user message contains this.
    pub user_contains: Option<String>,
    /// The last user message contains this.
    pub last_user_contains: Option<String>,
    /// A tool result in the last user message contains this.
    pub tool_result_contains: Option<String>,
    pub messages: Option<usize>,
    /// Number of assistant messages in the history: 0 is an agent's first turn, retried or not.
    pub turn: Option<usize>,
    /// Number of requests of this agent before this one; retries count.
    pub nth: Option<usize>,
    pub has_tool: Option<String>,
    pub lacks_tool: Option<String>,
}

/// Starts a matcher: `when().agent("fix the login").turn(0)`.
pub fn when() -> Matcher {
    Matcher::default()
}

impl Matcher {
    pub fn api(mut self, api: Api) -> Self {
        self.api = Some(api);
        self
    }

    pub fn model(mut self, name: &str) -> Self {
        self.model = Some(name.to_owned());
        self
    }

    pub fn system_contains(mut self, text: &str) -> Self {
        self.system_contains = Some(text.to_owned());
        self
    }

    pub fn agent(mut self, text: &str) -> Self {
        self.agent = Some(text.to_owned());
        self
    }

    pub fn user_contains(mut self, text: &str) -> Self {
        self.user_contains = Some(text.to_owned());
        self
    }

    pub fn last_user_contains(mut self, text: &str) -> Self {
        self.last_user_contains = Some(text.to_owned());
        self
    }

    pub fn tool_result_contains(mut self, text: &str) -> Self {
        self.tool_result_contains = Some(text.to_owned());
        self
    }

    pub fn messages(mut self, count: usize) -> Self {
        self.messages = Some(count);
        self
    }

    pub fn turn(mut self, turn: usize) -> Self {
        self.turn = Some(turn);
        self
    }

    pub fn nth(mut self, nth: usize) -> Self {
        self.nth = Some(nth);
        self
    }

    pub fn has_tool(mut self, name: &str) -> Self {
        self.has_tool = Some(name.to_owned());
        self
    }

    pub fn lacks_tool(mut self, name: &str) -> Self {
        self.lacks_tool = Some(name.to_owned());
        self
    }

    pub fn matches(&self, request: &RecordedRequest) -> bool {
        let Self {
            api,
            model,
            system_contains,
            agent,
            user_contains,
            last_user_contains,
            tool_result_contains,
            messages,
            turn,
            nth,
            has_tool,
            lacks_tool,
        } = self;
        let has = |name: &String| request.tools.contains(name);
        let in_results = |text: &String| {
            let results = request.last_tool_results();
            results.iter().any(|(_, result, _)| result.contains(text))
        };
        api.is_none_or(|api| api == request.api)
            && holds(model, |model| *model == request.model)
            && holds(system_contains, |text| request.system.contains(text))
            && holds(agent, |text| request.agent_key.contains(text))
            && holds(user_contains, |text| request.any_user_text_contains(text))
            && holds(last_user_contains, |text| request.last_user_text().contains(text))
            && holds(tool_result_contains, in_results)
            && messages.is_none_or(|count| count == request.messages.len())
            && turn.is_none_or(|turn| turn == request.turn())
            && nth.is_none_or(|nth| nth == request.nth)
            && holds(has_tool, has)
            && holds(lacks_tool, |name| !has(name))
    }
}

fn holds(condition: &Option<String>, test: impl FnOnce(&String) -> bool) -> bool {
    condition.as_ref().is_none_or(test)
}

/// A rule of a script file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    #[serde(default)]
    pub when: Matcher,
    /// How often it may answer; left out: for ever.
    #[serde(default)]
    pub times: Option<usize>,
    /// A reply, or just its text.
    #[serde(deserialize_with = "reply_or_text")]
    pub reply: Reply,
}

/// A script file: `{"rules": [{"when": {"agent": "…"}, "times": 1, "reply": {"parts": [{"text": "…"}]}}]}`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    pub rules: Vec<Rule>,
    /// The context window in tokens; a longer prompt is refused.
    #[serde(default)]
    pub window: Option<u64>,
}

fn reply_or_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Reply, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::String(text) => Ok(Reply::say(text)),
        object => serde_json::from_value(object).map_err(D::Error::custom),
    }
}

type Responder = dyn Fn(&RecordedRequest) -> Option<Reply> + Send + Sync;

enum Answer {
    Reply(Box<(Matcher, Reply)>),
    Closure(Arc<Responder>),
}

struct Entry {
    remaining: Option<usize>,
    answer: Answer,
}

/// The rules in force.
#[derive(Default)]
pub(crate) struct Rules(Vec<Entry>);

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rules", self.0.len())
    }
}

impl Rules {
    pub(crate) fn push(&mut self, rule: Rule) {
        self.0
            .push(Entry { remaining: rule.times, answer: Answer::Reply(Box::new((rule.when, rule.reply))) });
    }

    pub(crate) fn push_closure(&mut self, responder: Arc<Responder>) {
        self.0.push(Entry { remaining: None, answer: Answer::Closure(responder) });
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn answer(&mut self, request: &RecordedRequest) -> Option<Reply> {
        for entry in &mut self.0 {
            if entry.remaining == Some(0) {
                continue;
            }
            let reply = match &entry.answer {
                Answer::Reply(rule) => {
                    let (when, reply) = &**rule;
                    when.matches(request).then(|| reply.clone())
                }
                Answer::Closure(responder) => responder(request),
            };
            if let Some(reply) = reply {
                if let Some(remaining) = &mut entry.remaining {
                    *remaining -= 1;
                }
                return Some(reply);
            }
        }
        None
    }
}
