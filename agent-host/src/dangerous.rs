//! The table of dangerous forms: commands that no general permission covers.
//!
//! The table is data (`dangerous.toml`); this module reads and matches it. It works on one layer of a
//! parsed command and knows neither rules nor modes.

mod special;

pub(crate) use special::normalize;

use std::{collections::HashMap, path::Path};

use serde::Deserialize;

use crate::{
    bash::{PlainCommand, Word},
    rules::wildcard,
};

const TABLE: &str = include_str!("dangerous.toml");

/// What a match means; the order is that of severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FormKind {
    /// Runs or writes what its name does not say; a sandbox bounds it.
    Hidden,
    /// Destroys work or acts outside; an allow rule may permit it.
    Effect,
    /// A person decides, whatever the allow rules say.
    Person,
    /// A person decides even in `bypassPermissions`.
    Critical,
}

/// One entry of the table.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DangerousForm {
    /// Stable name, for logs and tests.
    pub id: String,
    programs: Vec<String>,
    #[serde(default)]
    sub: Vec<String>,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    args: Vec<String>,
    special: Option<special::Special>,
    pub kind: FormKind,
    /// Completes "asks because …".
    pub why: String,
}

/// Where a command would run, for the forms that depend on it.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Directories the command may run in; empty when unknown.
    pub cwds: &'a [std::path::PathBuf],
    pub worktree: &'a Path,
    pub home: &'a Path,
    /// Whether a file name that `*` yields may be taken for an option.
    pub globs_may_be_options: bool,
}

/// The table, indexed by program.
#[derive(Debug, Clone)]
pub struct DangerousForms {
    forms: Vec<DangerousForm>,
    by_program: HashMap<String, Vec<usize>>,
    wildcard: Vec<usize>,
}

/// The table does not read; only a change of the table can cause it.
#[derive(Debug, thiserror::Error)]
#[error("the table of dangerous forms does not parse")]
pub struct DangerousTableError(#[from] toml::de::Error);

#[derive(Deserialize)]
struct Table {
    form: Vec<DangerousForm>,
}

impl DangerousForms {
    /// The embedded table.
    ///
    /// # Panics
    /// Never with the table of this build; a test reads it.
    pub fn embedded() -> Self {
        Self::from_toml(TABLE).expect("the embedded table is checked by a test")
    }

    /// A table from TOML text.
    pub fn from_toml(text: &str) -> Result<Self, DangerousTableError> {
        let Table { form: forms } = toml::from_str(text)?;
        let mut by_program: HashMap<String, Vec<usize>> = HashMap::new();
        let mut wildcard = Vec::new();
        for (index, form) in forms.iter().enumerate() {
            for program in &form.programs {
                if program.contains('*') {
                    wildcard.push(index);
                } else {
                    by_program.entry(program.clone()).or_default().push(index);
                }
            }
        }
        Ok(Self { forms, by_program, wildcard })
    }

    pub fn forms(&self) -> &[DangerousForm] {
        &self.forms
    }

    /// The most severe form that this layer of a command has, or may have once it is expanded.
    pub fn find(&self, command: &PlainCommand, place: &Place<'_>) -> Option<&DangerousForm> {
        self.all(command, place).max_by_key(|form| form.kind)
    }

    /// Whether this layer runs or writes what its name does not say, beside whatever else it does.
    pub fn is_hidden(&self, command: &PlainCommand, place: &Place<'_>) -> bool {
        self.all(command, place).any(|form| form.kind == FormKind::Hidden)
    }

    fn all(&self, command: &PlainCommand, place: &Place<'_>) -> impl Iterator<Item = &DangerousForm> {
        let program = crate::bash::base_name(command.program().unwrap_or_default());
        let named = self.by_program.get(program).into_iter().flatten();
        let wild = self.wildcard.iter().filter(|index| {
            self.forms[**index].programs.iter().any(|pattern| wildcard::matches(pattern, program))
        });
        named.chain(wild).map(|index| &self.forms[*index]).filter(move |form| form.matches(command, place))
    }
}

impl DangerousForm {
    fn matches(&self, command: &PlainCommand, place: &Place<'_>) -> bool {
        let args = command.argv.get(1..).unwrap_or_default();
        let args = match self.sub.is_empty() {
            true => args,
            false => match subcommand(command) {
                Subcommand::At(at) => {
                    let name = command.argv[at].text().unwrap_or_default();
                    if !self.sub.iter().any(|sub| sub == name) {
                        return false;
                    }
                    command.argv.get(at + 1..).unwrap_or_default()
                }
                // A person is asked of what surely is that; what only may be it, as of an effect.
                Subcommand::Unknown if self.kind >= FormKind::Person => return false,
                Subcommand::Unknown => args,
                Subcommand::None => return false,
            },
        };
        if let Some(special) = self.special
            && !special.matches(command, args, place)
        {
            return false;
        }
        if self.flags.is_empty() && self.args.is_empty() {
            return true;
        }
        let program = crate::bash::base_name(command.program().unwrap_or_default());
        let one_dash = LONG_BY_ONE_DASH.contains(&program);
        args.iter().any(|arg| {
            self.flags.iter().any(|flag| flag_matches(flag, arg, place, one_dash))
                || self.args.iter().any(|pattern| arg_matches(pattern, arg))
        })
    }
}

/// Where the subcommand of a program like git or npm stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subcommand {
    At(usize),
    None,
    /// A word before it is known only to the shell.
    Unknown,
}

