//! Real processes: the shell, its sandbox, and the keeper. Runs as root and as another user.
//! Where the sandbox cannot be enforced, its tests fail unless `SWARM_TEST_NO_SANDBOX=1`.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests are not seen as tests, and say what they found"
)]

#[path = "shell/commands.rs"]
mod commands;
#[path = "shell/escapes.rs"]
mod escapes;
#[path = "shell/interpreters.rs"]
mod interpreters;
#[path = "shell/keeper.rs"]
mod keeper;
#[path = "shell/languages.rs"]
mod languages;
#[path = "shell/leftovers.rs"]
mod leftovers;
#[path = "shell/limits.rs"]
mod limits;
#[path = "shell/network.rs"]
mod network;
#[path = "shell/support.rs"]
mod support;
#[path = "shell/tools.rs"]
mod tools;
#[path = "shell/ways_out.rs"]
mod ways_out;
