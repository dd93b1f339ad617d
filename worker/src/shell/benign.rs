//! Exit codes that are answers rather than failures (spec 4.4: "exit code not known as benign").

/// Program, first argument if it must be one, code, meaning.
const BENIGN: &[(&str, Option<&str>, i32, &str)] = &[
    ("grep", None, 1, "no match"),
    ("egrep", None, 1, "no match"),
    ("fgrep", None, 1, "no match"),
    ("zgrep", None, 1, "no match"),
    ("rg", None, 1, "no match"),
    ("ag", None, 1, "no match"),
    ("ack", None, 1, "no match"),
    ("pgrep", None, 1, "no process matches"),
    ("find", None, 1, "some directories could not be read"),
    ("diff", None, 1, "the files differ"),
    ("cmp", None, 1, "the files differ"),
    ("test", None, 1, "the condition is false"),
    ("[", None, 1, "the condition is false"),
    ("[[", None, 1, "the condition is false"),
    ("which", None, 1, "not found"),
    ("git", Some("diff"), 1, "there are differences"),
    ("git", Some("grep"), 1, "no match"),
    ("git", Some("merge-base"), 1, "not an ancestor, or none in common"),
    ("git", Some("check-ignore"), 1, "not ignored"),
    ("git", Some("config"), 1, "not set"),
    ("git", Some("show-ref"), 1, "no such ref"),
];

/// Options of git before its subcommand that take the next word along.
const GIT_OPTIONS_WITH_VALUE: &[&str] = &["-C", "-c", "--git-dir", "--work-tree", "--namespace"];

/// What `code` means when it is no failure. `argv` is that of the last command that ran: the status
/// of a list or a pipeline is its.
#[must_use]
pub fn benign_meaning(argv: &[&str], code: i32) -> Option<&'static str> {
    let (program, arguments) = argv.split_first()?;
    let program = program.rsplit('/').next()?;
    let subcommand = match program {
        "git" => git_subcommand(arguments),
        _ => arguments.first().copied(),
    };
    BENIGN
        .iter()
        .find(|(name, argument, value, _)| {
            *name == program && *value == code && argument.is_none_or(|word| subcommand == Some(word))
        })
        .map(|(_, _, _, meaning)| *meaning)
}

fn git_subcommand<'a>(arguments: &[&'a str]) -> Option<&'a str> {
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if GIT_OPTIONS_WITH_VALUE.contains(argument) {
            arguments.next();
        } else if !argument.starts_with('-') {
            return Some(argument);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, code: i32, expected: bool) {
        let argv: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(benign_meaning(&argv, code).is_some(), expected, "{line} {code}");
    }

    #[test]
    fn answers_are_told_from_failures() {
        check("grep x file", 1, true);
        check("grep x file", 2, false);
        check("/usr/bin/rg x", 1, true);
        check("find . -name x", 1, true);
        check("diff a b", 1, true);
        check("test -f x", 1, true);
        check("[ -f x ]", 1, true);
        check("cmp a b", 1, true);
        check("git diff --exit-code", 1, true);
        check("git -C dir --no-pager grep x", 1, true);
        check("git commit", 1, false);
        check("cargo test", 1, false);
        check("", 1, false);
    }
}
