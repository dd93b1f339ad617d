//! `swarm`: the shell and the server in one binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    coordinator::cli::main()
}
