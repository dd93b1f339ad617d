//! How a process is named across restarts, and the two files a keeper leaves in its run directory.
//! Words only: who is alive is asked by the programs.

use serde::{Deserialize, Serialize};

/// Name of [`KeeperFile`] inside a run directory.
pub const KEEPER_FILE: &str = "keeper.json";
/// Name of [`ExitFile`] inside a run directory.
pub const EXIT_FILE: &str = "exit.json";

/// A process that cannot be mistaken for a later one with the same id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ProcessIdentity {
    /// Process id.
    pub pid: i32,
    /// Field 22 of `/proc/<pid>/stat`: clock ticks between boot and start.
    pub start_time: u64,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
}

/// Written once, before the keeper does anything else of note: who keeps the run and who runs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperFile {
    /// Process id.
    pub pid: i32,
    /// As in [`ProcessIdentity`].
    pub start_time: u64,
    /// As in [`ProcessIdentity`].
    pub boot_id: String,
    /// The worker's process id.
    pub worker_pid: i32,
    /// The worker's start time.
    pub worker_start_time: u64,
}

impl KeeperFile {
    /// Who keeps the run.
    #[must_use]
    pub fn keeper(&self) -> ProcessIdentity {
        ProcessIdentity { pid: self.pid, start_time: self.start_time, boot_id: self.boot_id.clone() }
    }

    /// Who runs it.
    #[must_use]
    pub fn worker(&self) -> ProcessIdentity {
        ProcessIdentity {
            pid: self.worker_pid,
            start_time: self.worker_start_time,
            boot_id: self.boot_id.clone(),
        }
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessExit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// A process that was ended because it outlived what had started it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KilledProcess {
    /// Process id.
    pub pid: i32,
    /// Its command line, cut to a readable length; its short name where it has none.
    pub command: String,
}

/// The last thing a keeper writes. When it is there, nothing of the run is left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitFile {
    /// How the worker ended.
    pub exit: ProcessExit,
    /// What was left of its tree and was ended.
    pub killed: Vec<KilledProcess>,
    /// What even SIGKILL did not end in time (uninterruptible sleep); empty but for broken machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub survivors: Vec<KilledProcess>,
    /// When.
    pub ended_at: jiff::Timestamp,
    /// The kernel killed something of the run for want of memory; absent where that cannot be known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_file_keeps_its_wire_form() {
        let text = r#"{"exit":{"signal":9},"killed":[{"pid":7,"command":"sleep 600"}],"ended_at":"2025-01-02T03:04:05Z"}"#;
        let file: ExitFile = serde_json::from_str(text).unwrap();
        assert_eq!(file.exit, ProcessExit::Signal(9));
        assert_eq!(serde_json::to_string(&file).unwrap(), text);
    }
}
