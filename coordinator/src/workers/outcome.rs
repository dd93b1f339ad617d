//! What a run's end is worth: facts in, outcome and doubts out. Pure, but for the data file that is part of
//! the binary.

use std::sync::LazyLock;

use serde::Deserialize;
use swarm_protocol::{
    ExitReason,
    launch::Expects,
    notification::{CheckResult, Doubt, FileChange, NotificationStatus, Outcome},
    record::{CommandRun, RunEnd},
};

#[derive(Debug, Deserialize)]
struct Runners {
    begins_with: Vec<String>,
    claims: Vec<String>,
    negations: Vec<String>,
}

static RUNNERS: LazyLock<Runners> = LazyLock::new(|| {
    toml::from_str(include_str!("known_runners.toml")).expect("the embedded table parses: a test reads it")
});

/// What git says about a worker's tree after its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct GitFacts {
    pub(crate) branch: Option<String>,
    pub(crate) commits: Vec<String>,
    pub(crate) files: Vec<FileChange>,
    pub(crate) dirty: Vec<String>,
    pub(crate) foreign_changes: Vec<String>,
    pub(crate) notes: Vec<String>,
}

/// Everything an outcome is established from.
pub(crate) struct Facts<'a> {
    pub(crate) end: &'a RunEnd,
    pub(crate) expects: Expects,
    pub(crate) base: &'a str,
    pub(crate) git: GitFacts,
    pub(crate) check: CheckResult,
    /// The project's check command: a run of it by the worker verifies a claim.
    pub(crate) check_command: Option<&'a str>,
    /// What the keeper ended after the worker's process.
    pub(crate) killed_by_keeper: Vec<String>,
    pub(crate) restarts: u32,
}

/// Establishes the outcome.
pub(crate) fn establish(facts: Facts<'_>) -> Outcome {
    let Facts { end, expects, base, git, check, check_command, killed_by_keeper, restarts } = facts;
    let mut children_killed = end.children_killed.clone();
    children_killed.extend(killed_by_keeper);
    let mut notes = git.notes;
    if !end.skipped_files.is_empty() {
        notes.push(format!("over 50 MB and not committed: {}", end.skipped_files.join(", ")));
    }
    notes.extend(end.commit_error.clone());
    notes.extend(end.notes.iter().cloned());
    let mut dirty = git.dirty;
    dirty.extend(end.skipped_files.iter().filter(|file| !dirty.contains(file)).cloned().collect::<Vec<_>>());
    let mut outcome = Outcome {
        exit_reason: end.exit_reason.clone(),
        branch: git.branch,
        base: base.to_owned(),
        commits: git.commits,
        files: git.files,
        dirty,
        commands: end.commands.clone(),
        commands_after_last_edit: end.commands_after_last_edit,
        check,
        children_killed,
        restarts,
        foreign_changes: git.foreign_changes,
        doubts: Vec::new(),
        notes,
    };
    outcome.doubts = doubts(&outcome, end, expects, check_command);
    outcome
}

fn doubts(outcome: &Outcome, end: &RunEnd, expects: Expects, check_command: Option<&str>) -> Vec<Doubt> {
    let after_edit = {
        let n_after = (end.commands_after_last_edit as usize).min(end.commands.len());
        &end.commands[end.commands.len() - n_after..]
    };
    // Without an edit in this run, whatever it ran speaks about the tree as it is.
    let relevant = if end.edited { after_edit } else { &end.commands[..] };
    let verified =
        relevant.iter().any(|run| run.exit_code == Some(0) && is_runner(&run.command, check_command));
    let mut doubts = Vec::new();
    let mut doubt = |applies: bool, doubt: Doubt| {
        if applies {
            doubts.push(doubt);
        }
    };
    doubt(
        expects == Expects::Changes
            && outcome.commits.is_empty()
            && outcome.files.is_empty()
            && outcome.dirty.is_empty(),
        Doubt::NoChange,
    );
    doubt(outcome.check == CheckResult::Failed, Doubt::CheckFailed);
    // A stop ends the command that runs: that says nothing about the command.
    let stopped = matches!(end.exit_reason, ExitReason::AbortedStreaming | ExitReason::AbortedTools);
    doubt(!stopped && end.commands.last().is_some_and(CommandRun::failed), Doubt::LastCommandFailed);
    doubt(claims_success(&end.result) && !verified, Doubt::UnverifiedClaim);
    doubt(!outcome.dirty.is_empty() || end.commit_error.is_some(), Doubt::LeftDirty);
    doubt(!outcome.children_killed.is_empty(), Doubt::ChildrenKilled);
    doubts
}

