//! The commands that need no rule: they read, print, and do nothing else.

use crate::{
    bash::{PlainCommand, Word},
    dangerous::{Subcommand, subcommand},
};

/// Programs without any option that writes or runs (the options that do stand in the table of
/// dangerous forms, which is asked before this set).
const PROGRAMS: [&str; 49] = [
    "ls",
    "cat",
    "echo",
    "pwd",
    "head",
    "tail",
    "grep",
    "egrep",
    "fgrep",
    "rg",
    "find",
    "wc",
    "which",
    "diff",
    "stat",
    "du",
    "df",
    "cd",
    "true",
    "false",
    ":",
    "basename",
    "dirname",
    "realpath",
    "readlink",
    "cut",
    "tr",
    "nl",
    "rev",
    "tac",
    "file",
    "tree",
    "id",
    "whoami",
    "uname",
    "seq",
    "comm",
    "paste",
    "cmp",
    "od",
    "hexdump",
    "strings",
    "md5sum",
    "sha1sum",
    "sha256sum",
    "cksum",
    "sleep",
    "type",
    "fold",
];

/// Read-only git subcommands, each with the options and words that make it something else.
const GIT: [(&str, &[&str]); 19] = [
    ("status", &[]),
    ("log", &[]),
    ("diff", &[]),
    ("show", &[]),
    ("rev-parse", &[]),
    ("ls-files", &[]),
    ("ls-tree", &[]),
    ("blame", &[]),
    ("describe", &[]),
    ("shortlog", &[]),
    ("cat-file", &[]),
    ("merge-base", &[]),
    ("rev-list", &[]),
    ("grep", &[]),
    ("count-objects", &[]),
    ("name-rev", &[]),
    ("show-ref", &["--verify-write"]),
    ("for-each-ref", &["--shell", "--perl", "--python", "--tcl"]),
    ("check-ignore", &[]),
];

/// Whether a layer without dangerous form only reads. Redirections and paths are judged elsewhere.
pub(crate) fn is_read_only(command: &PlainCommand) -> bool {
    if !command.assignments.is_empty() {
        return false;
    }
    // By its plain name only: `./cat` is another program.
    let Some(program) = command.program() else { return false };
    let args = command.argv.get(1..).unwrap_or_default();
    let operands =
        || args.iter().filter(|word| !word.text().is_some_and(|text| text.starts_with('-'))).count();
    match program {
        "git" => git_is_read_only(command),
        "printf" => args.first().is_some_and(prints_format),
        // Whether a variable is set is asked of a name that may hold a command: `a[$(x)]`.
        "test" => {
            args.iter().all(|word| word.text().is_some_and(|text| !matches!(text, "-v" | "-R" | "-o" | "-a")))
        }
        "date" => {
            args.iter().all(|word| word.text().is_some_and(|text| text.starts_with('+') || text == "-u"))
        }
        // The second operand is the output.
        "uniq" => operands() <= 1 && args.iter().all(Word::is_known),
        "sort" => args.iter().all(Word::is_known),
        "sed" => {
            args.first().and_then(Word::text) == Some("-n")
                && args.get(1).and_then(Word::text).is_some_and(prints_lines)
                // Options may stand behind files as well.
                && args[2..].iter().all(|word| !word.may_be_option())
        }
        "command" => matches!(args.first().and_then(Word::text), Some("-v" | "-V")),
        "hostname" | "nproc" | "arch" | "tty" | "groups" | "uptime" => args.is_empty(),
        _ => PROGRAMS.contains(&program),
    }
}

/// `printf -v NAME` and `%n` set a variable.
fn prints_format(format: &Word) -> bool {
    let Some(text) = format.text() else { return false };
    let sets = text.split('%').skip(1).any(|rest| {
        let flag = |c: char| c.is_ascii_digit() || "#-+ 0'.*$hlqjzLt".contains(c);
        rest.trim_start_matches(flag).starts_with('n')
    });
    !text.starts_with('-') && !sets
}

/// `10,20p`
fn prints_lines(script: &str) -> bool {
    script
        .strip_suffix('p')
        .is_some_and(|lines| lines.chars().all(|c| c.is_ascii_digit() || matches!(c, ',' | '$')))
}

fn git_is_read_only(command: &PlainCommand) -> bool {
    let Subcommand::At(at) = subcommand(command) else { return false };
    let Some(name) = command.argv[at].text() else { return false };
    let args = &command.argv[at + 1..];
    let texts: Vec<&str> = args.iter().filter_map(Word::text).collect();
    let all_known = texts.len() == args.len();
    // Given paths outside the repository, git compares and searches those.
    let leads_outside = |word: &Word| {
        word.tilde
            || word.text().is_none_or(|text| {
                text.starts_with('/')
                    || text == "--no-index"
                    || ["=/", "=~", "-f/", "-X/", "-S/", "-O/"].iter().any(|path| text.contains(path))
                    || text.split(['/', '=', ':']).any(|part| part == "..")
            })
    };
    if args.iter().any(leads_outside) {
        return false;
    }
    if let Some((_, except)) = GIT.iter().find(|(git, _)| *git == name) {
        return all_known && !texts.iter().any(|text| except.contains(text));
    }
    match name {
        "branch" => {
            all_known
                && texts.iter().all(|text| {
                    matches!(
                        *text,
                        "-a" | "-r"
                            | "-v"
                            | "-vv"
                            | "--all"
                            | "--remotes"
                            | "--verbose"
                            | "--list"
                            | "-l"
                            | "--show-current"
                    )
                })
        }
        "remote" => all_known && texts.iter().all(|text| matches!(*text, "-v" | "--verbose")),
        "tag" => all_known && (texts.is_empty() || matches!(texts[0], "-l" | "--list")),
        "stash" => all_known && matches!(texts.first(), Some(&("list" | "show"))),
        "worktree" => all_known && matches!(texts.first(), Some(&"list")),
        "config" => {
            all_known
                && matches!(texts.first(), Some(&("--get" | "--list" | "-l" | "get" | "list" | "--get-all")))
        }
        _ => false,
    }
}

