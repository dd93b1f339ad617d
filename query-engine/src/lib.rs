//! The query loop of coordinator, workers and helpers: it decides everything and has no I/O of its own.
//!
//! What it needs from outside stands in [`ports`]: a model, tools, a gate, a transcript, a source of
//! messages. It knows no HTTP, file, process, git, SQLite or tmux.
#![warn(missing_docs)]

pub mod budget;
pub mod classifier;
pub mod context;
pub mod deferral;
pub mod driver;
mod executor;
pub mod loop_detection;
pub mod pacing;
pub mod ports;
pub mod recovery;
pub mod response;
pub mod schedule;
pub mod state;
#[cfg(any(test, feature = "test-support"))]
pub mod testing;
pub mod transition;

pub use driver::{Cancel, Engine, EngineConfig, Ports, RunExit, build_prefix};
pub use executor::{INTERRUPTED, SIBLING_FAILED, STOPPED};
pub use state::{Counters, LoopState};
pub use transition::Continue;
