//! Results that were cleared from the conversation, and the way back to them (spec 3.3): the model names the call,
//! the store and the transcript behind it are asked by record and block.

use std::{
    collections::{HashMap, HashSet},
    io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use agent_host::{ReplacementKey, ReplacementLimits, ReplacementStore, transcript::find_results};
use swarm_protocol::{Block, ResultBlock, SessionId, ToolUseId};

use crate::record::{Recorder, now};

/// The cleared results of one agent.
pub struct Originals {
    session: SessionId,
    recorder: Arc<Recorder>,
    transcript: PathBuf,
    store: ReplacementStore,
    /// Where results stand that were put away or asked for.
    places: Mutex<HashMap<ToolUseId, ReplacementKey>>,
}

impl Originals {
    /// Of an agent with this transcript; files go to `directory`.
    ///
    /// # Errors
    /// What a dead process left there cannot be removed.
    pub fn open(
        session: SessionId,
        recorder: Arc<Recorder>,
        transcript: PathBuf,
        directory: PathBuf,
    ) -> io::Result<Self> {
        let store = ReplacementStore::open(directory, transcript.clone(), ReplacementLimits::default())?;
        Ok(Self { session, recorder, transcript, store, places: Mutex::default() })
    }

    /// Keeps originals at hand. One that is not kept is read from the transcript when it is asked for.
    pub async fn put_away(&self, originals: &[(ToolUseId, Vec<ResultBlock>)]) {
        let calls = originals.iter().map(|(id, _)| id.clone()).collect();
        let places = self.find(calls).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "cleared results were not found in the transcript");
            HashMap::new()
        });
        for (id, content) in originals {
            let Some(place) = places.get(id) else { continue };
            let block =
                Block::ToolResult { tool_use_id: id.clone(), content: content.clone(), is_error: false };
            if let Err(error) = self.store.put(*place, &block, now()).await {
                tracing::warn!(%error, "a cleared result is in the transcript alone");
            }
        }
    }

    /// The result of a call; none when it is nowhere any more.
    ///
    /// # Errors
    /// The transcript cannot be read.
    pub async fn get(&self, call: &ToolUseId) -> io::Result<Option<Vec<ResultBlock>>> {
        let known = self.places.lock().unwrap_or_else(PoisonError::into_inner).get(call).copied();
        let place = match known {
            Some(place) => Some(place),
            None => self.find(HashSet::from([call.clone()])).await?.remove(call),
        };
        let Some(place) = place else { return Ok(None) };
        let found = self.store.get(place).await?;
        Ok(found.and_then(|original| match original.content {
            Block::ToolResult { content, .. } => Some(content),
            _ => None,
        }))
    }

    async fn find(&self, mut calls: HashSet<ToolUseId>) -> io::Result<HashMap<ToolUseId, ReplacementKey>> {
        let known = |id: &ToolUseId| Some((id.clone(), self.recorder.take_result_place(id)?));
        let mut found: HashMap<ToolUseId, _> = calls.iter().filter_map(known).collect();
        calls.retain(|id| !found.contains_key(id));
        if !calls.is_empty() {
            // Of an earlier process: the file is searched.
            let transcript = self.transcript.clone();
            let search = tokio::task::spawn_blocking(move || find_results(&transcript, &calls));
            found.extend(search.await.map_err(io::Error::other)??);
        }
        let key = |(message, block)| ReplacementKey { session: self.session, message, block };
        let found: HashMap<_, _> = found.into_iter().map(|(id, place)| (id, key(place))).collect();
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.extend(found.iter().map(|(id, place)| (id.clone(), *place)));
        Ok(found)
    }
}
