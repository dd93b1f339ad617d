//! The shell: everything a person or a script does from the command line.
//!
//! It talks to the server by HTTP alone and knows nothing of sessions, journals, git or models beyond the
//! words of `swarm-protocol`. What it decides (layout, ids, keys, what an event means to a follower) is pure;
//! reading the clock, the environment and the terminal happens at the edge and is passed in.

use std::{ffi::OsString, process::ExitCode};

use clap::FromArgMatches;

use self::{
    args::{Cli, Command, GlobalArgs, LATER_COMMANDS},
    error::{CliError, Result},
    output::{Colour, Stream},
    shell::{Shell, Surroundings},
};

mod alert;
mod args;
mod block;
mod client;
mod commands;
mod complete;
mod error;
#[cfg(test)]
mod fixtures;
mod follow;
mod format;
mod glyph;
mod ids;
mod keys;
mod layout;
mod link;
mod output;
mod pager;
mod painter;
mod plain;
mod prefix;
mod refusal;
mod repository;
mod rows;
mod server_process;
mod shell;
mod signals;
mod state;
mod stream;
mod summary;
mod task;
mod terminal;
pub(crate) mod text;
mod words;

/// The program. `COMPLETE` and `--help` are answered without a runtime.
pub fn main() -> ExitCode {
    clap_complete::CompleteEnv::with_factory(args::command).bin("swarm").complete();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match parse(&arguments) {
        Ok(cli) => {
            let mut shell = Shell::new(Surroundings::read(), cli.global);
            ExitCode::from(dispatch(&mut shell, &cli.command))
        }
        Err(Unparsed::Said(code)) => ExitCode::from(code),
        Err(Unparsed::Wrong(error)) => {
            let options = GlobalArgs { json: wants_json(&arguments).then_some(1), ..GlobalArgs::default() };
            let mut shell = Shell::new(Surroundings::read(), options);
            shell.report(&error);
            ExitCode::from(error.exit)
        }
    }
}

/// Why there is no command to carry out.
enum Unparsed {
    /// Help or version was printed.
    Said(u8),
    /// The command line is wrong.
    Wrong(CliError),
}

fn parse(arguments: &[OsString]) -> std::result::Result<Cli, Unparsed> {
    let matches = match args::command().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) if error.use_stderr() => return Err(Unparsed::Wrong(usage(&error))),
        Err(error) => {
            // Help that cannot be written was not wanted.
            let _unheard = error.print();
            return Err(Unparsed::Said(0));
        }
    };
    if let Some(name) =
        matches.subcommand_name().and_then(|name| LATER_COMMANDS.iter().find(|later| **later == name))
    {
        return Err(Unparsed::Wrong(commands::later(name, "")));
    }
    Cli::from_arg_matches(&matches).map_err(|error| Unparsed::Wrong(usage(&error)))
}

/// The parser's words in our form: its first line is what, its tips are hints.
fn usage(error: &clap::Error) -> CliError {
    let text = error.render().to_string();
    let mut lines = text.trim_end().lines().filter(|line| !line.trim().is_empty());
    let message =
        lines.next().unwrap_or("the command line is wrong").trim_start_matches("error: ").to_owned();
    let mut shown = CliError::usage(message);
    let mut hints = Vec::new();
    for line in lines {
        let line = line.trim();
        match line.strip_prefix("tip: ") {
            Some(tip) => hints.push(tip.to_owned()),
            None if line.starts_with("Usage:") => hints.push(line.replacen("Usage: ", "", 1)),
            None if line.starts_with("For more information") => {}
            None => shown = shown.cause(line.to_owned()),
        }
    }
    hints.push("swarm --help".to_owned());
    shown.hint(hints.join("\n"))
}

fn wants_json(arguments: &[OsString]) -> bool {
    arguments
        .iter()
        .take_while(|argument| *argument != "--")
        .filter_map(|argument| argument.to_str())
        .any(|argument| argument == "--json" || argument.starts_with("--json="))
}

/// Carries a command out; the exit code.
fn dispatch(shell: &mut Shell, command: &Command) -> u8 {
    trace(shell);
    let done = match command {
        Command::Completions(args) => commands::setup::completions(shell, args),
        other => shell.around.check_text().and_then(|()| perform(shell, other)),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            shell.report(&error);
            error.exit
        }
    }
}

fn perform(shell: &mut Shell, command: &Command) -> Result<u8> {
    match command {
        Command::Serve(args) if !args.stop => commands::serve::serve(shell, args),
        Command::Config => commands::setup::config(shell),
        other => with_runtime(shell, other),
    }
}

fn with_runtime(shell: &mut Shell, command: &Command) -> Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::new("client_failed", "cannot start").cause(error.to_string()))?;
    let done = runtime.block_on(carry_out(shell, command));
    // What still runs (a look-up, a connection) has no work of its own to finish.
    runtime.shutdown_background();
    done
}

async fn carry_out(shell: &mut Shell, command: &Command) -> Result<u8> {
    use commands::{
        answers, attach, cost, doctor, logs, permissions, ps, review, run, serve, setup, show, steer,
    };
    match command {
        Command::Run(args) => Box::pin(run::run(shell, args)).await,
        Command::Attach(args) => Box::pin(attach::attach(shell, args)).await,
        Command::Send(args) => steer::send(shell, args).await,
        Command::Stop(args) => steer::stop(shell, args).await,
        Command::Resume(args) => Box::pin(attach::resume(shell, args)).await,
        Command::Approve(args) => answers::approve(shell, args).await,
        Command::Deny(args) => answers::deny(shell, args).await,
        Command::Ps(args) => ps::ps(shell, args).await,
        Command::Show(args) => show::show(shell, args).await,
        Command::Logs(args) => logs::logs(shell, args).await,
        Command::Diff(args) => review::diff(shell, args).await,
        Command::Explain(args) => show::explain(shell, args).await,
        Command::Cost(args) => cost::cost(shell, args).await,
        Command::Dashboard(args) => setup::dashboard(shell, args).await,
        Command::Merge(args) => review::merge(shell, args).await,
        Command::Discard(args) => review::discard(shell, args).await,
        Command::Restore(args) => review::restore(shell, args).await,
        Command::Gc(args) => review::gc(shell, args).await,
        Command::Serve(args) => serve::stop(shell, args).await,
        Command::Trust(args) => setup::trust(shell, args).await,
        Command::Doctor(args) => doctor::doctor(shell, args).await,
        Command::Config => setup::config(shell),
        Command::Permissions(args) => permissions::permissions(shell, args).await,
        Command::Completions(args) => setup::completions(shell, args),
    }
}

/// `-vv`: what happens inside, on standard error.
fn trace(shell: &Shell) {
    if shell.options.verbose >= 2 {
        // A second subscriber (a test's) stays.
        let _already = tracing_subscriber::fmt()
            .with_writer(|| agent_host::secrets::MaskedWriter(std::io::stderr()))
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(shell.err.has_colour())
            .try_init();
    }
}

impl Shell {
    /// The same surroundings without a voice, for work in the background.
    fn silent(&self) -> Self {
        let sink = || Stream::of(Box::new(std::io::sink()), false, false);
        let options = GlobalArgs { color: Colour::Never, quiet: true, ..self.options.clone() };
        Self::with_streams(self.around.clone(), options, sink(), sink())
    }
}

#[cfg(test)]
mod tests;