/// Options of these programs that take the next word and may stand before the subcommand.
const VALUED_GLOBAL_OPTIONS: [&str; 17] = [
    "-C",
    "-c",
    "--git-dir",
    "--work-tree",
    "--namespace",
    "--exec-path",
    "--config-env",
    "--super-prefix",
    "--attr-source",
    "--prefix",
    "--manifest-path",
    "--color",
    "--config",
    "--dir",
    "--filter",
    "--cwd",
    "-w",
];

pub(crate) fn subcommand(command: &PlainCommand) -> Subcommand {
    let mut at = 1;
    while let Some(word) = command.argv.get(at) {
        match word.text() {
            None => return Subcommand::Unknown,
            Some(text) if VALUED_GLOBAL_OPTIONS.contains(&text) => at += 2,
            // `cargo +nightly test`
            Some(text) if text.starts_with('-') || text.starts_with('+') => at += 1,
            Some(_) => return Subcommand::At(at),
        }
    }
    Subcommand::None
}

/// Programs that take long options behind one dash as well.
const LONG_BY_ONE_DASH: [&str; 5] = ["npm", "npx", "pnpm", "pnpx", "yarn"];

fn flag_matches(flag: &str, arg: &Word, place: &Place<'_>, one_dash: bool) -> bool {
    let Some(text) = arg.text() else { return arg.may_be_option() };
    // A file may bear the name of an option, and `-*` or `*` become it.
    let may_expand_to_option = arg.glob && text.starts_with(['*', '?', '[', '-']);
    if place.globs_may_be_options && may_expand_to_option {
        return true;
    }
    if !text.starts_with('-') {
        return false;
    }
    if let Some(long) = flag.strip_prefix("--") {
        let given = match text.strip_prefix("--") {
            Some(given) => given,
            // One letter is a short option.
            None if one_dash && text.len() > 2 => &text[1..],
            None => return false,
        };
        // Any start of a name that no other one shares is taken for it; which others there are, nobody knows here.
        let name = given.split('=').next().unwrap_or_default();
        return !name.is_empty() && long.starts_with(name);
    }
    match flag.strip_prefix('-') {
        Some(letter) if letter.chars().count() == 1 => !text.starts_with("--") && text[1..].contains(letter),
        // `-exec` of go is also `--exec=x`.
        _ => text.trim_start_matches('-').split('=').next() == Some(flag.trim_start_matches('-')),
    }
}

fn arg_matches(pattern: &str, arg: &Word) -> bool {
    match arg.text() {
        Some(text) => wildcard::matches(pattern, text),
        None => wildcard::may_match(pattern, arg),
    }
}

#[cfg(test)]
mod tests;
