//! Whether the command of a filter or merge driver runs something out of the tree it is run in. Git
//! starts these commands unconfined, by `sh -c` in an agent's tree: a program that is named relative
//! to it is one the agent can write.
//!
//! This reads the command as the shell would split it, roughly. What it cannot judge counts as from
//! the tree: a filter that is off leaves a file as it is stored, and that is told.

/// Programs that run what their arguments name.
const INTERPRETERS: [&str; 16] = [
    "sh", "bash", "dash", "zsh", "ksh", "fish", "python", "pypy", "perl", "ruby", "node", "nodejs", "deno",
    "php", "lua", "source",
];

/// Programs that run another one, named by their arguments.
const WRAPPERS: [&str; 12] = [
    "env", "exec", "command", "nice", "ionice", "nohup", "timeout", "time", "xargs", "sudo", "stdbuf", "eval",
];

/// Programs that take what they run, or their orders, from the directory they are in.
const RUNNERS: [&str; 20] = [
    "make", "gmake", "just", "npm", "npx", "pnpm", "yarn", "bun", "bunx", "cargo", "go", "rake", "bundle",
    "gradle", "mvn", "poetry", "pipenv", "uv", "tox", "composer",
];

/// Whether `command` may run a file of the tree.
pub(crate) fn runs_from_tree(command: &[u8]) -> bool {
    let Ok(command) = std::str::from_utf8(command) else {
        return true;
    };
    // What a substitution brings forth cannot be told; what stands inside it is looked at.
    simple_commands(command).iter().any(|words| one_runs_from_tree(words))
}

/// Words of each simple command, without quotes.
fn simple_commands(command: &str) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    let mut words: Vec<String> = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = command.chars().peekable();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some('\''), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (_, '\\') => word.get_or_insert_default().extend(chars.next()),
            // A substitution begins a command of its own, inside double quotes as well.
            (_, '`') => {
                words.extend(word.take());
                all.push(std::mem::take(&mut words));
            }
            (_, '$') if chars.peek() == Some(&'(') => {
                chars.next();
                quote = None;
                words.extend(word.take());
                all.push(std::mem::take(&mut words));
            }
            (None, ';' | '&' | '|' | '(' | ')' | '\n') => {
                words.extend(word.take());
                all.push(std::mem::take(&mut words));
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    all.push(words);
    all
}

/// A name that leads into the working directory.
fn is_relative(word: &str) -> bool {
    let absolute = ["/", "~/", "$HOME/", "${HOME}/"].iter().any(|start| word.starts_with(start));
    word.contains('/') && !absolute
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    })
}

fn one_runs_from_tree(words: &[String]) -> bool {
    const KEYWORDS: [&str; 11] = ["if", "then", "else", "elif", "while", "until", "do", "!", "{", "}", "fi"];
    let mut words = words;
    while let Some((first, rest)) = words.split_first() {
        if is_assignment(first) {
            let (name, value) = first.split_once('=').unwrap_or_default();
            // Where programs and libraries are looked for.
            let searched = name.ends_with("PATH") || name.ends_with("LIB") || name == "LD_PRELOAD";
            if searched && value.split(':').any(|entry| !entry.starts_with(['/', '$', '~'])) {
                return true;
            }
        } else if !KEYWORDS.contains(&first.as_str()) {
            break;
        }
        words = rest;
    }
    let Some((program, arguments)) = words.split_first() else {
        return false;
    };
    if is_relative(program) || (program.starts_with('$') && !program.starts_with("$HOME/")) {
        return !program.starts_with("${HOME}/");
    }
    let name = program.rsplit('/').next().unwrap_or(program);
    let bare = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    // `.` reads a file like `source`.
    if name == "." || INTERPRETERS.contains(&bare) {
        return interpreted_from_tree(bare, arguments);
    }
    if RUNNERS.contains(&bare) {
        return true;
    }
    if WRAPPERS.contains(&bare) {
        // Options of a wrapper may have values, so every word could be the program.
        return (0..arguments.len()).any(|n| {
            !arguments[n].starts_with('-') && !arguments[n].contains('%') && {
                one_runs_from_tree(&arguments[n..])
            }
        });
    }
    false
}

fn interpreted_from_tree(name: &str, arguments: &[String]) -> bool {
    let python = matches!(name, "python" | "pypy");
    let shell = matches!(name, "sh" | "bash" | "dash" | "zsh" | "ksh");
    // Isolated, Python does not import from the working directory.
    let isolated = arguments
        .iter()
        .take_while(|a| a.starts_with('-') && !a.starts_with("--"))
        .any(|a| !a.starts_with("-m") && !a.starts_with("-c") && a.contains(['I', 'P']));
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let short = argument.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
        match short {
            Some(flags) if shell && flags.contains('c') => {
                return arguments.next().is_none_or(|text| runs_from_tree(text.as_bytes()));
            }
            Some(flags) if python && flags.contains(['m', 'c']) => return !isolated,
            // The program stands in the argument; what it reads is for its author to say.
            Some(flags) if name == "perl" && flags.contains(['e', 'E']) => return false,
            Some("e" | "r") if matches!(name, "ruby" | "lua" | "php") => return false,
            _ if argument.starts_with('-') => {}
            _ => return !argument.starts_with('/') && !argument.starts_with("~/") && !home(argument),
        }
    }
    // No script: it is read from the input, which is the file's content.
    true
}

fn home(word: &str) -> bool {
    word.starts_with("$HOME/") || word.starts_with("${HOME}/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_the_tree_are_told_from_others() {
        let check = |expected: bool, commands: &[&str]| {
            for command in commands {
                assert_eq!(runs_from_tree(command.as_bytes()), expected, "{command}");
            }
        };
        check(
            true,
            &[
                "./tools/clean.sh",
                "tools/clean.sh %f",
                "../clean",
                "'./tools/with space' %f",
                "\"tools/clean\" %f",
                "t\\ools/clean",
                "A=1 ./clean",
                "PATH=bin:$PATH clean",
                "cat | ./clean",
                "cat; ./clean",
                "cat && tools/clean",
                "echo \"$(tools/clean)\"",
                "echo `tools/clean`",
                "sh tools/clean.sh",
                "sh clean.sh",
                "sh -c 'tools/clean %f'",
                "/bin/bash -ec \"cat | ./x\"",
                "/usr/bin/env python3 clean.py",
                "env A=1 ./clean",
                "exec ./clean",
                ". ./clean",
                "python3.12 tools/clean.py",
                "python -m clean",
                "node clean.js",
                "perl tools/clean.pl",
                "npx clean",
                "make -s clean",
                "$TOOL %f",
                "\u{fffd}/clean",
                "if ./clean; then cat; fi",
                "sh",
            ],
        );
        assert!(runs_from_tree(b"\xff"));
        check(
            false,
            &[
                "",
                "cat",
                "git-lfs clean -- %f",
                "git-lfs filter-process",
                "/usr/bin/clean a/b",
                "~/bin/clean %f",
                "$HOME/bin/clean %f",
                "sed s/a/b/",
                "sed -e 's/a/b/' | tr a b",
                "perl -pe 's/a/b/'",
                "/usr/bin/python3 -I -m nbstripout",
                "python3 /opt/clean.py %f",
                "sh -c 'cat %f'",
                "sh /opt/clean.sh",
                "env LC_ALL=C sort",
                "A=1 cat",
                "gpg --decrypt",
                "\"git-crypt\" clean",
                "jq . | cat",
            ],
        );
    }
}
