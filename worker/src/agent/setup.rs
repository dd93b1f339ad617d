//! The project's set-up command, before the first turn. It has a network, which other commands have not;
//! its output is kept, and its failure is the worker's.

use swarm_protocol::{ExitReason, launch::WorkerLaunch};

use super::parts::{Parts, run_id};
use crate::{
    proxy::Proxy,
    sandbox::{Network, Tier, WriteScope},
    shell::{CommandExit, CommandRequest, MAX_TIMEOUT, Shell, ShellConfig},
};

/// Where its output is kept, in the results directory.
const OUTPUT_FILE: &str = "setup-output.txt";
/// Characters of it in the end record.
const MAX_OUTPUT_CHARS: usize = 8_000;

/// Where it stands, in the results directory, that an agent which moves has a worktree that was set up.
const DONE_FILE: &str = "set-up";

/// Whether it is to run before the next turn. The user's checkout is nothing to be set up.
pub(crate) fn is_due(launch: &WorkerLaunch, parts: &Parts, has_begun: bool) -> bool {
    parts.tree.is_some()
        && if launch.solo { !launch.results_dir.join(DONE_FILE).exists() } else { !has_begun }
}

/// The worktree that was set up is removed.
pub(crate) fn forget(launch: &WorkerLaunch) {
    // What is not there needs no forgetting.
    drop(std::fs::remove_file(launch.results_dir.join(DONE_FILE)));
}

/// Runs it.
///
/// # Errors
/// Why the run ends.
pub(crate) async fn run(
    launch: &WorkerLaunch,
    command: &str,
    parts: &Parts,
    tier: Tier,
) -> Result<(), ExitReason> {
    let mut policy = parts.policy.clone();
    policy.tier = tier;
    policy.network = Network::On;
    policy.write_scope = WriteScope::Worktree;
    let mut environment = parts.environment.clone();
    if policy.proxy.take().is_some() {
        for (name, _) in Proxy::variables() {
            environment.remove(name);
        }
    }
    let config = ShellConfig::new(policy, environment, run_id(launch), launch.results_dir.clone());
    let shell = Shell::new(config).map_err(|error| ExitReason::SetupFailed { output: error.to_string() })?;
    let mut request = CommandRequest::new(command);
    request.timeout = MAX_TIMEOUT;
    let outcome = shell.run(request, &parts.brakes.stop, None).await;
    if let Some(tree) = &parts.tree
        && let Some(problem) = tree.follow_head().await
    {
        tracing::warn!(problem, "after set-up");
    }
    let kept = launch.results_dir.join(OUTPUT_FILE);
    if let Err(error) = std::fs::write(&kept, &outcome.output.text) {
        tracing::warn!(%error, "the output of set-up was not kept");
    }
    match outcome.exit {
        CommandExit::Code(0) => {
            if launch.solo
                && let Err(error) = std::fs::write(launch.results_dir.join(DONE_FILE), "")
            {
                tracing::warn!(%error, "set-up will run again");
            }
            Ok(())
        }
        CommandExit::Cancelled => Err(ExitReason::AbortedTools),
        exit => {
            let text = outcome.output.text;
            let length = text.chars().count();
            let tail: String = text.chars().skip(length.saturating_sub(MAX_OUTPUT_CHARS)).collect();
            Err(ExitReason::SetupFailed { output: format!("`{command}`: {exit}\n{tail}") })
        }
    }
}
