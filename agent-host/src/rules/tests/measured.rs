//! Figures: how often ordinary work asks, and that no known trick passes.

use super::*;

/// Share of ordinary commands that may ask under the sandbox.
const MOST_QUESTIONS_PERCENT: usize = 10;
/// What many people allow.
const COMMON_RULES: [&str; 3] = ["allow Bash(git status*)", "allow Bash(npm test*)", "allow Bash(ls*)"];

#[test]
fn ordinary_commands_seldom_ask_in_the_sandbox() {
    let commands: Vec<&str> = include_str!("../../../tests/data/ordinary_commands.txt")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let agent = agent(&COMMON_RULES).sandboxed();
    let mut asking = Vec::new();
    for command in &commands {
        let answer = agent.bash(command);
        if answer.behavior != RuleBehavior::Allow {
            asking.push(format!("{command}: {}", answer.by.because()));
        }
    }
    println!("{} of {} ordinary commands ask:\n  {}", asking.len(), commands.len(), asking.join("\n  "));
    assert!(commands.len() >= 200);
    assert!(asking.len() * 100 <= commands.len() * MOST_QUESTIONS_PERCENT, "{asking:#?}");
}

#[test]
fn no_trick_passes_three_common_allow_rules() {
    let data = include_str!("../../../tests/data/bypass_commands.txt");
    let agent = agent(&COMMON_RULES);
    let (mut trick, mut tried) = ("", 0);
    let mut groups: Vec<(&str, usize)> = Vec::new();
    let mut passed = Vec::new();
    for line in data.lines().filter(|line| !line.starts_with("# ")) {
        if let Some(heading) = line.strip_prefix("## ") {
            trick = heading;
            groups.push((trick, 0));
            continue;
        }
        let command: String = serde_json::from_str(line).unwrap();
        tried += 1;
        groups.last_mut().unwrap().1 += 1;
        let answer = agent.bash(&command);
        if answer.behavior == RuleBehavior::Allow {
            passed.push(format!("{command:?} ({trick}): {}", answer.by.because()));
        }
    }
    println!("{tried} tricks, {} pass; {groups:?}", passed.len());
    assert!(tried >= 300 && groups.iter().all(|(_, n)| *n > 0), "{groups:?}");
    assert!(passed.is_empty(), "{} of {tried} pass:\n{}", passed.len(), passed.join("\n"));
}
