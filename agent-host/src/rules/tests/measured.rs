//! Figures: how often ordinary work asks, and that no known trick passes.

use super::*;

/// Share of ordinary commands that may ask under the sandbox.
const MOST_QUESTIONS_PERCENT: usize = 10;

#[test]
fn ordinary_commands_seldom_ask_in_the_sandbox() {
    let commands: Vec<&str> = include_str!("../../../tests/data/ordinary_commands.txt")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let agent = agent(&[]).sandboxed();
    let mut asking = Vec::new();
    for command in &commands {
        let answer = agent.bash(command);
        if answer.behavior != RuleBehavior::Allow {
            asking.push(format!("{command}: {}", answer.by.because()));
        }
    }
    println!("{} of {} ordinary commands ask:\n  {}", asking.len(), commands.len(), asking.join("\n  "));
    assert!(commands.len() >= 100);
    assert!(asking.len() * 100 <= commands.len() * MOST_QUESTIONS_PERCENT, "{asking:#?}");
}

#[test]
fn no_trick_passes_three_common_allow_rules() {
    let commands: Vec<String> = include_str!("../../../tests/data/bypass_commands.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let agent = agent(&["allow Bash(git status*)", "allow Bash(npm test*)", "allow Bash(ls*)"]);
    let passed: Vec<&String> =
        commands.iter().filter(|command| agent.bash(command).behavior == RuleBehavior::Allow).collect();
    println!("{} tricks", commands.len());
    assert!(commands.len() >= 150);
    assert!(passed.is_empty(), "{passed:#?}");
}
