//! The parser against the shell itself: whatever text counts as understood, bash starts no command, writes no file
//! and sets no variable that the parser did not see. Programs cannot be found here, so nothing is started; bash
//! hands each command that it would start to `command_not_found_handle`, which writes it down.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use agent_host::{Parsed, Piece, PlainCommand, RedirectOp, Word, layers, parse};
use proptest::{
    prelude::*,
    strategy::ValueTree as _,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

/// Texts of one run; `SWARM_TEST_SHELL_TEXTS` asks for more.
const TEXTS: usize = 1_000;
/// Bash reads them from a file, NUL after each.
const DRIVER: &str = r#"
set -f
command_not_found_handle() { local line; printf -v line '%s\037' "$@"; printf '%s\036' "$line" >&9; }
HOME='~'; n=0
while IFS= read -r -d '' text <&8; do
  cd "$BASE/$n" || exit 1
  (
    exec 9>>"$BASE/$n.log" 8<&- </dev/null >/dev/null 2>&1
    trap 'printf "%s\037" "${V1+V1}" "${V2+V2}" "${V3+V3}" >"$BASE/$n.set"' EXIT
    set -- "$text"
    eval "builtin shift; $1"
    wait
  )
  n=$((n + 1))
done 8<"$BASE/texts"
"#;

/// What shells care about, in pieces.
fn texts() -> impl Strategy<Value = String> {
    let pieces = vec![
        "aa",
        "bb",
        "cc",
        "aa ",
        "bb ",
        "cc ",
        " ",
        " ",
        " ",
        " ",
        "\t",
        "\n",
        ";",
        "; ",
        "&&",
        " && ",
        "||",
        "|",
        "|&",
        "&",
        " & ",
        "'",
        "\"",
        "\\",
        "\\\n",
        "\\ ",
        "$X",
        "${X}",
        "\"$X\"",
        "$",
        "$'",
        "\\x61",
        "\\'",
        "\\047",
        "$\"",
        "#",
        " #",
        "(",
        ")",
        "()",
        "((",
        "))",
        "{",
        "}",
        "{ ",
        " }",
        "; }",
        ",",
        "..",
        "[",
        "]",
        "[[ ",
        " ]]",
        "*",
        "?",
        "~",
        "@",
        "@(",
        "!",
        "! ",
        "%",
        "^",
        ":",
        "=",
        "+=",
        "V1=",
        "V2=",
        "V3=",
        " V1=1 ",
        "V2=b V3=c ",
        "[0]=",
        "-",
        "--",
        "-c ",
        "1",
        "2",
        "<",
        ">",
        " > f1",
        " >>f2",
        ">|f3",
        "&>f4",
        ">&f5",
        ">&1",
        "2>&1",
        "2>&-",
        "<>f6",
        "{fd}>f7",
        ">f8 ",
        "&>>f9",
        "<<",
        "<<<",
        "<<E\n",
        "\nE\n",
        "E",
        "if ",
        "then ",
        "fi",
        "else ",
        "for V1 in ",
        "do ",
        "done",
        "case ",
        " in ",
        "esac",
        ";;",
        "time ",
        "coproc ",
        "function ",
        "select ",
        "time -p ",
        "eval ",
        "command ",
        "builtin ",
        "exec ",
        "export ",
        "unset ",
        "declare ",
        "readonly ",
        "local ",
        "let ",
        "test ",
        "[ ",
        " ]",
        ": ",
        "true ",
        "false ",
        "$1",
        "$@",
        "$*",
        "$-",
        "$$",
        "$(aa)",
        "`aa`",
        "$((1))",
        "$[1]",
        "<(aa)",
        "é",
        "\u{a0}",
        "aa\u{301}",
        "\r",
        "\\\\",
        "\\\"",
        "\"\"",
        "''",
        "a\\\nb",
        "-p ",
        "-- ",
        "-v ",
        "=(",
        "$#",
        "${#X}",
        "$!",
        "$?",
        "!aa",
        "!!",
        "%1",
    ];
    prop::collection::vec(prop::sample::select(pieces), 1..14).prop_map(|pieces| pieces.concat())
}

/// Texts, with what the parser made of them, that it understood.
fn understood(wanted: usize) -> Vec<(String, Vec<PlainCommand>)> {
    let seed = std::env::var("SWARM_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7_u8);
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = texts();
    let mut found = Vec::new();
    while found.len() < wanted {
        let text = strategy.new_tree(&mut runner).expect("a vector of choices has a tree").current();
        if let Parsed::Simple(commands) = parse(&text)
            && !text.contains('\0')
        {
            found.push((text, commands));
        }
    }
    found
}

fn run_all(base: &Path, texts: &[(String, Vec<PlainCommand>)]) {
    let mut file = Vec::new();
    for (n, (text, _)) in texts.iter().enumerate() {
        fs::create_dir(base.join(n.to_string())).expect("a fresh directory");
        file.extend_from_slice(text.as_bytes());
        file.push(0);
    }
    fs::write(base.join("texts"), file).expect("a file in a fresh directory");
    let status = Command::new("/bin/bash")
        .args(["--noprofile", "--norc", "-c", DRIVER])
        .env_clear()
        .env("BASE", base)
        .env("LC_ALL", "C.UTF-8")
        .env("PATH", "/nonexistent")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("bash is there");
    assert!(status.success(), "{status}");
}

/// Whether the words that bash saw may be this command's.
fn is_same(command: &PlainCommand, seen: &[String]) -> bool {
    fits(&command.argv, seen)
}

fn fits(words: &[Word], seen: &[String]) -> bool {
    let Some((word, rest)) = words.split_first() else { return seen.is_empty() };
    match word.text() {
        Some(text) => seen.first().is_some_and(|first| first == text) && fits(rest, &seen[1..]),
        // Any number of words.
        None => (0..=seen.len()).any(|n| fits(rest, &seen[n..])) && may_begin(word, seen),
    }
}

fn may_begin(word: &Word, seen: &[String]) -> bool {
    match word.pieces().first() {
        Some(Piece::Text(text)) => seen.first().is_some_and(|first| first.starts_with(text.as_str())),
        _ => true,
    }
}

#[test]
fn what_counts_as_understood_is_what_bash_does() {
    let wanted = std::env::var("SWARM_TEST_SHELL_TEXTS").ok().and_then(|n| n.parse().ok()).unwrap_or(TEXTS);
    let texts = understood(wanted);
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    run_all(&base, &texts);
    let mut wrong = Vec::new();
    let mut n_seen = 0;
    for (n, (text, commands)) in texts.iter().enumerate() {
        let all: Vec<PlainCommand> = commands
            .iter()
            .flat_map(|command| match layers(command) {
                Ok(layers) => layers.into_iter().map(|layer| layer.command).collect(),
                Err(_) => Vec::new(),
            })
            .collect();
        if commands.iter().any(|command| layers(command).is_err()) {
            continue;
        }
        let mut complain = |what: String| wrong.push(format!("{text:?}: {what}; parsed as {commands:?}"));
        let log = fs::read_to_string(base.join(format!("{n}.log"))).unwrap_or_default();
        for line in log.split('\u{1e}').filter(|line| !line.is_empty()) {
            n_seen += 1;
            let seen: Vec<String> = line.split_terminator('\u{1f}').map(str::to_owned).collect();
            if !all.iter().any(|command| is_same(command, &seen)) {
                complain(format!("bash starts {seen:?}"));
            }
        }
        for entry in fs::read_dir(base.join(n.to_string())).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let written = all.iter().flat_map(|command| &command.redirects).any(|redirect| {
                redirect.op == RedirectOp::Write && redirect.target.text().is_none_or(|text| text == name)
            });
            if !written {
                complain(format!("bash writes {name:?}"));
            }
        }
        let set = fs::read_to_string(base.join(format!("{n}.set"))).unwrap_or_default();
        for name in set.split('\u{1f}').filter(|name| !name.is_empty()) {
            if !all.iter().flat_map(|command| &command.assignments).any(|assignment| assignment.name == name)
            {
                complain(format!("bash sets {name}"));
            }
        }
    }
    println!("{} texts, {n_seen} commands", texts.len());
    assert!(n_seen > texts.len() / 4, "bash ran {n_seen} commands of {} texts", texts.len());
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        texts.len(),
        wrong.iter().take(40).cloned().collect::<Vec<_>>().join("\n")
    );
}
