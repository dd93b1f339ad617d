//! The server and shell of swarm: sessions, FIFO, registry, permission desk, journal, HTTP API.
//!
//! `server` owns all that is spawned. `session` is the actor of one session and the only writer of its
//! journal; `workers` starts and watches processes and reports by orders; `http` maps requests to orders;
//! `cli` knows the server by HTTP alone.
#![warn(missing_docs)]

mod always;
mod callback;
mod channel;
pub mod cli;
mod clock;
mod desk;
mod governor;
pub mod home;
mod http;
pub mod journal;
mod live;
mod opening;
mod ordinal;
mod overview;
mod pacing;
mod projections;
mod repositories;
mod review;
mod room;
mod serve;
pub mod server;
mod session;
mod sessions;
mod submit;
mod workers;
