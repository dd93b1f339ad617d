//! agent-host
