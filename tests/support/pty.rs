//! A command in a terminal, and what its screen shows.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    num::NonZero,
    os::fd::OwnedFd,
    process::{Child, Command},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
};

use nix::{
    pty::{OpenptyResult, Winsize, openpty},
    sys::signal::Signal,
};
use tokio::sync::watch;

use crate::{process::Process, wait::SOON};

const END: &[u8] = &[0; 8];

#[derive(Debug)]
pub struct Pty {
    child: Child,
    master: File,
    /// Kept open for the size to be set, even after the command has ended.
    slave: OwnedFd,
    screen: Arc<Mutex<Screen>>,
    changes: watch::Receiver<u64>,
    reader: Option<JoinHandle<()>>,
}

struct Screen {
    parser: vt100::Parser,
    raw: Vec<u8>,
}

impl std::fmt::Debug for Screen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.parser.screen().contents())
    }
}

impl Pty {
    /// Starts the command in a new session with this terminal.
    ///
    /// # Panics
    /// When there is no terminal or no such command.
    pub fn start(command: &Command, rows: u16, columns: u16) -> Self {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let OpenptyResult { master, slave } = openpty(&size, None).expect("a terminal can be had");
        // `setsid` makes the terminal the controlling one, which std cannot.
        let mut session = Command::new("setsid");
        session.arg("--ctty").arg(command.get_program()).args(command.get_args());
        if let Some(directory) = command.get_current_dir() {
            session.current_dir(directory);
        }
        session.env_clear().env("TERM", "xterm-256color");
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                session.env(name, value);
            }
        }
        let end = || slave.try_clone().expect("a descriptor can be copied");
        let child = session.stdin(end()).stdout(end()).stderr(end()).spawn();
        let child = child.unwrap_or_else(|error| panic!("failed to start {command:?}: {error}"));
        drop(session);
        let parser = vt100::Parser::new(cells(rows), cells(columns), 1000);
        let screen = Arc::new(Mutex::new(Screen { parser, raw: Vec::new() }));
        let (count, changes) = watch::channel(0);
        let mut output = File::from(master.try_clone().expect("a descriptor can be copied"));
        let shown = Arc::clone(&screen);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut buffer) {
                let mut screen = shown.lock().unwrap_or_else(PoisonError::into_inner);
                screen.parser.process(&buffer[..read]);
                screen.raw.extend_from_slice(&buffer[..read]);
                drop(screen);
                count.send_modify(|count| *count += 1);
            }
        });
        Self { child, master: master.into(), slave, screen, changes, reader: Some(reader) }
    }

    /// What stands on the screen.
    pub fn contents(&self) -> String {
        self.screen.lock().unwrap_or_else(PoisonError::into_inner).parser.screen().contents()
    }

    /// Every byte so far.
    pub fn raw(&self) -> Vec<u8> {
        self.screen.lock().unwrap_or_else(PoisonError::into_inner).raw.clone()
    }

    /// Types.
    ///
    /// # Panics
    /// When the terminal is gone.
    pub fn send(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("the terminal is open");
    }

    /// Gives the window another size; the command hears of it.
    ///
    /// # Panics
    /// When `stty` cannot be run.
    pub fn resize(&self, rows: u16, columns: u16) {
        let mut screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        screen.parser.screen_mut().set_size(cells(rows), cells(columns));
        drop(screen);
        let terminal = self.slave.try_clone().expect("a descriptor can be copied");
        let (rows, columns) = (rows.to_string(), columns.to_string());
        let status = Command::new("stty").args(["rows", &rows, "cols", &columns]).stdin(terminal).status();
        assert!(status.is_ok_and(|status| status.success()), "stty failed");
    }

    /// Waits until the screen contains this.
    ///
    /// # Panics
    /// When it does not soon; shows the screen.
    pub async fn shows(&self, text: &str) {
        self.wait_for(&format!("`{text}`"), |screen| screen.contains(text)).await;
    }

    /// Waits until the screen is as wanted.
    ///
    /// # Panics
    /// When it is not soon; shows it.
    pub async fn wait_for(&self, what: &str, holds: impl Fn(&str) -> bool) {
        let mut changes = self.changes.clone();
        let search = async {
            loop {
                changes.mark_unchanged();
                if holds(&self.contents()) {
                    return true;
                }
                if changes.changed().await.is_err() {
                    return holds(&self.contents());
                }
            }
        };
        let found = tokio::time::timeout(SOON, search).await.unwrap_or(false);
        assert!(found, "the screen does not show {what}:\n{}", self.contents());
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(process) = Process::read(self.child.id().cast_signed()) {
            process.signal(signal);
        }
    }

    /// Waits for the command's end; its exit code.
    ///
    /// # Panics
    /// When it does not end soon.
    pub async fn finish(self) -> Option<i32> {
        self.output().await.0
    }

    /// Waits for the command's end; its exit code, every byte it wrote, and the screen.
    ///
    /// # Panics
    /// When it does not end soon.
    pub async fn output(mut self) -> (Option<i32>, Vec<u8>, String) {
        let status = crate::wait::eventually(SOON, "the end of the command", async || {
            self.child.try_wait().ok().flatten().ok_or("it runs")
        });
        let code = status.await.code();
        // What stands before these in the terminal has been read when they have; screens ignore them.
        let mut end = File::from(self.slave.try_clone().expect("a descriptor can be copied"));
        end.write_all(END).expect("the terminal is open");
        let mut raw = crate::wait::eventually(SOON, "the end of the output", async || {
            Some(self.raw()).filter(|raw| raw.ends_with(END)).ok_or("there is more")
        })
        .await;
        raw.truncate(raw.len() - END.len());
        (code, raw, self.contents())
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _gone_is_as_good = self.child.kill();
        let _reaped = self.child.wait();
        // The reader ends when the last end of the terminal is closed, which a process left behind may put off;
        // so it is not waited for.
        drop(self.reader.take());
    }
}

fn cells(count: u16) -> NonZero<u16> {
    NonZero::new(count).expect("a screen has cells")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_terminal_with_a_screen() {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "stty size; tty >/dev/null && echo yes; read line; echo got $line; stty size; exit 4",
        ]);
        command.env("PATH", "/usr/bin:/bin");
        let mut pty = Pty::start(&command, 24, 80);
        pty.shows("24 80\nyes").await;
        pty.resize(30, 100);
        pty.send("hello\n");
        pty.shows("got hello\n30 100").await;
        assert!(pty.raw().ends_with(b"30 100\r\n"));
        assert_eq!(pty.finish().await, Some(4));
    }
}
