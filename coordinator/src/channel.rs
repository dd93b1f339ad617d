//! The remote channel of the permission desk (spec 5.3): each request that waits is told by a signed webhook, and
//! answered by a signed call that needs no token.
//!
//! A message has what a chat shows: a text and buttons, in Slack's or Telegram's form where those are wanted. What a
//! button stands for is a callback id; who runs the channel answers with it. An answer is signed over time, nonce and
//! body, counts once, and is bound to the arguments that the message showed.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use agent_host::{ChannelKind, ChannelSettings};
use serde::Serialize;
use serde_json::{Value, json};
use swarm_protocol::{
    PermissionRequestId, SessionId,
    event::Event,
    permission::{Decision, PermissionDecision, PermissionRequest, Scope},
};

use crate::{callback::Post, cli::text::visible, server::Shared, session::model::SessionModel};

/// How far the time of an answer may be from ours, in seconds.
const WINDOW_S: i64 = 300;

/// Answers that are remembered; each for twice the window. A channel that sends more is told to wait.
const MOST_NONCES: usize = 10_000;

/// Characters of a nonce.
const NONCE_CHARS: std::ops::RangeInclusive<usize> = 8..=128;

/// Characters of a command that a message shows; the dashboard shows the whole.
const TEXT_CHARS: usize = 1_500;

/// Why an answer of the channel is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AnswerError {
    /// No channel is configured.
    #[error("this server has no remote channel")]
    NoChannel,
    /// The header is missing or not of the form.
    #[error("the Swarm-Signature header is missing, or not `t=<unix>,v1=<hex>`")]
    NoSignature,
    /// It does not fit key, time, nonce and body.
    #[error("the signature is wrong")]
    WrongSignature,
    /// Too old, too new, or of before this server's start.
    #[error("the answer's time is not within five minutes of ours, or it is of before the server's start")]
    NotNow,
    /// The nonce is missing or not of the form.
    #[error("the Swarm-Nonce header is missing, or not 8 to 128 letters, digits and dashes")]
    NoNonce,
    /// The nonce was used already.
    #[error("this answer was given already")]
    Replayed,
    /// Too many answers.
    #[error("too many answers within ten minutes")]
    TooMany,
}

/// Nonces of answers, so that none counts twice. In memory: what was signed before this server's start is refused.
#[derive(Default)]
pub(crate) struct Nonces(Mutex<HashMap<String, i64>>);

impl Nonces {
    fn take(&self, nonce: &str, now: i64) -> Result<(), AnswerError> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|_, at| now - *at <= 2 * WINDOW_S);
        if seen.contains_key(nonce) {
            return Err(AnswerError::Replayed);
        }
        if seen.len() >= MOST_NONCES {
            return Err(AnswerError::TooMany);
        }
        seen.insert(nonce.to_owned(), now);
        Ok(())
    }
}

/// What is signed of a message or an answer.
fn signed_text(nonce: &str, body: &str) -> String {
    format!("{nonce}.{body}")
}

/// Lets an answer pass once, if the channel's key signed exactly this, lately.
pub(crate) fn admit(
    nonces: &Nonces,
    key: &str,
    started_at: i64,
    now: i64,
    (signature, nonce): (Option<&str>, Option<&str>),
    body: &str,
) -> Result<(), AnswerError> {
    let nonce = nonce.filter(|nonce| {
        NONCE_CHARS.contains(&nonce.len())
            && nonce.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    });
    let nonce = nonce.ok_or(AnswerError::NoNonce)?;
    let (unix, given) = signature.and_then(parse_signature).ok_or(AnswerError::NoSignature)?;
    if !crate::callback::is_signed(key, unix, &signed_text(nonce, body), &given) {
        return Err(AnswerError::WrongSignature);
    }
    if (now - unix).abs() > WINDOW_S || unix < started_at {
        return Err(AnswerError::NotNow);
    }
    nonces.take(nonce, now)
}

fn parse_signature(header: &str) -> Option<(i64, Vec<u8>)> {
    let (time, hex) = header.strip_prefix("t=")?.split_once(",v1=")?;
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    let bytes =
        (0..32).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16)).collect::<Result<_, _>>().ok()?;
    Some((time.parse().ok()?, bytes))
}

/// A button of a message.
#[derive(Serialize)]
struct Action {
    label: &'static str,
    /// `allow:once:req-3f2ab1cd`: what comes back from a chat.
    callback_id: String,
    decision: Decision,
    scope: Scope,
    /// Where the signed answer goes.
    url: String,
}

fn actions(request: &PermissionRequest, base: &str) -> Vec<Action> {
    let action = |label, decision, scope, words: &str| Action {
        label,
        callback_id: format!("{words}:{}", request.id),
        decision,
        scope,
        url: format!("{base}/api/v1/permissions/{}/answer", request.id),
    };
    let mut actions = vec![action("Allow once", Decision::Allow, Scope::Once, "allow:once")];
    if request.proposed_rule.is_some() {
        actions.push(action("Allow for this session", Decision::Allow, Scope::Session, "allow:session"));
    }
    actions.push(action("Deny", Decision::Deny, Scope::Once, "deny:once"));
    actions
}