/// Variables in front of a command that change nothing about which program runs.
const SAFE_VARIABLES: [&str; 17] = [
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "NO_COLOR",
    "FORCE_COLOR",
    "CLICOLOR",
    "TERM",
    "COLUMNS",
    "LINES",
    "RUST_BACKTRACE",
    "RUST_LOG",
    "NODE_ENV",
    "CI",
    "DEBUG",
    "GIT_TERMINAL_PROMPT",
    "PYTHONUNBUFFERED",
];
/// Variables that change which program runs, or what later commands mean.
const RISKY_VARIABLES: [&str; 70] = [
    "PATH",
    "IFS",
    "ENV",
    "BASH_ENV",
    "PROMPT_COMMAND",
    "PS0",
    "PS1",
    "PS4",
    "SHELLOPTS",
    "BASHOPTS",
    "CDPATH",
    "GLOBIGNORE",
    "HOME",
    "SHELL",
    "TMPDIR",
    "EDITOR",
    "VISUAL",
    "PAGER",
    "MANPAGER",
    "BROWSER",
    "LESSOPEN",
    "LESSCLOSE",
    "RIPGREP_CONFIG_PATH",
    "GREP_OPTIONS",
    "PYTHONSTARTUP",
    "PYTHONHOME",
    "PERL5OPT",
    "RUBYOPT",
    "NODE_OPTIONS",
    "JAVA_TOOL_OPTIONS",
    "RUSTC_WRAPPER",
    "SSH_ASKPASS",
    "SUDO_ASKPASS",
    "MAKEFLAGS",
    "EXECIGNORE",
    "INPUTRC",
    "FCEDIT",
    "SUDO_EDITOR",
    "BASH_LOADABLES_PATH",
    "GCONV_PATH",
    "OPENSSL_CONF",
    "MANOPT",
    "TAR_OPTIONS",
    "RSYNC_RSH",
    "RSYNC_CONNECT_PROG",
    "CVS_RSH",
    "PERL5DB",
    "RUBYSHELL",
    "NODE_REPL_EXTERNAL_MODULE",
    "LUA_INIT",
    "PHPRC",
    "PHP_INI_SCAN_DIR",
    "WGETRC",
    "CURL_HOME",
    "_JAVA_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "RUSTC_WORKSPACE_WRAPPER",
    "GCC_EXEC_PREFIX",
    "COMPILER_PATH",
    "GNUMAKEFLAGS",
    "MAKEFILES",
    "MFLAGS",
    "DOTNET_STARTUP_HOOKS",
    "CORECLR_PROFILER",
    "YARN_IGNORE_PATH",
    "PSQLRC",
    "GNUPGHOME",
    "DOCKER_HOST",
    "VIMINIT",
    "EXINIT",
];
/// Values that make a risky variable harmless.
const HARMLESS_VALUES: [&str; 4] = ["", "cat", "true", ":"];

/// Variables that a builtin sets by name, as `read NAME` does.
pub(crate) fn names_set_by_builtin(command: &PlainCommand) -> Vec<&str> {
    let args = command.argv.get(1..).unwrap_or_default();
    let texts = || args.iter().filter_map(Word::text);
    let after = |option: &str| {
        let at = args.iter().position(|word| word.text() == Some(option));
        at.and_then(|at| args.get(at + 1)).and_then(Word::text)
    };
    let names: Vec<&str> = match command.program() {
        Some("read" | "mapfile" | "readarray" | "getopts" | "unset") => {
            texts().filter(|text| !text.starts_with('-')).collect()
        }
        // `%n` sets the variable of its argument.
        Some("printf") if !args.first().is_some_and(prints_format) => texts().collect(),
        Some("wait") => after("-p").into_iter().collect(),
        _ => Vec::new(),
    };
    names.into_iter().map(|name| name.split('[').next().unwrap_or(name)).collect()
}

pub(crate) fn is_safe_variable(name: &str) -> bool {
    SAFE_VARIABLES.contains(&name)
}

pub(crate) fn is_risky_assignment(name: &str, value: &Word) -> bool {
    let risky = RISKY_VARIABLES.contains(&name)
        || name.starts_with("LD_")
        || name.starts_with("DYLD_")
        || name.starts_with("SWARM_")
        || name.starts_with("BASH_FUNC_")
        || name.to_ascii_lowercase().starts_with("npm_config_")
        || name.starts_with("ERL_")
        || (name.starts_with("GIT_")
            && !name.starts_with("GIT_AUTHOR_")
            && !name.starts_with("GIT_COMMITTER_")
            && name != "GIT_TERMINAL_PROMPT");
    let is_harmless = !matches!(name, "PATH" | "HOME" | "IFS")
        && !name.starts_with("LD_")
        && value.text().is_some_and(|value| HARMLESS_VALUES.contains(&value));
    // How much memory node may use says nothing about what it runs.
    let is_harmless = is_harmless
        || (name == "NODE_OPTIONS"
            && value.text().is_some_and(|value| {
                value.split(' ').all(|option| option.starts_with("--max-old-space-size="))
            }));
    risky && !is_harmless
}
