//! Whatever the text, deciding ends; and a further refusal never permits more.

use proptest::prelude::*;

use super::*;

/// Texts made of what shells care about.
fn shell_text() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "git",
        "status",
        "rm",
        "-rf",
        "ls",
        "touch",
        "x",
        ".env",
        "/",
        "~",
        "..",
        " ",
        " ",
        " ",
        "\n",
        ";",
        "&&",
        "||",
        "|",
        "&",
        "'",
        "\"",
        "\\",
        "$X",
        "${X}",
        "$(",
        ")",
        "(",
        "`",
        "{",
        "}",
        ",",
        "*",
        "?",
        "[",
        "]",
        ">",
        ">>",
        "<",
        "<<E",
        "2>&1",
        "=",
        "PATH=",
        "sh -c ",
        "env ",
        "xargs ",
        "timeout 5 ",
        "find . -exec ",
        "\\;",
        "--",
        "-c",
        "#",
        "$'\\x72'",
        "é",
        "\r",
        "cd ",
        "sudo ",
        "if ",
        "then ",
        "fi",
        "!",
        "eval ",
        "sed -n ",
        "1e",
        "awk ",
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

fn rule_text() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "Bash",
        "Bash(git *)",
        "Bash(rm:*)",
        "Bash(ls*)",
        "Bash(touch x)",
        "Bash(* x)",
        "Bash(env *)",
        "Read(.env)",
        "Read(//**)",
        "Edit(./**)",
        "Bash(sh -c *)",
        "Bash(git status)",
        "Read(x)",
        "Bash(*)",
    ])
    .prop_map(str::to_owned)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn deciding_never_panics(command in shell_text(), noise in "([ -~]|\\PC){0,60}", sandboxed: bool) {
        let mut agent = agent(&["allow Bash(git *)", "deny Read(.env)"]);
        if sandboxed { agent = agent.sandboxed(); }
        drop(agent.bash(&command));
        drop(agent.bash(&noise));
    }

    #[test]
    fn a_further_refusal_never_permits_more(
        command in shell_text(),
        allow in rule_text(),
        added in rule_text(),
        deny: bool,
        sandboxed: bool,
        bypass: bool,
    ) {
        let behavior = if deny { RuleBehavior::Deny } else { RuleBehavior::Ask };
        let mut agent = agent(&[&format!("allow {allow}")]);
        if sandboxed { agent = agent.sandboxed(); }
        if bypass { agent.mode = PermissionMode::BypassPermissions; }
        let before = strictness(agent.bash(&command).behavior);
        agent.rules.add(rule(behavior, &added)).unwrap();
        let after = strictness(agent.bash(&command).behavior);
        prop_assert!(after >= before, "`{command}` was {before}, is {after} with {behavior:?} {added}");
    }

    #[test]
    fn rules_never_panic(text in "\\PC{0,40}") {
        for behavior in [RuleBehavior::Deny, RuleBehavior::Ask, RuleBehavior::Allow] {
            drop(RuleSet::new([rule(behavior, &text)]));
        }
    }
}

fn strictness(behavior: RuleBehavior) -> u8 {
    match behavior {
        RuleBehavior::Allow => 0,
        RuleBehavior::Ask => 1,
        RuleBehavior::Deny => 2,
    }
}
