//! The prefix rule: each request of a conversation extends the one before, save at a declared break.
//!
//! Requests carry no name of their conversation, so it is found by content. Compared is a flat list of blocks
//! (role and JSON, without `cache_control`), under a header (tools, system, and the fields that providers hash into
//! their cache). Requests to different models never meet: a cache belongs to one model.
//!
//! ```text
//!   request R, against the requests known for its model
//!     = a live tip (the newest request of some conversation)
//!                                   a retry if that one failed, else a second agent with the same start
//!     = a live tip + more           goes on; + user blocks only: also a fork (a helper, a keepalive), the tip stays
//!     no assistant block in it      a new conversation
//!     = a tip + more, other header  VIOLATION: tools, system, … changed
//!     leaves what is known, and only user blocks follow
//!                                   a fork, unless it answers a call anew whose other answer was built upon
//!     leaves what is known, and assistant blocks follow
//!                                   VIOLATION: a block has changed
//!     nothing in common             a history from elsewhere, unless it holds calls or thinking of ours: VIOLATION
//! ```
//!
//! When in doubt the rule lets pass: a false alarm would teach people to ignore it.

mod flat;

use std::collections::HashSet;

pub(crate) use self::flat::{Flat, flatten};
use self::flat::{Header, Sent};
use super::record::{Block, RecordedRequest, Role};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    InFlight,
    Answered,
    Failed,
}

#[derive(Debug)]
struct Known {
    id: u64,
    model: String,
    has_tools: bool,
    first_text: String,
    flat: Flat,
    state: State,
    /// The newest request of its conversation.
    live: bool,
}

#[derive(Debug)]
struct Break {
    conversation: Option<String>,
    remaining: Option<usize>,
}

#[derive(Debug, Default)]
pub(crate) struct Prefixes {
    known: Vec<Known>,
    /// Ids of calls and signatures of thinking that this server handed out, each with its model.
    issued: HashSet<(String, String)>,
    breaks: Vec<Break>,
}

impl Prefixes {
    /// The next change of a conversation whose user text contains this is no violation.
    pub(crate) fn declare_break(&mut self, conversation: Option<String>, times: Option<usize>) {
        self.breaks.push(Break { conversation, remaining: times });
    }

    pub(crate) fn issue(&mut self, model: &str, id: &str) {
        self.issued.insert((model.to_owned(), id.to_owned()));
    }

    /// How the answer to request `id` ended: a tip whose answer never came is taken over by the next request.
    pub(crate) fn ended(&mut self, id: u64, delivered: bool) {
        let known = self.known.iter_mut().filter(|known| known.id == id);
        for known in known {
            known.state = if delivered { State::Answered } else { State::Failed };
        }
    }

    /// Takes note of a request.
    ///
    /// # Errors
    /// When it breaks the rule; says where. The request is then not part of what is known.
    pub(crate) fn check(&mut self, request: &RecordedRequest, flat: Flat) -> Result<(), String> {
        if request.only_reads() {
            return Ok(());
        }
        if let Err(violation) = self.place(request, &flat) {
            let related = violation.related;
            if !self.is_declared(request, related) {
                return Err(violation.text);
            }
            if let Some(at) = related {
                self.known[at].live = false;
            }
        }
        self.known.push(Known {
            id: request.id,
            model: request.model.clone(),
            has_tools: !request.tools.is_empty(),
            first_text: request.agent_key.clone(),
            flat,
            state: State::InFlight,
            live: true,
        });
        Ok(())
    }

    /// Finds where the request belongs, and retires the tip that it takes over.
    fn place(&mut self, request: &RecordedRequest, flat: &Flat) -> Result<(), Violation> {
        let ours = |known: &Known| known.model == request.model;
        let same = |known: &Known| ours(known) && known.flat.header == flat.header;
        let blocks = &flat.blocks;

        // Repeats: a failed tip first, for then it is a retry for certain.
        let repeats = |known: &Known| known.live && same(known) && known.flat.blocks == *blocks;
        let failed = |known: &Known| known.state == State::Failed;
        if let Some(tip) = self.known.iter_mut().find(|known| repeats(known) && failed(known)) {
            tip.live = false;
            return Ok(());
        }
        if self.known.iter().any(repeats) {
            return Ok(());
        }

        // Extensions of the longest tip.
        let tips = self
            .known
            .iter()
            .enumerate()
            .filter(|(_, known)| known.live && same(known) && blocks.starts_with(&known.flat.blocks));
        if let Some((at, length)) =
            tips.map(|(at, tip)| (at, tip.flat.blocks.len())).max_by_key(|(_, length)| *length)
        {
            let goes_on = has_assistant(&blocks[length..]);
            if goes_on || self.known[at].state == State::Failed {
                self.known[at].live = false;
            }
            return Ok(());
        }

        if !has_assistant(blocks) {
            return Ok(());
        }

        // The same blocks under another header. A helper without tools has its own.
        let changed_header = self.known.iter().enumerate().rev().find(|(_, known)| {
            known.live
                && ours(known)
                && blocks.starts_with(&known.flat.blocks)
                && known.has_tools != request.tools.is_empty()
        });
        if let Some((at, known)) = changed_header {
            let parts = differences(&known.flat.header, &flat.header).join(", ");
            let text = format!("{parts} changed since request {}", known.id);
            return Err(Violation { text, related: Some(at) });
        }

        self.place_divergence(request, blocks, same)
    }

