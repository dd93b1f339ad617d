//! Promises of the crate, each kept by a test of its name, on real repositories.
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod carrying;
mod creating;
mod opening;
mod owning;
mod removing;
mod reviewing;
mod support;
