//! Where the commands of a list run, as far as the text tells.

use std::path::{Path, PathBuf};

use crate::{
    bash::{Connector, PlainCommand},
    dangerous::normalize,
};

/// More places than this, and where a command runs counts as unknown.
const MAX_CWDS: usize = 8;

/// The directories a command may run in: all that the `cd`s before it may have led to.
pub(super) struct Cwds {
    current: Vec<PathBuf>,
    all: Vec<PathBuf>,
}

impl Cwds {
    pub(super) fn new(cwd: &Path) -> Self {
        Self { current: vec![cwd.to_path_buf()], all: vec![cwd.to_path_buf()] }
    }

    /// Empty when unknown.
    pub(super) fn current(&self) -> &[PathBuf] {
        &self.current
    }

    /// Only `&&` tells that the `cd` before it succeeded.
    pub(super) fn enter(&mut self, command: &PlainCommand) {
        if !matches!(command.after, Connector::And | Connector::Start) || command.depth > 0 {
            self.current = self.all.clone();
        }
    }

    pub(super) fn leave(&mut self, command: &PlainCommand, home: &Path) {
        let target = match command.program() {
            Some("cd") => {
                command.argv.iter().skip(1).find(|word| !matches!(word.text(), Some("--" | "-P" | "-L")))
            }
            // These may change the directory without saying so.
            Some("pushd" | "popd" | "chdir" | "source" | "." | "eval" | "command" | "builtin") => {
                self.forget();
                return;
            }
            _ => return,
        };
        let next: Option<Vec<PathBuf>> = match target.map(|word| (word, word.text())) {
            None => Some(vec![home.to_path_buf()]),
            Some((word, Some(text))) if !word.glob && text != "-" => {
                let text = match text.strip_prefix('~') {
                    Some(rest) if word.tilde => format!("{}{rest}", home.display()),
                    _ => text.to_owned(),
                };
                Some(self.current.iter().map(|cwd| normalize(&cwd.join(&text))).collect())
            }
            Some(_) => None,
        };
        match next {
            Some(next) if !self.current.is_empty() && self.all.len() + next.len() <= MAX_CWDS => {
                self.all.extend(next.iter().cloned());
                self.current = next;
            }
            _ => self.forget(),
        }
    }

    fn forget(&mut self) {
        self.current.clear();
        self.all.clear();
    }
}
