//! The checks of the table that a list of options cannot express.

use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::{Place, Subcommand, subcommand};
use crate::{
    bash::{Connector, PlainCommand, RedirectOp, Word},
    rules::globs::may_meet,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Special {
    /// An operand is, or may be, a path whose loss cannot be made good.
    CriticalTarget,
    /// `find … -delete` without a test.
    FindDeletesAll,
    /// An interpreter whose program comes from a pipe.
    ScriptFromPipe,
    /// `rsync` and the like with a remote operand; the others always.
    RemoteTarget,
    /// A git option before the subcommand that changes repository or programs.
    GitGlobalOption,
    /// `git config` that is not a query.
    GitConfigWrite,
    /// `git config` of a key that names a program, or includes a file that may.
    GitConfigProgram,
    /// Subcommands of which only the listing form is harmless.
    GitNotListing,
    /// A sed script with `e`, `w` or `W`.
    SedScript,
    /// Options of tar in its first word, without a dash.
    TarBundle,
    /// A second operand, which is the output.
    SecondOperand,
}

impl Special {
    pub(super) fn matches(self, command: &PlainCommand, args: &[Word], place: &Place<'_>) -> bool {
        match self {
            Self::CriticalTarget => operands(args).any(|word| is_critical(word, place)),
            Self::FindDeletesAll => find_deletes_all(args),
            Self::ScriptFromPipe => script_from_pipe(command, args),
            Self::RemoteTarget => remote_target(command, args),
            Self::GitGlobalOption => git_global_option(command),
            Self::GitConfigWrite => git_config_write(args),
            Self::GitConfigProgram => git_config_write(args) && args.iter().any(names_program),
            Self::GitNotListing => git_not_listing(command, args),
            Self::SedScript => sed_scripts(args).iter().any(sed_script_acts),
            Self::TarBundle => args.first().and_then(Word::text).is_some_and(|first| {
                !first.starts_with('-') && first.len() < 12 && first.contains(['I', 'F'])
            }),
            Self::SecondOperand => operands(args).count() > 1,
        }
    }
}

/// Arguments that are not options.
fn operands(args: &[Word]) -> impl Iterator<Item = &Word> {
    let mut only_operands = false;
    args.iter().filter(move |word| match word.text() {
        Some("--") if !only_operands => {
            only_operands = true;
            false
        }
        Some(text) => only_operands || !text.starts_with('-') || text == "-",
        None => true,
    })
}

/// Names inside a worktree that hold what a branch cannot give back.
const CRITICAL_NAMES: [&str; 2] = [".git", ".jj"];

fn is_critical(word: &Word, place: &Place<'_>) -> bool {
    let Some(text) = word.text() else {
        // `rm "$dir"/x` may be `/x`; `rm build-$arch` stays below the directory.
        return word.may_be_option() || first_text(word).is_some_and(|text| text.starts_with('/'));
    };
    if place.cwds.is_empty() {
        return true;
    }
    let text = match (word.tilde, text.strip_prefix('~')) {
        (true, Some(rest)) if rest.is_empty() || rest.starts_with('/') => {
            format!("{}{rest}", place.home.display())
        }
        (true, _) => return true,
        _ => text.to_owned(),
    };
    // A pattern that may stand for everything in a directory is as bad as the directory.
    let text = match text.rsplit_once('/') {
        _ if !word.glob => text,
        Some(("", "*" | ".*" | "**")) => "/".to_owned(),
        Some((head, "*" | ".*" | "**")) => head.to_owned(),
        None if matches!(text.as_str(), "*" | ".*" | "**") => ".".to_owned(),
        _ => text,
    };
    place.cwds.iter().any(|cwd| {
        let path = normalize(&cwd.join(&text));
        place.worktree.starts_with(&path)
            || place.home.starts_with(&path)
            || (!path.starts_with(place.worktree) && path.components().count() <= 3 && !is_temp(&path))
            || CRITICAL_NAMES.iter().map(|name| place.worktree.join(name)).any(|critical| {
                path.starts_with(&critical)
                    || (word.glob && may_meet(&path.to_string_lossy(), &critical.to_string_lossy()))
            })
    })
}

fn is_temp(path: &Path) -> bool {
    ["/tmp", "/var/tmp"].iter().any(|temp| path.starts_with(temp) && path != Path::new(temp))
}

fn first_text(word: &Word) -> Option<&str> {
    match word.pieces().first()? {
        crate::bash::Piece::Text(text) => Some(text),
        crate::bash::Piece::Unknown => None,
    }
}

/// Resolves `.` and `..` in the text of a path.
pub(crate) fn normalize(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

fn find_deletes_all(args: &[Word]) -> bool {
    let has = |names: &[&str]| args.iter().any(|word| word.text().is_some_and(|text| names.contains(&text)));
    let tests = [
        "-name",
        "-iname",
        "-path",
        "-ipath",
        "-wholename",
        "-regex",
        "-iregex",
        "-newer",
        "-mtime",
        "-mmin",
        "-size",
        "-empty",
        "-atime",
        "-ctime",
        "-user",
        "-perm",
    ];
    has(&["-delete"]) && !has(&tests)
}

fn script_from_pipe(command: &PlainCommand, args: &[Word]) -> bool {
    let from_stdin = command.after == Connector::Pipe
        || command.redirects.iter().any(|redirect| redirect.op == RedirectOp::Read);
    let has_program = args.iter().any(|word| match word.text() {
        Some(text) => {
            (!text.starts_with('-') && text != "/dev/stdin")
                || matches!(text, "-c" | "-e" | "-m" | "-n" | "-p")
        }
        None => false,
    });
    let stdin_named = args.iter().any(|word| matches!(word.text(), Some("/dev/stdin" | "/dev/fd/0")));
    (from_stdin && !has_program) || stdin_named
}

fn remote_target(command: &PlainCommand, args: &[Word]) -> bool {
    match command.program().map(crate::bash::base_name) {
        Some("rsync" | "rclone") => args.iter().any(|word| match word.text() {
            Some(text) => text.contains(':'),
            None => true,
        }),
        _ => true,
    }
}

/// Options of git before the subcommand that change nothing but the output.
const HARMLESS_GLOBALS: [&str; 8] = [
    "--no-pager",
    "-P",
    "--no-optional-locks",
    "--literal-pathspecs",
    "--no-replace-objects",
    "--version",
    "--help",
    "-h",
];

fn git_global_option(command: &PlainCommand) -> bool {
    let end = match subcommand(command) {
        Subcommand::At(at) => at,
        Subcommand::None => command.argv.len(),
        Subcommand::Unknown => return true,
    };
    command.argv[1..end.max(1)]
        .iter()
        .any(|word| !word.text().is_some_and(|text| HARMLESS_GLOBALS.contains(&text)))
}

fn git_config_write(args: &[Word]) -> bool {
    let queries = ["--get", "--get-all", "--get-regexp", "--get-urlmatch", "--list", "-l"];
    let writes = [
        "--add",
        "--unset",
        "--unset-all",
        "--replace-all",
        "--rename-section",
        "--remove-section",
        "-e",
        "--edit",
        "set",
        "unset",
        "edit",
        "rename-section",
        "remove-section",
    ];
    let texts: Vec<&str> = args.iter().filter_map(Word::text).collect();
    if texts.len() != args.len() || texts.iter().any(|text| writes.contains(text)) {
        return true;
    }
    // Behind the first operand they are values.
    let options = texts.iter().take_while(|text| text.starts_with('-'));
    if matches!(texts.first(), Some(&("get" | "list")))
        || options.into_iter().any(|text| queries.contains(text))
    {
        return false;
    }
    texts.iter().filter(|text| !text.starts_with('-')).count() != 1
}

/// Keys of git's configuration that name programs, directories of programs, or further files of configuration.
const PROGRAM_KEYS: [&str; 38] = [
    "alias.*",
    "browser.*",
    "core.alternaterefscommand",
    "core.askpass",
    "core.attributesfile",
    "core.editor",
    "core.fsmonitor",
    "core.gitproxy",
    "core.hookspath",
    "core.pager",
    "core.sshcommand",
    "core.worktree",
    "credential.*",
    "diff.external",
    "diff.*.command",
    "diff.*.textconv",
    "difftool.*",
    "filter.*",
    "gpg.*",
    "guitool.*",
    "hook.*",
    "imap.tunnel",
    "include.*",
    "includeif.*",
    "init.templatedir",
    "instaweb.*",
    "interactive.difffilter",
    "man.*",
    "merge.*.driver",
    "mergetool.*",
    "pager.*",
    "protocol.*",
    "remote.*",
    "sendemail.*",
    "sequence.editor",
    "submodule.*",
    "trailer.*",
    "uploadpack.*",
];

/// Git's keys are the same in any case.
fn names_program(arg: &Word) -> bool {
    match arg.text() {
        Some(text) => {
            let text = text.to_ascii_lowercase();
            matches!(text.as_str(), "-e" | "--edit" | "edit")
                || PROGRAM_KEYS.iter().any(|key| crate::rules::wildcard::matches(key, &text))
        }
        None => true,
    }
}

fn git_not_listing(command: &PlainCommand, args: &[Word]) -> bool {
    let Subcommand::At(at) = subcommand(command) else { return true };
    let listing: &[&str] = match command.argv[at].text() {
        Some("reflog") => &["show", "exists"],
        Some("notes") => &["list", "show"],
        Some("replace") => &["-l", "--list"],
        Some("symbolic-ref") => {
            return args.iter().filter(|word| word.may_be_option() || word.is_known()).count() > 1;
        }
        _ => return true,
    };
    match args.first() {
        None => false,
        Some(word) => !word.text().is_some_and(|text| {
            listing.contains(&text) || (text.starts_with('-') && command.argv[at].text() == Some("reflog"))
        }),
    }
}

/// The script texts of a sed command; `None` inside stands for one that is not known.
fn sed_scripts(args: &[Word]) -> Vec<Option<String>> {
    let mut scripts = Vec::new();
    let mut operand = None;
    let mut words = args.iter();
    while let Some(word) = words.next() {
        match word.text() {
            Some("--") => {}
            Some(text) if text.starts_with("--") => {
                let (name, value) = match text[2..].split_once('=') {
                    Some((name, value)) => (name, Some(value)),
                    None => (&text[2..], None),
                };
                // Abbreviated, too. What stands in a file is not known.
                if "expression".starts_with(name) {
                    let next = || words.next().and_then(Word::text);
                    scripts.push(value.or_else(next).map(str::to_owned));
                } else if "file".starts_with(name) {
                    scripts.push(None);
                }
            }
            Some(text) if text.starts_with('-') && text.len() > 1 => {
                // `-ne SCRIPT`; after `-i` the rest of the word is a suffix.
                let letters = text.trim_start_matches('-').split('i').next().unwrap_or_default();
                if let Some((_, rest)) = letters.split_once('e') {
                    scripts.push(match rest.is_empty() {
                        true => words.next().and_then(Word::text).map(str::to_owned),
                        false => Some(rest.to_owned()),
                    });
                }
            }
            text => {
                if operand.is_none() {
                    operand = Some(text.map(str::to_owned));
                }
            }
        }
    }
    if scripts.is_empty() {
        scripts.extend(operand);
    }
    scripts
}

/// Whether a sed script runs a command or writes a file; what is not understood does.
fn sed_script_acts(script: &Option<String>) -> bool {
    let Some(script) = script else { return true };
    let chars: Vec<char> = script.chars().collect();
    let mut at = 0;
    // Skips to behind the closing delimiter.
    let section = |mut at: usize, delimiter: char| {
        while let Some(c) = chars.get(at) {
            match c {
                '\\' => at += 2,
                c if *c == delimiter => return Some(at + 1),
                _ => at += 1,
            }
        }
        None
    };
    while let Some(&c) = chars.get(at) {
        at += 1;
        match c {
            ' ' | '\t' | '\n' | ';' | '{' | '}' | '0'..='9' | '$' | ',' | '~' | '+' | '!' => {}
            '/' => match section(at, '/') {
                Some(end) => {
                    at = end;
                    while matches!(chars.get(at), Some('I' | 'M')) {
                        at += 1;
                    }
                }
                None => return true,
            },
            'p' | 'd' | 'D' | 'g' | 'G' | 'h' | 'H' | 'n' | 'N' | 'P' | 'x' | '=' | 'q' | 'Q' | 'l' | 'F'
            | 'z' => {}
            's' | 'y' => {
                let Some(&delimiter) = chars.get(at) else { return true };
                let Some(end) = section(at + 1, delimiter).and_then(|middle| section(middle, delimiter))
                else {
                    return true;
                };
                at = end;
                while let Some(flag) = chars.get(at).filter(|c| c.is_ascii_alphanumeric()) {
                    if matches!(flag, 'e' | 'w' | 'm' | 'M') {
                        return true;
                    }
                    at += 1;
                }
            }
            'a' | 'i' | 'c' | '#' | ':' | 'b' | 't' | 'T' => {
                let ends_at_semicolon = matches!(c, ':' | 'b' | 't' | 'T');
                while let Some(&next) = chars.get(at) {
                    at += 1;
                    // The text of `a`, `i` and `c` goes on behind it, and how far is not looked at.
                    if next == '\\' && c != '#' {
                        return true;
                    }
                    if next == '\n' || (ends_at_semicolon && matches!(next, ';' | '}')) {
                        break;
                    }
                }
            }
            _ => return true,
        }
    }
    false
}
