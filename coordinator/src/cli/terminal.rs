//! The terminal's modes. A follower reads single keys in cbreak mode: no line buffer and no echo, but signals
//! and output processing stay the kernel's, so ^C and ^Z work as everywhere. Set only while our group is in
//! the foreground; undone on every way out.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::{fd::AsFd, unix::fs::OpenOptionsExt},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nix::{
    errno::Errno,
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::termios::{
        FlushArg, LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcflush, tcgetattr, tcsetattr,
    },
    unistd::{getpgrp, tcgetpgrp, ttyname},
};
use tokio::sync::mpsc;

/// Whether our process group has the terminal of standard input.
pub(crate) fn is_foreground() -> bool {
    tcgetpgrp(io::stdin().as_fd()).is_ok_and(|group| group == getpgrp())
}

/// How often the reader looks whether it is still wanted, and whether we are in the foreground again.
const LOOK: u16 = 200;

/// The keyboard in cbreak mode; dropped, the terminal is as before.
#[derive(Debug)]
pub(crate) struct Keyboard {
    typed: mpsc::Receiver<Vec<u8>>,
    unwanted: Arc<AtomicBool>,
    before: Termios,
    set: bool,
}

impl Keyboard {
    /// Takes the keyboard; none when standard input is no terminal, or not ours now.
    pub(crate) fn take() -> Option<Self> {
        if !is_foreground() {
            return None;
        }
        // A description of its own: reading without waiting must not change what others read through.
        let path = ttyname(io::stdin().as_fd()).ok()?;
        let file =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).ok()?;
        let before = tcgetattr(io::stdin().as_fd()).ok()?;
        // A person is slower than the loop; what a paste brings too much waits in the terminal.
        let (sender, typed) = mpsc::channel(16);
        let unwanted = Arc::new(AtomicBool::new(false));
        std::thread::Builder::new()
            .name("keyboard".to_owned())
            .spawn({
                let unwanted = Arc::clone(&unwanted);
                move || read(&file, &sender, &unwanted)
            })
            .ok()?;
        let mut keyboard = Self { typed, unwanted, before, set: false };
        keyboard.enter();
        Some(keyboard)
    }

    /// Sets cbreak mode, if our group is in the foreground.
    pub(crate) fn enter(&mut self) {
        if self.set || !is_foreground() {
            return;
        }
        let mut modes = self.before.clone();
        modes.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
        modes.control_chars[SpecialCharacterIndices::VMIN as usize] = 1;
        modes.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
        self.set = tcsetattr(io::stdin().as_fd(), SetArg::TCSADRAIN, &modes).is_ok();
    }

    /// Sets the modes as they were.
    pub(crate) fn leave(&mut self) {
        if self.set && is_foreground() {
            let _gone = tcsetattr(io::stdin().as_fd(), SetArg::TCSADRAIN, &self.before);
        }
        self.set = false;
    }

    /// Drops what was typed and not read.
    pub(crate) fn flush(&self) {
        if self.set {
            let _gone = tcflush(io::stdin().as_fd(), FlushArg::TCIFLUSH);
        }
    }

    /// What was typed; an end of it is an error. Safe to cancel: what was not taken is still there.
    pub(crate) async fn read(&mut self) -> io::Result<Vec<u8>> {
        self.typed.recv().await.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// Reads while it is wanted. Only in the foreground: elsewhere reading would stop us.
fn read(mut file: &File, sender: &mpsc::Sender<Vec<u8>>, unwanted: &AtomicBool) {
    let mut buffer = [0; 256];
    while !unwanted.load(Ordering::Relaxed) {
        let mut polled = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, PollTimeout::from(LOOK)) {
            Ok(0) | Err(Errno::EINTR) => continue,
            Ok(_) => {}
            Err(_) => return,
        }
        if !is_foreground() {
            std::thread::sleep(Duration::from_millis(200));
            continue;
        }
        match file.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => {
                if sender.blocking_send(buffer[..length].to_vec()).is_err() {
                    return;
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(_) => return,
        }
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        self.unwanted.store(true, Ordering::Relaxed);
        self.leave();
    }
}

/// Cells of the terminal: columns and rows.
pub(crate) fn size() -> (usize, usize) {
    crossterm::terminal::size().map_or((80, 24), |(columns, rows)| (usize::from(columns), usize::from(rows)))
}