    /// The request leaves what is known somewhere, perhaps at once.
    fn place_divergence(
        &self,
        request: &RecordedRequest,
        blocks: &[Sent],
        same: impl Fn(&Known) -> bool,
    ) -> Result<(), Violation> {
        let relatives = self.known.iter().enumerate().filter(|(_, known)| same(known));
        let nearest = relatives
            .map(|(at, known)| (at, common(&known.flat.blocks, blocks)))
            .max_by_key(|(at, common)| (*common, *at));
        let (at, shared) = nearest.unwrap_or((0, 0));
        if shared == 0 {
            return self.place_stranger(request, None);
        }
        let siblings =
            self.known.iter().filter(|known| same(known) && common(&known.flat.blocks, blocks) == shared);
        let siblings: Vec<&Known> = siblings.collect();
        let nearest = &self.known[at];
        if shared == blocks.len() {
            // All of it is known already. Was it a request, long since passed?
            return match siblings.iter().find(|known| known.flat.blocks.len() == shared) {
                None => Ok(()),
                Some(old) => Err(Violation {
                    text: format!(
                        "the history ends where request {} did, but request {} had gone on from there",
                        old.id, nearest.id
                    ),
                    related: Some(at),
                }),
            };
        }
        let changed = |known: &Known| Violation {
            text: format!(
                "block {shared} changed: request {} had {}, now it is {}",
                known.id,
                known.flat.blocks.get(shared).map_or("nothing", |block| &block.shown),
                blocks[shared].shown,
            ),
            related: Some(at),
        };
        let rest = &blocks[shared..];
        if !has_assistant(rest) {
            let answers = |known: &&&Known| {
                let there = known.flat.blocks.get(shared);
                rest[0].answers.is_some() && there.is_some_and(|b| b.answers == rest[0].answers)
            };
            let built_upon = |known: &&&Known| !known.live || known.state == State::Failed;
            return match siblings.iter().filter(answers).find(built_upon) {
                Some(known) => Err(changed(known)),
                None => Ok(()),
            };
        }
        let was_asked = siblings.iter().any(|known| known.flat.blocks.len() == shared);
        if has_assistant(&blocks[..shared]) || was_asked {
            let mut newest_first = siblings.iter().rev();
            let longer = newest_first.find(|known| known.flat.blocks.len() > shared);
            return Err(changed(longer.unwrap_or(&nearest)));
        }
        self.place_stranger(request, Some(changed(nearest)))
    }

    /// A history that nobody here has seen: from elsewhere, unless it holds calls or thinking of ours.
    fn place_stranger(&self, request: &RecordedRequest, changed: Option<Violation>) -> Result<(), Violation> {
        let model = &request.model;
        let issued = |id: &str| self.issued.contains(&(model.clone(), id.to_owned()));
        let blocks = request.messages.iter().flat_map(|message| &message.blocks);
        let mut marks = blocks.filter_map(|block| match block {
            Block::ToolUse { id, .. } => Some(id),
            Block::Thinking { signature, .. } => Some(signature),
            _ => None,
        });
        match marks.find(|mark| issued(mark)) {
            Some(mark) if !request.tools.is_empty() => Err(changed.unwrap_or(Violation {
                text: format!(
                    "the first block changed: `{mark}` was issued here, but no request began like this one"
                ),
                related: None,
            })),
            _ => Ok(()),
        }
    }

    fn is_declared(&mut self, request: &RecordedRequest, related: Option<usize>) -> bool {
        let first_text = related.map(|at| self.known[at].first_text.as_str());
        let declared = self.breaks.iter_mut().find(|one| {
            one.remaining != Some(0)
                && one.conversation.as_ref().is_none_or(|text| {
                    request.any_user_text_contains(text)
                        || first_text.is_some_and(|first| first.contains(text))
                })
        });
        let Some(declared) = declared else { return false };
        if let Some(remaining) = &mut declared.remaining {
            *remaining -= 1;
        }
        true
    }
}

struct Violation {
    text: String,
    /// The known request it was measured against.
    related: Option<usize>,
}

fn has_assistant(blocks: &[Sent]) -> bool {
    blocks.iter().any(|block| block.role == Role::Assistant)
}

fn common(a: &[Sent], b: &[Sent]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn differences(old: &Header, new: &Header) -> Vec<&'static str> {
    let pairs = old.iter().zip(new);
    pairs.filter(|(old, new)| old != new).map(|(old, _)| old.0).collect()
}

#[cfg(test)]
#[path = "tests/prefix.rs"]
mod tests;
