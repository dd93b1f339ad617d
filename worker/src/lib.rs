//! One agent in one process: an engine with tools, a sandboxed shell, and the keeper above it.

pub mod keeper;
pub mod sandbox;
pub mod shell;
