//! Calls somebody to the terminal: something waits for them, or the task has ended. In words of ours and ids
//! alone: nothing foreign enters an escape sequence.

use agent_host::Notify;
use swarm_protocol::{SessionId, WorkerId};

use super::{repository, shell::Shell, task};

/// What somebody is called for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Occasion<'a> {
    /// A worker asks for leave.
    Asks(&'a WorkerId),
    /// The task has its verdict.
    Ended(SessionId),
}

/// How to call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alerts {
    how: Notify,
    /// It takes OSC 9 only in its own wrapping, and drops it bare.
    in_tmux: bool,
}

impl Alerts {
    /// As the settings say. Wrong ones are refused where they matter; here the bell is good enough.
    pub(crate) fn of(shell: &Shell) -> Self {
        let settings = task::settings(shell, repository::around(shell).as_ref(), Vec::new());
        Self {
            how: settings.map(|settings| settings.config.cli_notify).unwrap_or_default(),
            in_tmux: shell.around.variable("TMUX").is_some(),
        }
    }

    /// The bytes for the terminal.
    pub(crate) fn bytes(self, occasion: Occasion<'_>) -> Vec<u8> {
        let words = match occasion {
            Occasion::Asks(worker) => format!("swarm: {} waits for you", worker.suffix()),
            Occasion::Ended(session) => format!("swarm: {} has ended", session.short()),
        };
        match (self.how, self.in_tmux) {
            (Notify::Off, _) => Vec::new(),
            (Notify::Bell, _) => b"\x07".to_vec(),
            (Notify::Osc9, false) => format!("\x1b]9;{words}\x07").into_bytes(),
            // Within the wrapping each ESC stands twice.
            (Notify::Osc9, true) => format!("\x1bPtmux;\x1b\x1b]9;{words}\x07\x1b\\").into_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::fixtures::SESSION;

    #[test]
    fn one_call_in_each_way() {
        let worker: WorkerId = "agent-h7q".parse().unwrap();
        let asks = Occasion::Asks(&worker);
        let ended = Occasion::Ended(SESSION.parse().unwrap());
        let table = [
            (Notify::Bell, false, asks, "\x07"),
            (Notify::Bell, true, ended, "\x07"),
            (Notify::Osc9, false, asks, "\x1b]9;swarm: h7q waits for you\x07"),
            (Notify::Osc9, false, ended, "\x1b]9;swarm: 7c1d09e2 has ended\x07"),
            (Notify::Osc9, true, asks, "\x1bPtmux;\x1b\x1b]9;swarm: h7q waits for you\x07\x1b\\"),
            (Notify::Off, false, asks, ""),
            (Notify::Off, true, ended, ""),
        ];
        for (how, in_tmux, occasion, expected) in table {
            let bytes = Alerts { how, in_tmux }.bytes(occasion);
            assert_eq!(String::from_utf8(bytes).unwrap(), expected, "{how:?} {in_tmux} {occasion:?}");
        }
    }
}
