//! What every command works with: where it was called, how it may speak, and to whom.

use std::{
    collections::BTreeMap,
    io::IsTerminal,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};
use swarm_protocol::{Seq, SessionId, Timestamp};

use super::{
    args::{GlobalArgs, Progress},
    error::{CliError, Result},
    glyph::Glyphs,
    output::Stream,
    text,
};
use crate::home::Home;

/// Width of a design without a terminal.
pub(crate) const DESIGN_WIDTH: usize = 80;

/// The world as it was when the command was called; tests make their own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surroundings {
    /// The environment, what of it is UTF-8.
    pub(crate) variables: BTreeMap<String, String>,
    /// Our own variables whose value is not: they must not pass for ones that are not set.
    pub(crate) unreadable: Vec<String>,
    /// The working directory.
    pub(crate) directory: PathBuf,
    /// The user's home.
    pub(crate) user_home: PathBuf,
    /// This program.
    pub(crate) program: PathBuf,
    /// Whether somebody types.
    pub(crate) stdin_is_terminal: bool,
}

impl Surroundings {
    /// As they are.
    pub(crate) fn read() -> Self {
        let mut variables = BTreeMap::new();
        let mut unreadable = Vec::new();
        for (name, value) in std::env::vars_os() {
            let Ok(name) = name.into_string() else { continue };
            match value.into_string() {
                Ok(value) => drop(variables.insert(name, value)),
                Err(value) if name.starts_with("SWARM_") => {
                    unreadable.push(format!("{name}={}", value.to_string_lossy()));
                }
                Err(_) => {}
            }
        }
        Self {
            unreadable,
            directory: std::env::current_dir().unwrap_or_default(),
            user_home: std::env::home_dir().unwrap_or_default(),
            program: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("swarm")),
            stdin_is_terminal: std::io::stdin().is_terminal(),
            variables,
        }
    }

    /// A variable that is set to something.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Paths go to the server, to workers and to models as text: one that is none is refused by its name
    /// rather than confused with another, or with the default.
    pub(crate) fn check_text(&self) -> Result<()> {
        if let Some(variable) = self.unreadable.first() {
            return Err(CliError::new("not_utf8", format!("{variable} is not valid UTF-8"))
                .hint("give it a value that is, or unset it"));
        }
        text::utf8("$HOME", &self.user_home)?;
        text::utf8("the home of swarm", self.home().root())?;
        Ok(())
    }

    /// The home of swarm.
    pub(crate) fn home(&self) -> Home {
        Home::from_environment(self.variable("SWARM_HOME"), &self.user_home)
    }
}

/// A command's surroundings and voice.
#[derive(Debug)]
pub(crate) struct Shell {
    pub(crate) around: Surroundings,
    pub(crate) home: Home,
    pub(crate) out: Stream,
    pub(crate) err: Stream,
    pub(crate) options: GlobalArgs,
    pub(crate) glyphs: Glyphs,
}

impl Shell {
    /// The real one.
    pub(crate) fn new(around: Surroundings, options: GlobalArgs) -> Self {
        let out = Stream::stdout(options.color);
        let err = Stream::stderr(options.color);
        Self::with_streams(around, options, out, err)
    }

    /// One with streams of the caller.
    pub(crate) fn with_streams(around: Surroundings, options: GlobalArgs, out: Stream, err: Stream) -> Self {
        let glyphs = Glyphs::choose(|name| around.variable(name).map(str::to_owned));
        Self { home: around.home(), around, out, err, options, glyphs }
    }

    /// Whether programs read the output.
    pub(crate) const fn is_json(&self) -> bool {
        self.options.json.is_some()
    }

    /// Cells of a line of output: the terminal's, or the design's. Off a terminal nothing is cut to it.
    pub(crate) fn width(&self) -> usize {
        let size = if self.out.is_terminal || self.err.is_terminal {
            crossterm::terminal::size().ok()
        } else {
            None
        };
        size.map_or(DESIGN_WIDTH, |(columns, _)| usize::from(columns)).max(20)
    }

    /// Whether rows may live on standard error.
    pub(crate) fn has_live_rows(&self) -> bool {
        if self.is_json() || self.options.quiet || self.around.variable("ACCESSIBLE").is_some() {
            return false;
        }
        match self.options.progress {
            Progress::Rows => true,
            Progress::Plain | Progress::None => false,
            Progress::Auto => {
                let terminal = self.around.variable("TERM").is_some_and(|term| term != "dumb");
                let fits =
                    crossterm::terminal::size().is_ok_and(|(columns, rows)| columns >= 40 && rows >= 8);
                self.err.is_terminal && terminal && fits
            }
        }
    }

    /// Whether a question can be put to somebody.
    pub(crate) fn can_ask(&self) -> bool {
        self.around.stdin_is_terminal
            && self.err.is_terminal
            && !self.options.no_input
            && !self.is_json()
            && super::terminal::is_foreground()
    }

    /// A path as people write it.
    pub(crate) fn path(&self, path: &Path) -> String {
        text::path(path, &self.around.user_home)
    }

    /// A JSON line of the envelope.
    pub(crate) fn json(
        &mut self,
        kind: &str,
        session_id: Option<SessionId>,
        seq: Option<Seq>,
        fields: Value,
    ) -> Result<()> {
        let line = json_line(kind, session_id, seq, fields);
        Ok(self.out.bytes(format!("{line}\n").as_bytes())?)
    }

    /// An error for people, and for programs where they listen.
    pub(crate) fn report(&mut self, error: &CliError) {
        if error.is_silent() {
            return;
        }
        if self.is_json() {
            let line = error.json(now());
            // There is nobody left to tell that the error could not be told.
            let _unheard = self.out.bytes(format!("{line}\n").as_bytes());
        }
        let _unheard = self.err.text(&error.render());
    }

    /// A notice of the doing.
    pub(crate) fn notice(&mut self, words: &str) {
        if !self.options.quiet {
            let _unheard = self.err.line(words);
        }
    }
}

/// A JSON line of the envelope.
pub(crate) fn json_line(kind: &str, session_id: Option<SessionId>, seq: Option<Seq>, fields: Value) -> Value {
    let mut line = Map::new();
    line.insert("v".to_owned(), json!(1));
    line.insert("seq".to_owned(), json!(seq));
    line.insert("at".to_owned(), json!(now()));
    line.insert("session_id".to_owned(), json!(session_id));
    line.insert("kind".to_owned(), json!(kind));
    if let Value::Object(fields) = fields {
        line.extend(fields);
    }
    Value::Object(line)
}

/// The wall clock, read at the edge.
pub(crate) fn now() -> Timestamp {
    jiff::Timestamp::now().into()
}
