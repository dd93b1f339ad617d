//! `swarm-worker`: the process of one agent, and the small helpers around it.

use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Keep one run: start the worker, end what is left of it, write exit.json
    #[command(disable_help_flag = true)]
    Keeper {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Run a command confined
    #[command(disable_help_flag = true)]
    Exec {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Make text of a format of strangers: from standard input to standard output
    #[command(disable_help_flag = true)]
    Convert {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Print as JSON what this machine's sandbox holds
    Probe,
    /// Run an agent from its launch file to the end of its run
    Run {
        /// The launch file
        #[arg(long)]
        launch: std::path::PathBuf,
    },
}

fn main() -> ExitCode {
    // The keeper lives as long as its run and the helper stands before every command: neither pays
    // for a parser of command lines.
    let mut args = std::env::args_os().skip(1);
    match args.next().as_deref().and_then(|name| name.to_str()) {
        Some("keeper") => return code(worker::keeper::main(args)),
        Some("exec") => return code(worker::sandbox::exec_main(args)),
        Some("convert") => return code(worker::convert::main(args)),
        _ => {}
    }
    match Arguments::parse().command {
        Command::Keeper { args } => code(worker::keeper::main(args.into_iter())),
        Command::Exec { args } => code(worker::sandbox::exec_main(args.into_iter())),
        Command::Convert { args } => code(worker::convert::main(args.into_iter())),
        Command::Run { launch } => code(worker::agent::main(&launch)),
        Command::Probe => code(i32::from(worker::sandbox::probe_main().is_err())),
    }
}

fn code(code: i32) -> ExitCode {
    // Exit codes have eight bits; what does not fit must not read as success.
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
