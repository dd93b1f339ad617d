//! Which arguments of well-known programs are files.

use crate::bash::{PlainCommand, Word, base_name};

/// What a program does with the files it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileUse {
    Reads,
    Writes,
    /// The program is not known: an argument may be a file or not.
    Unknown,
    /// Arguments are text or names, never opened.
    None,
}

/// Programs that read the files they are given.
const READERS: [&str; 41] = [
    "cat",
    "head",
    "tail",
    "less",
    "more",
    "nl",
    "wc",
    "grep",
    "egrep",
    "fgrep",
    "rg",
    "ag",
    "find",
    "fd",
    "diff",
    "cmp",
    "comm",
    "stat",
    "file",
    "du",
    "ls",
    "tree",
    "sort",
    "uniq",
    "cut",
    "paste",
    "tac",
    "rev",
    "od",
    "xxd",
    "hexdump",
    "strings",
    "base64",
    "md5sum",
    "sha1sum",
    "sha256sum",
    "awk",
    "sed",
    "jq",
    "column",
    "cd",
];
/// Programs that write, move or delete the files they are given.
const WRITERS: [&str; 19] = [
    "touch", "mkdir", "rm", "rmdir", "mv", "cp", "ln", "tee", "truncate", "install", "chmod", "chown",
    "chgrp", "unlink", "shred", "patch", "dd", "rsync", "mktemp",
];
/// Programs whose arguments are not files.
const TEXT: [&str; 14] = [
    "echo", "printf", "true", "false", "pwd", "date", "sleep", "seq", "export", "unset", "whoami", "uname",
    "id", "git",
];
/// The first operand of these is a pattern or a script, unless `-e` or `-f` gives it.
const PATTERN_FIRST: [&str; 9] = ["grep", "egrep", "fgrep", "rg", "ag", "awk", "sed", "jq", "fd"];

pub(crate) fn file_use(command: &PlainCommand) -> FileUse {
    let Some(program) = command.program().map(base_name) else { return FileUse::None };
    let has = |flag: char| {
        command.argv.iter().any(|word| {
            word.text()
                .is_some_and(|text| text.starts_with('-') && !text.starts_with("--") && text.contains(flag))
        })
    };
    if program == "sed"
        && (has('i')
            || command.argv.iter().any(|word| word.text().is_some_and(|t| t.starts_with("--in-place"))))
    {
        return FileUse::Writes;
    }
    if TEXT.contains(&program) {
        FileUse::None
    } else if READERS.contains(&program) {
        FileUse::Reads
    } else if WRITERS.contains(&program) {
        FileUse::Writes
    } else {
        FileUse::Unknown
    }
}

/// The arguments that are, or may be, files.
pub(crate) fn file_args(command: &PlainCommand) -> Vec<Word> {
    let Some(program) = command.program().map(base_name) else { return Vec::new() };
    let args = command.argv.get(1..).unwrap_or_default();
    let mut skip_first = PATTERN_FIRST.contains(&program)
        && !args.iter().any(|word| {
            word.text().is_some_and(|text| {
                matches!(text, "-e" | "-f")
                    || text.starts_with("--regexp")
                    || text.starts_with("--file")
                    || text.starts_with("--expression")
            })
        });
    let mut only_operands = false;
    let mut files = Vec::new();
    for word in args {
        match word.text() {
            Some("--") if !only_operands => only_operands = true,
            Some(text) if !only_operands && text.starts_with('-') && text.len() > 1 => {
                if let Some((_, value)) = text.split_once('=') {
                    files.push(Word::literal(value));
                }
            }
            Some(text) => {
                if std::mem::take(&mut skip_first) {
                    continue;
                }
                match (program, text.split_once('=')) {
                    ("dd", Some((_, value))) => files.push(Word::literal(value)),
                    _ => files.push(word.clone()),
                }
            }
            None => {
                if !std::mem::take(&mut skip_first) {
                    files.push(word.clone());
                }
            }
        }
    }
    files
}

/// Whether the command walks the directories it is given.
pub(crate) fn walks_directories(command: &PlainCommand) -> bool {
    let Some(program) = command.program().map(base_name) else { return false };
    match program {
        "rg" | "ag" | "ack" | "tar" | "zip" | "rsync" => true,
        "grep" | "egrep" | "fgrep" | "cp" => command.argv.iter().any(|word| {
            word.text().is_some_and(|text| {
                matches!(text, "--recursive" | "--dereference-recursive" | "--archive")
                    || (text.starts_with('-') && !text.starts_with("--") && text.contains(['r', 'R', 'a']))
            })
        }),
        _ => false,
    }
}
