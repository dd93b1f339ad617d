//! One agent in one process: an engine with tools, a sandboxed shell, and the keeper above it.

pub mod agent;
pub mod checkpoint;
pub mod clock;
pub mod convert;
pub mod facts;
pub mod gate;
pub mod grants;
pub mod inner;
pub mod keeper;
pub mod link;
pub mod originals;
pub mod pacing;
pub mod proxy;
pub mod record;
pub mod sandbox;
pub mod shell;
pub mod tools;
pub mod tree;