/// Whether a command line runs one of the known runners. Each part of a list counts on its own; a pipe hides
/// the runner's exit code behind its last program's, so only a runner at the end of a pipeline counts.
fn is_runner(command: &str, check_command: Option<&str>) -> bool {
    if check_command.is_some_and(|check| command.trim() == check.trim()) {
        return true;
    }
    let mut parts = command.split("&&").flat_map(|part| part.split([';', '\n']));
    parts.any(|part| {
        // `a || true` succeeds whatever `a` did.
        if part.contains("||") {
            return false;
        }
        let last = part.rsplit('|').next().unwrap_or(part);
        let words: Vec<&str> = last
            .split_whitespace()
            .skip_while(|word| {
                word.contains('=') || matches!(*word, "time" | "env" | "timeout" | "nice" | "command")
            })
            .collect();
        // `timeout 60 pytest`: the number after the wrapper.
        let words = match words.split_first() {
            Some((first, rest)) if first.trim_end_matches(['s', 'm']).parse::<u64>().is_ok() => rest.to_vec(),
            _ => words,
        };
        let line = words.join(" ");
        RUNNERS.begins_with.iter().any(|runner| {
            line.strip_prefix(runner.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        })
    })
}

/// Whether a result says that tests or build pass.
fn claims_success(result: &str) -> bool {
    let text = result.to_lowercase();
    RUNNERS.claims.iter().any(|claim| {
        text.match_indices(claim.as_str()).any(|(at, _)| {
            let before: String =
                text[..at].chars().rev().take(24).collect::<Vec<_>>().into_iter().rev().collect();
            let sentence = before.rsplit(['.', '\n', ';']).next().unwrap_or(&before);
            !RUNNERS.negations.iter().any(|negation| sentence.contains(negation.as_str()))
        })
    })
}

/// The status word of an end.
pub(crate) fn status_of(exit_reason: &ExitReason, stopped: bool) -> NotificationStatus {
    if stopped {
        return NotificationStatus::Aborted;
    }
    match exit_reason {
        ExitReason::Completed => NotificationStatus::Completed,
        ExitReason::AbortedStreaming | ExitReason::AbortedTools => NotificationStatus::Aborted,
        ExitReason::PromptTooLong
        | ExitReason::BlockingLimit
        | ExitReason::MaxOutputTokensEscalate
        | ExitReason::StopHookPrevented
        | ExitReason::HookStopped { .. }
        | ExitReason::MaxTurns { .. }
        | ExitReason::ModelError { .. }
        | ExitReason::ImageError { .. }
        | ExitReason::Refused { .. }
        | ExitReason::BudgetExceeded { .. }
        | ExitReason::LoopDetected
        | ExitReason::DeniedAndStopped
        | ExitReason::StorageError { .. }
        | ExitReason::SetupFailed { .. }
        | ExitReason::Killed { .. }
        | ExitReason::Lost => NotificationStatus::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(command: &str, exit_code: i32) -> CommandRun {
        CommandRun {
            command: command.to_owned(),
            exit_code: Some(exit_code),
            ended_by: None,
            benign: false,
            children_killed: vec![],
            stopped: false,
        }
    }

    fn end(result: &str, edited: bool, commands: Vec<CommandRun>, after: u32) -> RunEnd {
        RunEnd {
            result: result.to_owned(),
            commands,
            commands_after_last_edit: after,
            edited,
            ..RunEnd::without_work(ExitReason::Completed)
        }
    }

    fn check(end: &RunEnd, expects: Expects, git: GitFacts, expected: &[Doubt]) {
        let outcome = establish(Facts {
            end,
            expects,
            base: "0",
            git,
            check: CheckResult::None,
            check_command: Some("make ci"),
            killed_by_keeper: vec![],
            restarts: 0,
        });
        assert_eq!(outcome.doubts, expected, "{end:?}");
    }

    fn changed() -> GitFacts {
        GitFacts { commits: vec!["1".to_owned()], ..GitFacts::default() }
    }

    #[test]
    fn orchestrator_41_nothing_is_called_success_on_words_alone() {
        check(&end("done", false, vec![], 0), Expects::Changes, GitFacts::default(), &[Doubt::NoChange]);
        check(&end("done", false, vec![], 0), Expects::Report, GitFacts::default(), &[]);
        check(
            &end("done", true, vec![], 0),
            Expects::Changes,
            GitFacts { dirty: vec!["a".to_owned()], ..GitFacts::default() },
            &[Doubt::LeftDirty],
        );
        check(
            &end("All tests pass.", true, vec![], 0),
            Expects::Changes,
            changed(),
            &[Doubt::UnverifiedClaim],
        );
    }

    #[test]
    fn a_claim_is_verified_by_a_known_runner_after_the_last_edit_only() {
        let pytest = || vec![command("cd api && python3 -m pytest -q", 0)];
        check(&end("All tests pass.", true, pytest(), 1), Expects::Changes, changed(), &[]);
        check(
            &end("All tests pass.", true, pytest(), 0),
            Expects::Changes,
            changed(),
            &[Doubt::UnverifiedClaim],
        );
        let failed = vec![command("pytest", 1)];
        let both = [Doubt::LastCommandFailed, Doubt::UnverifiedClaim];
        check(&end("All tests pass.", true, failed, 1), Expects::Changes, changed(), &both);
        let own_check = vec![command("make ci", 0)];
        check(&end("The build passes.", true, own_check, 1), Expects::Changes, changed(), &[]);
        let echo = vec![command("echo all tests pass", 0)];
        check(&end("tests pass", true, echo, 1), Expects::Changes, changed(), &[Doubt::UnverifiedClaim]);
        let hidden = vec![command("pytest | tail -3", 0), command("pytest || true", 0)];
        check(&end("tests pass", true, hidden, 2), Expects::Changes, changed(), &[Doubt::UnverifiedClaim]);
    }

    #[test]
    fn words_that_claim_nothing() {
        for text in [
            "The tests do not pass yet; not all tests pass.",
            "I could not verify whether the tests pass.",
            "Run pytest to make sure tests pass.",
            "",
        ] {
            check(&end(text, true, vec![], 0), Expects::Changes, changed(), &[]);
        }
    }

    #[test]
    fn a_command_that_a_stop_ended_is_no_doubt() {
        let mut stopped = end("half", true, vec![command("pytest", 143)], 1);
        stopped.exit_reason = ExitReason::AbortedTools;
        check(&stopped, Expects::Changes, changed(), &[]);
    }

    #[test]
    fn benign_codes_are_no_failure() {
        let mut grep = command("grep -q x y", 1);
        grep.benign = true;
        check(&end("done", true, vec![grep], 1), Expects::Changes, changed(), &[]);
    }

    #[test]
    fn wrappers_and_assignments_are_looked_through() {
        for line in [
            "CI=1 npm test",
            "timeout 60 pytest -q",
            "env A=b cargo test --workspace",
            "make",
            "cd x; go test ./...",
        ] {
            assert!(is_runner(line, None), "{line}");
        }
        for line in ["makeup", "cat pytest", "npm install", "cargo testify"] {
            assert!(!is_runner(line, None), "{line}");
        }
    }
}
