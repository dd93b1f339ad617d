//! The rule that "always" would write.

use crate::{
    bash::{PlainCommand, Word, base_name},
    dangerous::{Subcommand, subcommand},
};

/// Programs whose first word says what they do, so that a rule for `program word *` is meant.
const WITH_SUBCOMMAND: [&str; 28] = [
    "git",
    "cargo",
    "npm",
    "pnpm",
    "yarn",
    "bun",
    "pip",
    "pip3",
    "uv",
    "poetry",
    "go",
    "docker",
    "kubectl",
    "gh",
    "rustup",
    "apt",
    "apt-get",
    "brew",
    "make",
    "just",
    "mvn",
    "gradle",
    "dotnet",
    "mix",
    "bundle",
    "rails",
    "composer",
    "terraform",
];
/// Programs of which one use says nothing about the next.
const NEVER_WIDE: [&str; 30] = [
    "sh",
    "bash",
    "dash",
    "zsh",
    "ksh",
    "fish",
    "python",
    "python2",
    "python3",
    "perl",
    "ruby",
    "node",
    "deno",
    "php",
    "lua",
    "eval",
    "exec",
    "env",
    "xargs",
    "sudo",
    "doas",
    "su",
    "ssh",
    "curl",
    "wget",
    "rm",
    "find",
    "source",
    ".",
    "osascript",
];

/// A family where that is meant, else exactly this command. None when no rule can say it.
pub(super) fn for_command(command: &PlainCommand, exact: bool) -> Option<String> {
    let program = command.program()?;
    if program.is_empty() || !command.assignments.is_empty() {
        return None;
    }
    let wide = !exact && !NEVER_WIDE.contains(&base_name(program));
    if wide && WITH_SUBCOMMAND.contains(&program) {
        return match subcommand(command) {
            Subcommand::At(1) => {
                let name = rule_word(command.argv.get(1)?)?;
                let run = matches!(name.as_str(), "run" | "exec" | "x");
                match command.argv.get(2).filter(|word| run && !word.may_be_option()) {
                    Some(script) => Some(format!("Bash({program} {name} {} *)", rule_word(script)?)),
                    None => Some(format!("Bash({program} {name} *)")),
                }
            }
            _ => exactly(command),
        };
    }
    if wide && command.argv.len() > 1 {
        return Some(format!("Bash({} *)", rule_word(command.argv.first()?)?));
    }
    exactly(command)
}

fn exactly(command: &PlainCommand) -> Option<String> {
    let words: Option<Vec<String>> = command.argv.iter().map(rule_word).collect();
    Some(format!("Bash({})", words?.join(" ")))
}

/// A word as it must stand in a rule to match itself.
fn rule_word(word: &Word) -> Option<String> {
    let text = word.text()?;
    if text.chars().any(char::is_control) || text.is_empty() {
        return None;
    }
    let text = text.replace('\\', "\\\\").replace('*', "\\*");
    match (text.contains(' '), text.contains('\''), text.contains('"')) {
        (false, false, false) => Some(text),
        (_, false, _) => Some(format!("'{text}'")),
        (_, true, false) => Some(format!("\"{text}\"")),
        _ => None,
    }
}