fn text_of(model: &SessionModel, request: &PermissionRequest) -> String {
    let worker = model.worker(&request.worker_id).map(|worker| worker.spec.name.as_str()).unwrap_or_default();
    let command = request.input.get("command").and_then(Value::as_str).unwrap_or(&request.summary);
    // What cannot be seen must not hide anything.
    let shown: String = visible(command).chars().take(TEXT_CHARS).collect();
    let cut = if command.chars().count() > TEXT_CHARS { " [cut: see the dashboard]" } else { "" };
    // Whoever allows it for the session allows all that the rule covers.
    let rule = request.proposed_rule.as_deref().map(|rule| format!("\nFor this session: {}", visible(rule)));
    format!(
        "{} ({}) asks for {}: {shown}{cut}\n{}{}",
        visible(worker),
        request.worker_id,
        visible(&request.tool),
        visible(&request.why),
        rule.unwrap_or_default()
    )
}

/// The form a chat takes. Pure.
fn message(
    kind: ChannelKind,
    chat: Option<&str>,
    text: &str,
    actions: &[Action],
    mut fields: serde_json::Map<String, Value>,
) -> Value {
    fields.insert("text".to_owned(), text.into());
    fields.insert("actions".to_owned(), json!(actions));
    match kind {
        ChannelKind::Json => {}
        ChannelKind::Slack => {
            let buttons: Vec<Value> = actions
                .iter()
                .map(|action| {
                    json!({"type": "button", "text": {"type": "plain_text", "text": action.label},
                        "action_id": action.callback_id, "value": action.callback_id})
                })
                .collect();
            let mut blocks = vec![json!({"type": "section", "text": {"type": "plain_text", "text": text}})];
            if !buttons.is_empty() {
                blocks.push(json!({"type": "actions", "elements": buttons}));
            }
            fields.insert("blocks".to_owned(), blocks.into());
        }
        ChannelKind::Telegram => {
            let row: Vec<Value> = actions
                .iter()
                .map(|action| json!({"text": action.label, "callback_data": action.callback_id}))
                .collect();
            fields.insert("chat_id".to_owned(), chat.unwrap_or_default().into());
            if !row.is_empty() {
                fields.insert("reply_markup".to_owned(), json!({"inline_keyboard": [row]}));
            }
        }
    }
    Value::Object(fields)
}

fn fields(kind: &str, session: SessionId, id: &PermissionRequestId) -> serde_json::Map<String, Value> {
    let mut fields = serde_json::Map::new();
    fields.insert("kind".to_owned(), kind.into());
    fields.insert("session_id".to_owned(), json!(session));
    fields.insert("request_id".to_owned(), json!(id));
    fields
}

/// Tells the channel what an event means for it.
pub(crate) fn tell(shared: &Arc<Shared>, model: &SessionModel, event: &Event) {
    match event {
        Event::PermissionRequested { request } => ask(shared, model, request),
        Event::PermissionDecided { decision, .. } => decided(shared, model, decision),
        _ => {}
    }
}

/// Tells of a request that waits. After a restart of the server what is still open is told again.
pub(crate) fn ask(shared: &Arc<Shared>, model: &SessionModel, request: &PermissionRequest) {
    let Some(channel) = &shared.settings.channel else { return };
    let base = channel.answer_url.clone().unwrap_or_else(|| format!("http://{}", shared.address));
    let mut fields = fields("permission.requested", model.id, &request.id);
    fields.insert("request".to_owned(), json!(request));
    fields.insert("args_hash".to_owned(), request.args_hash.clone().into());
    let text = text_of(model, request);
    let body = message(channel.kind, channel.chat.as_deref(), &text, &actions(request, &base), fields);
    send(shared, channel, &request.id, &body);
}

fn decided(shared: &Arc<Shared>, model: &SessionModel, decision: &PermissionDecision) {
    let Some(channel) = &shared.settings.channel else { return };
    let mut fields = fields("permission.decided", model.id, &decision.id);
    fields.insert("decision".to_owned(), json!(decision));
    let word = match decision.decision {
        Decision::Allow => "allowed",
        Decision::Deny => "denied",
    };
    let text = format!("{} {word} by {}", decision.id, decision.by.as_str());
    send(shared, channel, &decision.id, &message(channel.kind, channel.chat.as_deref(), &text, &[], fields));
}

