//! The promises of the product on real parts: server, workers, git, SQLite and sockets. Only the model is played.
//!
//! Each test is named after the promise or the case that it keeps, has a home and a model server of its own, and
//! waits for events, never for a time.

mod rig;

mod approvals;
mod budgets;
mod builds;
mod bypasses;
mod caching;
mod cases;
mod classifiers;
mod clearing;
mod compaction;
mod context;
mod control;
mod crashes;
mod deferral;
mod delivery;
mod exits;
mod files;
mod inner;
mod loops;
mod lsp;
mod masking;
mod memory;
mod outcomes;
mod pacing;
mod people;
mod permissions;
mod processes;
mod reminders;
mod remote;
mod repositories;
mod room;
mod searching;
mod solo;
mod streaming;
mod transcripts;
mod waiting;
mod web;

mod api;
mod cli;
mod demo;
mod keys;
mod real;
