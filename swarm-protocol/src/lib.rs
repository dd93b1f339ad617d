//! swarm-protocol
