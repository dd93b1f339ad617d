//! What the server knows about each worktree, one JSON file each in the common git directory
//! (`swarm/worktrees/<home>/<agent>.json`), where an agent's commands cannot write. Holds no paths,
//! so that it is the same for paths of any bytes.

use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::lock::ProcessStamp;
use crate::name::{AgentId, BranchName, Renamed};
use crate::tree::write_durably;
use crate::types::CommitId;

/// How far a worktree got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// Written before anything is made. Found after a crash, it says what may lie around.
    Creating,
    /// Checked out and verified.
    Ready,
    /// Written before anything is removed.
    Removing,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) version: u32,
    pub(crate) agent: AgentId,
    pub(crate) branch: BranchName,
    /// The branch is made together with the worktree and goes when that fails.
    pub(crate) new_branch: bool,
    pub(crate) base: CommitId,
    pub(crate) renamed: Option<Renamed>,
    /// Name of the worktree's git directory below `worktrees/`, known once it is registered.
    pub(crate) admin: Option<String>,
    pub(crate) phase: Phase,
    pub(crate) by: ProcessStamp,
    /// Seconds since 1970.
    pub(crate) created_at: i64,
}

pub(crate) const RECORD_VERSION: u32 = 1;

/// A record that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Reading or writing failed.
    #[error("cannot access the record {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// Not what this version wrote. Only this worktree is concerned.
    #[error("the record {} is damaged or of a newer version; move it away and run `swarm gc`", path.display())]
    Damaged {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

/// The records of one `$SWARM_HOME` in one repository.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    dir: PathBuf,
}

impl Records {
    pub(crate) fn new(swarm_dir: &Path, home: &Path) -> Self {
        let digest = Sha256::digest(home.as_os_str().as_bytes());
        let hash: String = digest.iter().take(6).map(|b| format!("{b:02x}")).collect();
        Self { dir: swarm_dir.join("worktrees").join(hash) }
    }

    fn path(&self, agent: &AgentId) -> PathBuf {
        self.dir.join(format!("{agent}.json"))
    }

    pub(crate) fn read(&self, agent: &AgentId) -> Result<Option<Record>, RecordError> {
        let path = self.path(agent);
        match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|source| RecordError::Damaged { path, source }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(RecordError::Io { path, source }),
        }
    }

    pub(crate) fn write(&self, record: &Record) -> Result<(), RecordError> {
        let path = self.path(&record.agent);
        let io = |source| RecordError::Io { path: path.clone(), source };
        let bytes = serde_json::to_vec_pretty(record).map_err(|e| io(e.into()))?;
        write_durably(&path, &bytes).map_err(io)
    }

    pub(crate) fn remove(&self, agent: &AgentId) -> Result<(), RecordError> {
        let path = self.path(agent);
        match std::fs::remove_file(&path) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(source) => Err(RecordError::Io { path, source }),
        }
    }

    /// Every agent with a record, in order.
    pub(crate) fn agents(&self) -> Result<Vec<AgentId>, RecordError> {
        let entries = match std::fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => {
                return Err(RecordError::Io { path: self.dir.clone(), source });
            }
        };
        let mut agents: Vec<AgentId> = entries
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name();
                AgentId::parse(name.to_str()?.strip_suffix(".json")?).ok()
            })
            .collect();
        agents.sort();
        Ok(agents)
    }
}
