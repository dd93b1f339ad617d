//! The query loop of coordinator, workers and helpers: it decides everything and has no I/O of its own.
//!
//! What it needs from outside stands in [`ports`]: a model, tools, a gate, a transcript, a source of
//! messages. It knows no HTTP, file, process, git, SQLite or tmux.
#![warn(missing_docs)]

pub mod ports;
