//! What a transcript adds up to at one point, kept in it, so that the next start begins there (spec 10.2).
//!
//! It is a cache: a fold that begins at a checkpoint equals the fold of all records, and a transcript without
//! one is folded whole. It is written after each compaction, where the conversation is shortest, and where
//! much was written without one.

use agent_host::transcript::{Loaded, StoredRecord};
use query_engine::LoopState;
use serde::{Deserialize, Serialize};
use swarm_protocol::RunNumber;

use crate::facts::Facts;

/// So much is read at a start beside the checkpoint, give or take a batch, whatever the transcript's length.
pub(crate) const LONGEST_TAIL: u64 = 16 * 1024 * 1024;

/// The version whose folds the figures are of, and a number that grows when a fold changes between versions.
/// Another version may count otherwise: it reads all records.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-2");

/// The loop's state and the facts after some records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    version: Version,
    state: LoopState,
    facts: Facts,
}

/// Reads as an error what another version wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
struct Version;

impl TryFrom<String> for Version {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text == VERSION { Ok(Self) } else { Err(format!("a checkpoint of version {text}")) }
    }
}

impl From<Version> for &'static str {
    fn from(_: Version) -> Self {
        VERSION
    }
}

impl Checkpoint {
    /// Of what was loaded, for a run: the live state, with nothing closed.
    pub fn after(loaded: &Loaded<Self>, run: RunNumber) -> Self {
        let mut state = loaded.checkpoint.as_ref().map(|start| start.state.clone()).unwrap_or_default();
        for stored in &loaded.records {
            state.apply(&stored.record.body);
        }
        Self { version: Version, state: state.durable(), facts: facts(loaded, run) }
    }
}

/// The loop's state at a start: with what a dead process left open closed, and the records that do so.
pub fn state(loaded: &Loaded<Checkpoint>) -> LoopState {
    let start = loaded.checkpoint.as_ref().map(|start| start.state.clone()).unwrap_or_default();
    start.resume(bodies(&loaded.records))
}

/// The facts of a run.
pub fn facts(loaded: &Loaded<Checkpoint>, run: RunNumber) -> Facts {
    let start = loaded.checkpoint.as_ref().map(|start| start.facts.clone());
    let mut facts = start.map_or_else(|| Facts::new(run), |facts| facts.of_run(run));
    for stored in &loaded.records {
        facts.apply(&stored.record);
    }
    facts
}

fn bodies(records: &[StoredRecord]) -> impl Iterator<Item = &swarm_protocol::record::RecordBody> {
    records.iter().map(|stored| &stored.record.body)
}

#[cfg(test)]
mod tests;
