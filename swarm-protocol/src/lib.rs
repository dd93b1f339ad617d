//! The words every part of swarm shares.
//!
//! This crate holds types and their JSON, and nothing else: no I/O, no runtime, no clock. Server, worker,
//! shell and dashboard meet in these words, so one word stands for one thing (see ARCHITECTURE.md).
#![warn(missing_docs)]

pub mod api;
pub mod codec;
mod error;
pub mod event;
pub mod frame;
pub mod ids;
pub mod launch;
pub mod message;
pub mod notification;
pub mod permission;
pub mod process;
pub mod record;
pub mod status;
pub mod time;
pub mod usage;

pub use error::error_chain;
pub use ids::{
    CommandId, MessageId, PermissionRequestId, RunNumber, Seq, SessionId, TaskId, ToolUseId, WorkerId,
};
pub use message::{Block, Message, ResultBlock, Role};
pub use status::{ExitReason, SessionState, Verdict, WaitingFor, WorkerStatus};
pub use time::Timestamp;
pub use usage::Usage;
