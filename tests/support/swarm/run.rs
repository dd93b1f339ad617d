//! Commands of `swarm`: started, watched, ended.

use std::{
    process::{Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
};

use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, BufReader},
    process::Child,
    sync::watch,
    task::JoinSet,
};

use crate::{process::Process, wait::LATER};

/// A command that has ended.
#[derive(Debug, Clone)]
pub struct Finished {
    /// None: ended by a signal.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    arguments: Vec<String>,
}

impl Finished {
    /// # Panics
    /// When it ended otherwise; shows all it said.
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(
            self.code,
            Some(code),
            "swarm {:?} ended otherwise\n--- stdout\n{}\n--- stderr\n{}",
            self.arguments,
            self.stdout,
            self.stderr
        );
        self
    }

    /// Lines of `--json`.
    ///
    /// # Panics
    /// When one is no JSON.
    pub fn json_lines(&self) -> Vec<Value> {
        let parsed = self
            .stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in line: {line}")));
        parsed.collect()
    }

    /// The whole of stdout as one value.
    ///
    /// # Panics
    /// When it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in: {}", self.stdout))
    }
}

/// A command that runs; killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    process: Option<Process>,
    stdout: Said,
    stderr: Said,
    readers: JoinSet<()>,
    arguments: Vec<String>,
}

impl Running {
    pub(crate) fn start(command: Command, arguments: &[&str]) -> Self {
        let mut command = tokio::process::Command::from(command);
        command.kill_on_drop(true).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("swarm can be started");
        let process = child.id().and_then(|pid| Process::read(pid.cast_signed()));
        let mut readers = JoinSet::new();
        let stdout = Said::read(child.stdout.take(), &mut readers);
        let stderr = Said::read(child.stderr.take(), &mut readers);
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Self { child, process, stdout, stderr, readers, arguments }
    }

    pub fn pid(&self) -> Option<i32> {
        self.process.as_ref().map(|process| process.pid)
    }

    /// Ctrl-C.
    pub fn interrupt(&self) {
        self.signal(Signal::SIGINT);
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            process.signal(signal);
        }
    }

    /// Waits until a line of stdout contains this; returns the line.
    ///
    /// # Panics
    /// When none does for long.
    pub async fn line(&self, part: &str) -> String {
        self.stdout.line(part, &self.describe()).await
    }

    /// As [`Running::line`], of stderr.
    ///
    /// # Panics
    /// When none does for long.
    pub async fn error_line(&self, part: &str) -> String {
        self.stderr.line(part, &self.describe()).await
    }

    /// What stdout holds so far.
    pub fn said(&self) -> String {
        self.stdout.text()
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it does not end for long.
    pub async fn finish(mut self) -> Finished {
        let description = self.describe();
        let Ok(status) = tokio::time::timeout(LATER, self.child.wait()).await else {
            panic!(
                "{description} did not end within {LATER:?}\n--- stdout\n{}\n--- stderr\n{}",
                self.stdout.text(),
                self.stderr.text()
            );
        };
        let status = status.expect("a child can be waited for");
        // A process it left behind may hold the pipes open; what it says is not waited for.
        let all_read = async { while self.readers.join_next().await.is_some() {} };
        let _open_pipes = tokio::time::timeout(std::time::Duration::from_secs(2), all_read).await;
        Finished {
            code: status.code(),
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
            arguments: self.arguments,
        }
    }

    fn describe(&self) -> String {
        format!("swarm {:?}", self.arguments)
    }
}

/// What comes out of one pipe.
#[derive(Debug)]
struct Said {
    text: Arc<Mutex<String>>,
    lines: watch::Receiver<usize>,
}

impl Said {
    fn read(pipe: Option<impl AsyncRead + Unpin + Send + 'static>, readers: &mut JoinSet<()>) -> Self {
        let text = Arc::new(Mutex::new(String::new()));
        let (count, lines) = watch::channel(0);
        if let Some(pipe) = pipe {
            let text = Arc::clone(&text);
            readers.spawn(async move {
                let mut pipe = BufReader::new(pipe);
                let mut line = Vec::new();
                while pipe.read_until(b'\n', &mut line).await.is_ok_and(|read| read > 0) {
                    let mut text = text.lock().unwrap_or_else(PoisonError::into_inner);
                    text.push_str(&String::from_utf8_lossy(&line));
                    drop(text);
                    line.clear();
                    count.send_modify(|count| *count += 1);
                }
            });
        }
        Self { text, lines }
    }

    fn text(&self) -> String {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn line(&self, part: &str, who: &str) -> String {
        let mut lines = self.lines.clone();
        let search = async {
            loop {
                lines.mark_unchanged();
                let text = self.text();
                if let Some(line) = text.lines().find(|line| line.contains(part)) {
                    return Some(line.to_owned());
                }
                if lines.changed().await.is_err() {
                    let text = self.text();
                    return text.lines().find(|line| line.contains(part)).map(str::to_owned);
                }
            }
        };
        match tokio::time::timeout(LATER, search).await {
            Ok(Some(line)) => line,
            Ok(None) => panic!("{who} ended without saying `{part}`; it said:\n{}", self.text()),
            Err(_) => panic!("{who} did not say `{part}` within {LATER:?}; it said:\n{}", self.text()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Running {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null());
        Running::start(command, &[script])
    }

    #[tokio::test]
    async fn commands_are_watched_and_ended() {
        let running = sh(
            "echo one; echo bad >&2; trap 'echo stopped; exit 3' INT; echo ready; while :; do sleep 0.01; done",
        );
        assert_eq!(running.line("ready").await, "ready");
        running.interrupt();
        let finished = running.finish().await.expect_code(3);
        assert_eq!((&*finished.stdout, &*finished.stderr), ("one\nready\nstopped\n", "bad\n"));
        assert_eq!(
            sh(r#"echo '{"a":1}'; echo 2"#).finish().await.json_lines(),
            [serde_json::json!({"a": 1}), 2.into()]
        );
    }

    #[tokio::test]
    #[should_panic(expected = "ended without saying `more`; it said:\nonly this")]
    async fn a_missing_line_is_reported() {
        sh("echo only this").line("more").await;
    }
}
