//! The server and shell of swarm.
#![warn(missing_docs)]

pub mod journal;
mod projections;
