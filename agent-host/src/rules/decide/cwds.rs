//! Where the commands of a list run, as far as the text tells.

use std::path::{Path, PathBuf};

use crate::{
    bash::{self, Connector, LayerKind, PlainCommand},
    dangerous::normalize,
};

/// More places than this, and where a command runs counts as unknown.
const MAX_CWDS: usize = 8;

/// The directories a command may run in: all that the `cd`s before it may have led to.
pub(super) struct Cwds {
    current: Vec<PathBuf>,
    all: Vec<PathBuf>,
    /// Of the command before.
    depth: usize,
}

impl Cwds {
    pub(super) fn new(cwd: &Path) -> Self {
        Self { current: vec![cwd.to_path_buf()], all: vec![cwd.to_path_buf()], depth: 0 }
    }

    /// Empty when unknown.
    pub(super) fn current(&self) -> &[PathBuf] {
        &self.current
    }

    /// Only `&&` tells that the `cd` before it succeeded, and only on the same side of a bracket: what a subshell does
    /// ends with it, what a group does stays.
    pub(super) fn enter(&mut self, command: &PlainCommand) {
        let follows = matches!(command.after, Connector::And | Connector::Start);
        if !follows || command.depth > 0 || command.depth != self.depth {
            self.current = self.all.clone();
        }
        self.depth = command.depth;
    }

    pub(super) fn leave(&mut self, command: &PlainCommand, home: &Path) {
        if command.program() != Some("cd") {
            if may_change_directory(command) {
                self.forget();
            }
            return;
        }
        let operands = match command.argv.get(1..).unwrap_or_default() {
            [first, rest @ ..] if first.text() == Some("--") => rest,
            operands => operands,
        };
        let target = match operands {
            [] => Some(home.to_string_lossy().into_owned()),
            [word] => word.text().filter(|text| !word.glob && !text.starts_with('-')).map(|text| match text
                .strip_prefix('~')
            {
                Some(rest) if word.tilde => format!("{}{rest}", home.display()),
                _ => text.to_owned(),
            }),
            // Options: one of them follows links where the others do not.
            _ => None,
        };
        // A variable of its own may say where names are looked for.
        let Some(target) = target.filter(|_| command.assignments.is_empty()) else { return self.forget() };
        let next: Vec<PathBuf> = self.current.iter().map(|cwd| normalize(&cwd.join(&target))).collect();
        if self.current.is_empty() || self.all.len() + next.len() > MAX_CWDS {
            return self.forget();
        }
        self.all.extend(next.iter().cloned());
        // In a pipeline it is a subshell's; behind a `!` what follows by `&&` follows its failure.
        let is_sure = command.after != Connector::Pipe && !command.negated;
        self.current = if is_sure { next } else { self.all.clone() };
    }

    fn forget(&mut self) {
        self.current.clear();
        self.all.clear();
    }
}

/// Whether it, or what it starts in this shell, may change the directory without a plain `cd`.
fn may_change_directory(command: &PlainCommand) -> bool {
    const CHANGES: [&str; 8] = ["cd", "pushd", "popd", "chdir", "source", ".", "eval", "builtin"];
    let changes = |program: &str| CHANGES.contains(&program);
    // What cannot be looked into is asked about anyway; what another process does in itself stays in there.
    bash::layers(command).is_ok_and(|layers| {
        let here = layers.iter().filter(|layer| layer.kind != LayerKind::Inner);
        here.filter_map(|layer| layer.command.program()).any(changes)
    })
}
