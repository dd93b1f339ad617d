//! An answer as it is put together from its stream, and what of it is worth keeping (spec 2.5). Pure.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;
use swarm_protocol::{Block, ToolUseId, Usage, record::StopReason};

use crate::context::accounting::BYTES_PER_TOKEN;
use crate::ports::{BlockKind, ClosedBlock, Delta, ModelError, StreamEvent};

/// The most of one open block that is kept in memory while it streams, in bytes. Longer text is a fault of
/// the provider; what is over it is left out of the kept part of a broken answer.
const OPEN_TEXT_BYTES: usize = 4 << 20;

/// A call that closed.
#[derive(Clone, Debug, PartialEq)]
pub struct ClosedCall {
    /// Its id.
    pub id: ToolUseId,
    /// The tool.
    pub name: String,
    /// Its arguments.
    pub input: Value,
    /// Why it must not run.
    pub problem: Option<String>,
}

/// An answer under way.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// The model that answers.
    pub model: Option<String>,
    /// The last reported use; reports are cumulative.
    pub usage: Option<Usage>,
    /// Why it stopped.
    pub stop_reason: Option<StopReason>,
    /// How the stream broke.
    pub error: Option<ModelError>,
    blocks: BTreeMap<usize, Slot>,
    /// Bytes of the deltas so far, thinking and arguments included.
    delta_bytes: usize,
    ids: HashSet<ToolUseId>,
}

#[derive(Clone, Debug)]
enum Slot {
    Open { kind: BlockKind, text: String },
    Closed(Block),
}

impl Response {
    /// Takes an event; answers with the call that it closed.
    pub fn take(&mut self, event: &StreamEvent) -> Option<ClosedCall> {
        match event {
            StreamEvent::Started { model } => self.model = Some(model.clone()),
            StreamEvent::Ping => {}
            StreamEvent::BlockStarted { index, kind } => {
                self.blocks.insert(*index, Slot::Open { kind: kind.clone(), text: String::new() });
            }
            StreamEvent::Delta { index, delta } => {
                self.delta_bytes += match delta {
                    Delta::Text(words) | Delta::Thinking(words) => words.len(),
                    Delta::InputBytes(bytes) => *bytes,
                };
                self.take_delta(*index, delta);
            }
            StreamEvent::BlockClosed { index, block } => return self.close(*index, block),
            StreamEvent::Usage(usage) => self.usage = Some(*usage),
            StreamEvent::Stopped(reason) => self.stop_reason = Some(reason.clone()),
        }
        None
    }

    fn take_delta(&mut self, index: usize, delta: &Delta) {
        match delta {
            Delta::Text(words) => {
                let slot = self
                    .blocks
                    .entry(index)
                    .or_insert_with(|| Slot::Open { kind: BlockKind::Text, text: String::new() });
                match slot {
                    Slot::Open { text, .. } if text.len() + words.len() <= OPEN_TEXT_BYTES => {
                        text.push_str(words);
                    }
                    Slot::Open { .. } | Slot::Closed(_) => {}
                }
            }
            // An open thinking block or call is never kept, so its content is not gathered.
            Delta::Thinking(_) | Delta::InputBytes(_) => {}
        }
    }

    fn close(&mut self, index: usize, block: &ClosedBlock) -> Option<ClosedCall> {
        let (block, call) = match block {
            ClosedBlock::Valid(Block::ToolUse { id, name, input, provider_data }) => (
                Block::ToolUse {
                    id: id.clone(),
                    name: name.clone(),
                    input: input.clone(),
                    provider_data: provider_data.clone(),
                },
                Some(ClosedCall { id: id.clone(), name: name.clone(), input: input.clone(), problem: None }),
            ),
            ClosedBlock::Valid(other) => (other.clone(), None),
            ClosedBlock::InvalidCall { id, name, input, problem } => (
                Block::ToolUse {
                    id: id.clone(),
                    name: name.clone(),
                    input: input.clone(),
                    provider_data: None,
                },
                Some(ClosedCall {
                    id: id.clone(),
                    name: name.clone(),
                    input: input.clone(),
                    problem: Some(problem.clone()),
                }),
            ),
        };
        if let Some(call) = &call
            && !self.ids.insert(call.id.clone())
        {
            tracing::warn!(tool_use.id = %call.id, "a second call of the same id in one answer is left out");
            self.blocks.remove(&index);
            return None;
        }
        self.blocks.insert(index, Slot::Closed(block));
        call
    }

