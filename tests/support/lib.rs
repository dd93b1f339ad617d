//! What the integration tests stand on: a scripted model provider, repositories, and a home for `swarm` processes.
//!
//! It drives the programs from outside, through sockets, files and exit codes, and knows none of our crates.

pub mod bins;
pub mod model_server;
pub mod process;
pub mod pty;
pub mod repo;
pub mod swarm;
pub mod wait;

pub use self::{
    model_server::{ModelServer, Reply, when},
    repo::TestRepo,
    swarm::SwarmHome,
    wait::{eventually, until},
};

/// A client for plain HTTP to our own servers. It never goes through a proxy.
pub fn http_client() -> reqwest::Client {
    // The TLS layer wants a provider even where there is no TLS; a second installation is refused, which is fine.
    let _already_there = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build();
    client.expect("a client without TLS settings can be built")
}
