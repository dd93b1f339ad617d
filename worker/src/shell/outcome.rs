//! What became of a command.

use super::output::CapturedOutput;
use nix::sys::signal::Signal;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use swarm_protocol::process::ProcessExit;

pub use swarm_protocol::process::KilledProcess as ProcessInfo;

/// Shells add this to a signal's number when a child of theirs died of it.
const SHELL_SIGNAL_BASE: i32 = 128;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandExit {
    Code(i32),
    /// The shell itself died of a signal. A child of it that did shows as `Code(128 + n)`.
    Signal {
        name: &'static str,
        number: i32,
    },
    TimedOut,
    Cancelled,
    NotStarted {
        message: String,
    },
}

impl CommandExit {
    #[must_use]
    pub fn was_stopped(&self) -> bool {
        matches!(self, Self::TimedOut | Self::Cancelled)
    }
}

impl From<ProcessExit> for CommandExit {
    fn from(exit: ProcessExit) -> Self {
        match exit {
            ProcessExit::Code(code) => Self::Code(code),
            ProcessExit::Signal(number) => Self::Signal { name: signal_name(number), number },
        }
    }
}

fn signal_name(number: i32) -> &'static str {
    Signal::try_from(number).map_or("real-time signal", Signal::as_str)
}

impl fmt::Display for CommandExit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => {
                write!(formatter, "exit code {code}")?;
                match Signal::try_from(code - SHELL_SIGNAL_BASE) {
                    Ok(signal) => write!(formatter, " (killed by {})", signal.as_str()),
                    Err(_) => Ok(()),
                }
            }
            Self::Signal { name, number } => write!(formatter, "killed by {name} ({number})"),
            Self::TimedOut => formatter.write_str("timed out"),
            Self::Cancelled => formatter.write_str("cancelled"),
            Self::NotStarted { message } => write!(formatter, "not started: {message}"),
        }
    }
}

/// Why the next command does not start where this one ended, or not with its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CwdNote {
    /// `asked` is outside of what may be worked in.
    Outside { asked: PathBuf },
    /// `asked` is gone.
    Vanished { asked: PathBuf },
    /// The command ended in a way that left no state (`exec`, SIGKILL, a full disk).
    NotCaptured,
    /// What earlier commands left was removed.
    StateGone,
}

impl fmt::Display for CwdNote {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outside { asked } => write!(
                formatter,
                "{} is outside the worktree; the working directory was reset",
                asked.display()
            ),
            Self::Vanished { asked } => write!(
                formatter,
                "{} does not exist any more; the working directory was reset",
                asked.display()
            ),
            Self::NotCaptured => {
                formatter.write_str("working directory and variables are those from before this command")
            }
            Self::StateGone => formatter.write_str(
                "variables and functions of earlier commands are gone: a command removed what keeps them in $TMPDIR",
            ),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a command that failed says so only here"]
pub struct CommandOutcome {
    pub exit: CommandExit,
    pub output: CapturedOutput,
    pub duration: Duration,
    /// Where the next command starts.
    pub cwd: PathBuf,
    pub cwd_note: Option<CwdNote>,
    /// Outlived the command and were ended.
    pub killed: Vec<ProcessInfo>,
    /// Not even SIGKILL ended these.
    pub survivors: Vec<ProcessInfo>,
    /// A lock of git that the stopped command has left.
    pub stale_lock: Option<PathBuf>,
}

/// A look at a running command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The last lines, as a terminal would show them.
    pub text: String,
    pub total_bytes: u64,
    pub elapsed: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_named() {
        assert_eq!(CommandExit::Code(137).to_string(), "exit code 137 (killed by SIGKILL)");
        assert_eq!(CommandExit::Code(1).to_string(), "exit code 1");
        assert_eq!(CommandExit::from(ProcessExit::Signal(15)).to_string(), "killed by SIGTERM (15)");
    }
}