    /// Closed blocks, in order: what an intent records.
    pub fn closed_blocks(&self) -> Vec<Block> {
        self.blocks
            .values()
            .filter_map(|slot| match slot {
                Slot::Closed(block) => Some(block.clone()),
                Slot::Open { .. } => None,
            })
            .collect()
    }

    /// Closed blocks, and words whose block the end of the answer left open.
    pub fn whole_blocks(&self) -> Vec<Block> {
        self.blocks
            .values()
            .filter_map(|slot| match slot {
                Slot::Closed(block) => Some(block.clone()),
                Slot::Open { kind: BlockKind::Text, text } if !text.trim().is_empty() => {
                    Some(Block::text(text))
                }
                Slot::Open { .. } => None,
            })
            .collect()
    }

    /// What of this answer is kept when it is not whole: with a closed call every closed block; without
    /// one the words, also of an unfinished block, and no thinking.
    pub fn kept_blocks(&self) -> Vec<Block> {
        if !self.ids.is_empty() {
            return self.closed_blocks();
        }
        self.blocks
            .values()
            .filter_map(|slot| match slot {
                Slot::Closed(Block::Text { text }) if !text.trim().is_empty() => Some(Block::text(text)),
                Slot::Open { kind: BlockKind::Text, text } if !text.trim().is_empty() => {
                    Some(Block::text(text))
                }
                Slot::Closed(_) | Slot::Open { .. } => None,
            })
            .collect()
    }

    /// Takes the last `bytes` of the open words away; whole characters alone.
    pub fn cut_open_text(&mut self, bytes: usize) {
        if let Some(Slot::Open { kind: BlockKind::Text, text }) = self.blocks.values_mut().next_back() {
            let end = text.floor_char_boundary(text.len().saturating_sub(bytes));
            text.truncate(end);
        }
    }

    /// Whether a block of words closed.
    pub fn has_closed_text(&self) -> bool {
        self.blocks
            .values()
            .any(|slot| matches!(slot, Slot::Closed(Block::Text { text }) if !text.trim().is_empty()))
    }

    /// Whether there are words, closed or not.
    pub fn has_text(&self) -> bool {
        self.blocks.values().any(|slot| match slot {
            Slot::Closed(Block::Text { text }) | Slot::Open { kind: BlockKind::Text, text } => {
                !text.trim().is_empty()
            }
            Slot::Closed(_) | Slot::Open { .. } => false,
        })
    }

    /// Tools of calls that began and did not close.
    pub fn open_calls(&self) -> Vec<String> {
        self.blocks
            .values()
            .filter_map(|slot| match slot {
                Slot::Open { kind: BlockKind::ToolUse { name }, .. } => Some(name.clone()),
                Slot::Open { .. } | Slot::Closed(_) => None,
            })
            .collect()
    }

    /// Whether the last block is this call.
    pub fn ends_with_call(&self, call: &ToolUseId) -> bool {
        matches!(self.blocks.values().next_back(), Some(Slot::Closed(Block::ToolUse { id, .. })) if id == call)
    }

    /// What a call of so much input used whose answer broke off: at least the words that came. None: nothing of it
    /// was charged.
    pub fn usage_so_far(&self, input_tokens: u64) -> Option<Usage> {
        let reported = self.usage.filter(|usage| usage.total() > 0);
        let output_tokens = self.output_estimate();
        match reported {
            // The last report came before these words.
            Some(usage) if usage.output_tokens < output_tokens => {
                Some(Usage { output_tokens, estimated: true, ..usage })
            }
            Some(usage) => Some(usage),
            None if output_tokens > 0 => {
                Some(Usage { input_tokens, output_tokens, estimated: true, ..Usage::default() })
            }
            None => None,
        }
    }

    /// Tokens of words and arguments so far, where nothing is reported.
    pub fn output_estimate(&self) -> u64 {
        // A block may come whole, without a delta.
        (self.output_bytes().max(self.delta_bytes) as f64 / BYTES_PER_TOKEN).ceil() as u64
    }

    fn output_bytes(&self) -> usize {
        self.blocks
            .values()
            .map(|slot| match slot {
                Slot::Open { text, .. } | Slot::Closed(Block::Text { text }) => text.len(),
                Slot::Closed(Block::ToolUse { input, .. }) => input.to_string().len(),
                Slot::Closed(Block::Thinking { thinking, .. }) => thinking.len(),
                Slot::Closed(_) => 0,
            })
            .sum()
    }
}