fn send(shared: &Arc<Shared>, channel: &ChannelSettings, id: &PermissionRequestId, body: &Value) {
    let post = Post {
        url: channel.url.clone(),
        key: shared.channel_key.clone(),
        id: id.to_string(),
        body: shared.masker.mask_json(&body.to_string()).into_owned(),
        signs_nonce: true,
    };
    let id = id.clone();
    shared.background(async move {
        // Not for longer than a request waits by default.
        if let Err(note) = post.deliver(&crate::callback::PAUSES[..4]).await {
            tracing::warn!(request.id = %id, note, "the remote channel could not be told");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000;

    fn sign(key: &str, unix: i64, nonce: &str, body: &str) -> String {
        crate::callback::signature(key, unix, &signed_text(nonce, body))
    }

    #[test]
    fn an_answer_is_admitted_once_and_only_as_it_was_signed() {
        let nonces = Nonces::default();
        let try_it = |signature: Option<&str>, nonce: Option<&str>, body: &str| {
            admit(&nonces, "k", NOW - 1_000, NOW, (signature, nonce), body)
        };
        let good = sign("k", NOW - WINDOW_S, "nonce-0001", "{}");
        for (signature, nonce, body, refused) in [
            (None, Some("nonce-0001"), "{}", AnswerError::NoSignature),
            (Some("v1=00"), Some("nonce-0001"), "{}", AnswerError::NoSignature),
            (Some("t=1,v1=zz"), Some("nonce-0001"), "{}", AnswerError::NoSignature),
            (Some(good.as_str()), None, "{}", AnswerError::NoNonce),
            (Some(good.as_str()), Some("short"), "{}", AnswerError::NoNonce),
            (Some(good.as_str()), Some("nonce with spaces"), "{}", AnswerError::NoNonce),
            (Some(good.as_str()), Some("nonce-0002"), "{}", AnswerError::WrongSignature),
            (Some(good.as_str()), Some("nonce-0001"), "{ }", AnswerError::WrongSignature),
            (
                Some(&sign("other", NOW, "nonce-0001", "{}")),
                Some("nonce-0001"),
                "{}",
                AnswerError::WrongSignature,
            ),
            (
                Some(&sign("k", NOW - WINDOW_S - 1, "nonce-0001", "{}")),
                Some("nonce-0001"),
                "{}",
                AnswerError::NotNow,
            ),
            (
                Some(&sign("k", NOW + WINDOW_S + 1, "nonce-0001", "{}")),
                Some("nonce-0001"),
                "{}",
                AnswerError::NotNow,
            ),
        ] {
            assert_eq!(try_it(signature, nonce, body), Err(refused), "{signature:?} {nonce:?} {body}");
        }
        assert_eq!(
            try_it(Some(&good), Some("nonce-0001"), "{}"),
            Ok(()),
            "what was refused used no nonce up"
        );
        assert_eq!(try_it(Some(&good), Some("nonce-0001"), "{}"), Err(AnswerError::Replayed));
        // The same nonce with a new time is the same answer.
        let again = sign("k", NOW, "nonce-0001", "{}");
        assert_eq!(try_it(Some(&again), Some("nonce-0001"), "{}"), Err(AnswerError::Replayed));
        let admit_at = |started| {
            admit(
                &nonces,
                "k",
                started,
                NOW,
                (Some(&sign("k", NOW - 1, "nonce-0003", "{}")), Some("nonce-0003")),
                "{}",
            )
        };
        assert_eq!(admit_at(NOW), Err(AnswerError::NotNow), "an earlier server may have taken it");
        assert_eq!(admit_at(NOW - 1), Ok(()));
    }

    #[test]
    fn nonces_are_kept_as_long_as_an_answer_could_come_again_and_are_bounded() {
        let nonces = Nonces::default();
        assert_eq!(nonces.take("a", NOW), Ok(()));
        assert_eq!(nonces.take("a", NOW + 2 * WINDOW_S), Err(AnswerError::Replayed));
        assert_eq!(nonces.take("a", NOW + 2 * WINDOW_S + 1), Ok(()));
        for n in 1..MOST_NONCES {
            assert_eq!(nonces.take(&n.to_string(), NOW + 2 * WINDOW_S + 1), Ok(()));
        }
        assert_eq!(nonces.take("one more", NOW + 2 * WINDOW_S + 1), Err(AnswerError::TooMany));
    }

    #[test]
    fn each_kind_of_chat_gets_its_own_buttons() {
        let actions = [Action {
            label: "Deny",
            callback_id: "deny:once:req-3f2".to_owned(),
            decision: Decision::Deny,
            scope: Scope::Once,
            url: "http://127.0.0.1:1/x".to_owned(),
        }];
        let made = |kind| message(kind, Some("42"), "words", &actions, serde_json::Map::new());
        let plain = made(ChannelKind::Json);
        assert_eq!(
            (&plain["text"], &plain["actions"][0]["url"]),
            (&json!("words"), &json!("http://127.0.0.1:1/x"))
        );
        assert_eq!(plain["blocks"], Value::Null);
        let slack = made(ChannelKind::Slack);
        assert_eq!(slack["blocks"][1]["elements"][0]["action_id"], "deny:once:req-3f2");
        let telegram = made(ChannelKind::Telegram);
        assert_eq!(telegram["chat_id"], "42");
        assert_eq!(telegram["reply_markup"]["inline_keyboard"][0][0]["callback_data"], "deny:once:req-3f2");
    }
}
