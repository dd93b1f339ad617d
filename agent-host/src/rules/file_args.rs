//! Which arguments of well-known programs are files.

use crate::{
    bash::{PlainCommand, Word, base_name},
    dangerous::{Subcommand, subcommand},
};

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
const READERS: [&str; 47] = [
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
    "fold",
    "cksum",
    "realpath",
    "readlink",
    "test",
    "df",
];
/// Programs that write, move or delete the files they are given.
const WRITERS: [&str; 19] = [
    "touch", "mkdir", "rm", "rmdir", "mv", "cp", "ln", "tee", "truncate", "install", "chmod", "chown",
    "chgrp", "unlink", "shred", "patch", "dd", "rsync", "mktemp",
];
/// Programs whose arguments are not files.
const TEXT: [&str; 25] = [
    "echo", "printf", "true", "false", "pwd", "date", "sleep", "seq", "export", "unset", "whoami", "uname",
    "id", "git", "basename", "dirname", "tr", "which", "type", "hostname", "nproc", "arch", "tty", "groups",
    "uptime",
];
/// Subcommands of git that print what files hold, now or in a commit.
const GIT_READERS: [&str; 13] = [
    "annotate",
    "archive",
    "blame",
    "cat-file",
    "diff",
    "diff-files",
    "diff-index",
    "diff-tree",
    "grep",
    "hash-object",
    "log",
    "show",
    "whatchanged",
];
/// Short options of readers whose value is a file: it may stand in the same word.
const FILE_OPTIONS: [(&str, &str); 13] = [
    ("grep", "f"),
    ("egrep", "f"),
    ("fgrep", "f"),
    ("rg", "f"),
    ("sed", "f"),
    ("awk", "f"),
    ("jq", "fL"),
    ("file", "fm"),
    ("hexdump", "f"),
    ("du", "X"),
    ("sort", "T"),
    ("less", "ko"),
    ("date", "fr"),
];
/// Long options whose value is a file, in a word of its own perhaps: no first operand of a pattern's.
const FILE_LONG_OPTIONS: [&str; 8] = [
    "exclude-from",
    "include-from",
    "exclude-dir-from",
    "file",
    "files-from",
    "from-file",
    "ignore-file",
    "slurpfile",
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
    if git_reader(command).is_some() {
        FileUse::Reads
    } else if TEXT.contains(&program) {
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
    if let Some(git) = git_reader(command) {
        let (mut files, tree_paths) = git.files();
        files.extend(tree_paths);
        return files.iter().map(|word| git.in_its_directory(word)).collect();
    }
    let args = command.argv.get(1..).unwrap_or_default();
    let mut skip_first =
        PATTERN_FIRST.contains(&program) && !args.iter().any(|word| word.text().is_some_and(gives_pattern));
    let mut only_operands = false;
    let mut files = Vec::new();
    for word in args {
        match word.text() {
            Some("--") if !only_operands => only_operands = true,
            Some(text) if !only_operands && text.starts_with('-') && text.len() > 1 => {
                files.extend(text.split_once('=').map(|(_, value)| behind_equals(value)));
                files.extend(attached(program, text).map(Word::literal));
            }
            Some(text) => {
                if std::mem::take(&mut skip_first) {
                    continue;
                }
                match (program, text.split_once('=')) {
                    ("dd", Some((_, value))) => files.push(behind_equals(value)),
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

/// Whether an option gives the pattern, or takes a file that stands where the pattern would. In doubt it does: then the
/// pattern is looked at as if it were a file.
fn gives_pattern(text: &str) -> bool {
    match text.strip_prefix("--") {
        Some("") | None => text.starts_with('-') && !text.starts_with("--") && text.contains(['e', 'f']),
        Some(long) => {
            let name = long.split('=').next().unwrap_or_default();
            ["regexp", "expression"].iter().chain(&FILE_LONG_OPTIONS).any(|option| option.starts_with(name))
        }
    }
}

/// The file in the same word as a short option: `-f/etc/passwd`, `-nf.env`.
fn attached<'a>(program: &str, text: &'a str) -> Option<&'a str> {
    let (_, letters) = FILE_OPTIONS.iter().find(|(known, _)| *known == program)?;
    let cluster = text.strip_prefix('-').filter(|cluster| !cluster.starts_with('-'))?;
    let (at, letter) = cluster.char_indices().find(|(_, c)| letters.contains(*c))?;
    Some(&cluster[at + letter.len_utf8()..]).filter(|value| !value.is_empty())
}

/// Whether the command walks directories and follows the links in them.
pub(crate) fn follows_links(command: &PlainCommand) -> bool {
    let (short, long): (&str, &[&str]) = match command.program().map(base_name) {
        Some("grep" | "egrep" | "fgrep") => ("R", &["dereference-recursive"]),
        Some("rg" | "fd" | "fdfind") => ("L", &["follow"]),
        Some("ag") => ("f", &["follow"]),
        Some("find" | "gfind") => ("L", &["follow"]),
        Some("tree") => ("l", &[]),
        Some("du") => ("L", &["dereference"]),
        Some("diff") => ("r", &["recursive"]),
        _ => return false,
    };
    command.argv.iter().skip(1).filter_map(Word::text).any(|text| match text.strip_prefix("--") {
        Some("") => false,
        Some(name) => long.iter().any(|long| long.starts_with(name.split('=').next().unwrap_or_default())),
        None => text == "-follow" || (text.starts_with('-') && text.contains(|c| short.contains(c))),
    })
}

/// The shell expands a `~` behind `NAME=`, too.
fn behind_equals(value: &str) -> Word {
    let mut word = Word::literal(value);
    word.tilde = value.starts_with('~');
    word
}

/// Files that the command names from the top of the repository: `git show HEAD:a/b`.
pub(crate) fn tree_paths(command: &PlainCommand) -> Vec<Word> {
    git_reader(command).map(|git| git.files().1).unwrap_or_default()
}

/// Whether it prints objects by names that do not tell which file they are of.
pub(crate) fn prints_any_object(command: &PlainCommand) -> bool {
    git_reader(command).is_some_and(|git| {
        let only_facts = |word: &Word| matches!(word.text(), Some("-t" | "-s" | "-e" | "--batch-check"));
        git.name == "cat-file" && !git.args.iter().any(only_facts) && git.files().1.is_empty()
    })
}

/// A call of git that prints what files hold.
struct GitReader<'a> {
    name: &'a str,
    args: &'a [Word],
    /// Values of `-C`.
    directories: Vec<&'a Word>,
}

fn git_reader(command: &PlainCommand) -> Option<GitReader<'_>> {
    let Subcommand::At(at) = subcommand(command) else { return None };
    let name = command.argv[at].text()?;
    if command.program().map(base_name) != Some("git") || !GIT_READERS.contains(&name) {
        return None;
    }
    let globals = &command.argv[1..at];
    let directories =
        globals.windows(2).filter(|pair| pair[0].text() == Some("-C")).map(|pair| &pair[1]).collect();
    Some(GitReader { name, args: &command.argv[at + 1..], directories })
}

impl GitReader<'_> {
    /// Its operands, each of which may be a file; and the paths inside of them: `rev:path`, `:(magic)path`,
    /// `-L1,2:path`.
    fn files(&self) -> (Vec<Word>, Vec<Word>) {
        let gives_pattern =
            |word: &Word| word.text().is_some_and(|text| text.starts_with("-e") || text.starts_with("-f"));
        let mut skip = self.name == "grep" && !self.args.iter().any(gives_pattern);
        let (mut files, mut inner) = (Vec::new(), Vec::new());
        let mut only_operands = false;
        for word in self.args {
            let Some(text) = word.text() else {
                if !std::mem::take(&mut skip) {
                    files.push(word.clone());
                }
                continue;
            };
            match text {
                "--" if !only_operands => only_operands = true,
                "-e" if self.name == "grep" && !only_operands => skip = true,
                _ if !only_operands && text.starts_with('-') => {
                    let value = match self.name {
                        "grep" => text.strip_prefix("-f"),
                        "log" | "show" | "blame" | "annotate" => text.strip_prefix("-L"),
                        _ => None,
                    };
                    let value = value.or_else(|| text.strip_prefix("--contents="));
                    let value = value.filter(|value| !value.is_empty());
                    files.extend(value.map(Word::literal));
                    inner.extend(value.into_iter().flat_map(behind_colons));
                }
                _ if std::mem::take(&mut skip) => {}
                _ => {
                    let mut file = word.clone();
                    // Git has wildcards of its own, which quotes do not take away.
                    file.glob |= has_wildcard(text);
                    files.push(file);
                    inner.extend(behind_colons(text));
                }
            }
        }
        (files, inner)
    }

    /// The word as seen from where `-C` leads.
    fn in_its_directory(&self, word: &Word) -> Word {
        let Some(text) = word.text() else { return word.clone() };
        if self.directories.is_empty() || text.starts_with('/') || word.tilde {
            return word.clone();
        }
        let mut path = std::path::PathBuf::new();
        let mut tilde = false;
        for directory in &self.directories {
            let Some(text) = directory.text() else { return Word::unknown() };
            tilde = directory.tilde || (tilde && !text.starts_with('/'));
            if directory.tilde {
                path.clear();
            }
            path.push(text);
        }
        let mut from_there = Word::literal(path.join(text).to_string_lossy());
        (from_there.glob, from_there.tilde) = (word.glob, tilde);
        from_there
    }
}

fn has_wildcard(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// What may be a path in `rev:path`, `:0:path`, `:(icase)path`, `:/path`.
fn behind_colons(text: &str) -> impl Iterator<Item = Word> {
    text.match_indices(':').filter_map(|(at, _)| {
        let rest = &text[at + 1..];
        let rest =
            rest.strip_prefix('(').and_then(|magic| magic.split_once(')')).map_or(rest, |(_, rest)| rest);
        let rest = rest.trim_start_matches('/');
        (!rest.is_empty()).then(|| {
            let mut path = Word::literal(rest);
            path.glob = has_wildcard(rest);
            path
        })
    })
}

/// Whether the command walks the directories it is given.
pub(crate) fn walks_directories(command: &PlainCommand) -> bool {
    let Some(program) = command.program().map(base_name) else { return false };
    match program {
        "git" => git_reader(command).is_some_and(|git| {
            let no_index = |word: &Word| word.text() == Some("--no-index");
            git.name == "grep" || (git.name == "diff" && git.args.iter().any(no_index))
        }),
        "rg" | "ag" | "ack" | "tar" | "zip" | "rsync" => true,
        "grep" | "egrep" | "fgrep" | "cp" | "diff" | "scp" => command.argv.iter().any(|word| {
            word.text().is_some_and(|text| {
                matches!(text, "--recursive" | "--dereference-recursive" | "--archive" | "recurse")
                    || text.ends_with("=recurse")
                    || text == "-drecurse"
                    || (text.starts_with('-') && !text.starts_with("--") && text.contains(['r', 'R', 'a']))
            })
        }),
        _ => false,
    }
}
