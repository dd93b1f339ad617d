//! From the text of a shell command to the argument lists that permission rules match.
//!
//! Only node kinds on an allow-list are understood; whatever else the grammar yields is
//! [`TooComplex`], which means that a person decides. The parse is pure and bounded: it has no clock,
//! starts nothing, knows no rules and no file system.

mod layers;
mod lexer;
mod parse;
mod word;
mod wrappers;

#[cfg(test)]
mod tests;

pub(crate) use layers::base_name;
pub use layers::{Layer, LayerKind, layers};
pub use parse::{MAX_COMMAND_CHARS, parse};
pub use word::{Piece, Word};

/// What a command text is, as far as rules can see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    /// Every command that the shell would start, in the order of the text.
    Simple(Vec<PlainCommand>),
    /// Something whose effect the text alone does not tell.
    TooComplex(TooComplex),
}

/// Why a command was not understood, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} (at character {at})")]
pub struct TooComplex {
    /// A noun phrase for a person, such as "a command substitution".
    pub what: String,
    /// Byte offset into the command text.
    pub at: usize,
}

/// One command of a pipeline or list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlainCommand {
    /// Program and arguments; empty for a bare assignment or a bare redirection.
    pub argv: Vec<Word>,
    /// `NAME=value` in front of the program, or alone.
    pub assignments: Vec<Assignment>,
    pub redirects: Vec<Redirect>,
    /// What stands between the command before and this one.
    pub after: Connector,
    /// How many subshells or groups it stands in.
    pub depth: usize,
    /// Ended by `&`.
    pub background: bool,
    /// Behind a `!`: what follows by `&&` follows its failure.
    pub negated: bool,
}

/// The operator between two commands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Connector {
    /// The first command of the text.
    #[default]
    Start,
    /// `;`, a newline, `&` or the edge of a group.
    Next,
    And,
    Or,
    Pipe,
}

/// A variable set by the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    pub name: String,
    pub value: Word,
}

/// A redirection and the file, or descriptor, it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    pub op: RedirectOp,
    pub target: Word,
}

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedirectOp {
    /// `<`
    Read,
    /// `>`, `>>`, `>|`, `&>`, `&>>`
    Write,
    /// `>&n`, `<&n`, `>&-`: a descriptor, not a file.
    Duplicate,
}

impl PlainCommand {
    /// The program's name when the text tells it.
    pub fn program(&self) -> Option<&str> {
        self.argv.first().and_then(Word::text)
    }
}
