//! What the agent is told first, and what its last commit says.

use std::sync::PoisonError;

use agent_host::{EXPLORE_PROMPT, EnvironmentInfo, GitState, PLAN_PROMPT, SystemPromptParts, ToolText};
use query_engine::ports::Incoming;
use swarm_protocol::{
    Block, ExitReason,
    launch::{Expects, WorkerLaunch},
    record::Origin,
};

use super::parts::{Parts, may_change};
use crate::sandbox::{Network, Tier};

/// Ports of a worker.
const PORTS: u16 = 10;

/// The system prompt: nothing in it differs between workers of a kind.
pub(crate) fn system_prompt(launch: &WorkerLaunch) -> String {
    let tools: [ToolText<'_>; 0] = [];
    let agent_definition = match launch.spec.agent_type.as_str() {
        "Explore" => Some(EXPLORE_PROMPT),
        "Plan" => Some(PLAN_PROMPT),
        _ => None,
    };
    agent_host::system_prompt(&SystemPromptParts {
        agent_definition,
        custom: launch.system_prompt.as_deref(),
        tools: &tools,
        ..SystemPromptParts::default()
    })
}

/// Surroundings, memory, and the prompt as the last block.
pub(crate) async fn first_message(launch: &WorkerLaunch, parts: &Parts, links: Option<String>) -> Incoming {
    let memory = parts.memory.lock().unwrap_or_else(PoisonError::into_inner).reminder();
    let mut content = surroundings(launch, parts, memory.as_deref()).await;
    let further = query_engine::deferral::announcement(&parts.tools);
    if let Some(more) = more(launch, links.into_iter().chain(further)) {
        content.push(Block::text(more));
    }
    content.push(Block::text(launch.spec.prompt.clone()));
    Incoming { content, origin: Origin::Prompt, commands: Vec::new() }
}

/// Where an agent stands that has moved. The memory files are those of the same repository.
pub(crate) async fn moved_message(launch: &WorkerLaunch, parts: &Parts, links: Option<String>) -> Incoming {
    let news = "You are at another place now; relative paths begin here. Files that you read were read at the other place: \
                read them again here before you change them.";
    let mut content = surroundings(launch, parts, None).await;
    content.extend(more(launch, std::iter::once(news.to_owned()).chain(links)).map(Block::text));
    Incoming { content, origin: Origin::Harness, commands: Vec::new() }
}

async fn surroundings(launch: &WorkerLaunch, parts: &Parts, memory: Option<&str>) -> Vec<Block> {
    let status = match &parts.tree {
        Some(tree) => tree.status().await.map(|(_, status)| status).unwrap_or_default(),
        None => String::new(),
    };
    let platform = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
    let date = crate::record::now().to_string().chars().take(10).collect::<String>();
    let cwd = launch.spec.worktree.display().to_string();
    let model = launch.spec.model.display_name();
    let confinement = confinement(launch, parts);
    let info = EnvironmentInfo {
        platform: &platform,
        date: &date,
        cwd: &cwd,
        git: parts.tree.as_ref().map(|_| GitState {
            branch: launch.spec.branch.as_deref(),
            is_detached: true,
            recent_commits: "",
            status: &status,
        }),
        model: &model,
        memory,
        ports: may_change(launch).then_some((launch.spec.port_base, PORTS)),
        confinement: &confinement,
    };
    agent_host::first_message(&info).into_iter().map(Block::text).collect()
}

fn more(launch: &WorkerLaunch, first: impl Iterator<Item = String>) -> Option<String> {
    let mut lines = Vec::from_iter(first);
    if let Some(check) = launch.check.as_ref().filter(|_| may_change(launch)) {
        lines.push(format!("The project's check; run it before you end: `{check}`"));
    }
    if !launch.included_files.is_empty() {
        lines.push(format!("Ignored files that were copied here: {}", launch.included_files.join(", ")));
    }
    if launch.solo {
        lines.extend((!may_change(launch)).then(|| {
            "This is the person's checkout, where you can only look. Call EnterWorktree before you change anything, \
             if the task needs a change at all."
                .to_owned()
        }));
    } else if launch.spec.expects == Expects::Report {
        lines.push("Expected of you is a report; change files only if the task says so.".to_owned());
    }
    (!lines.is_empty()).then(|| format!("<system-reminder>\n{}\n</system-reminder>", lines.join("\n")))
}

fn confinement(launch: &WorkerLaunch, parts: &Parts) -> String {
    let mut sentences = Vec::new();
    if parts.policy.tier == Tier::Unconfined {
        sentences.push("no sandbox holds on this machine, so most commands need permission.");
    } else if may_change(launch) && parts.policy.tier == Tier::Namespaces {
        sentences.push("they can write in the working directory, $TMPDIR (they see it as /tmp too) and a home of their own.");
    } else if may_change(launch) {
        sentences.push("they can write in the working directory and $TMPDIR only.");
    } else {
        sentences.push("they can write in $TMPDIR only.");
    }
    if parts.policy.proxy.is_some() {
        sentences.push("They reach loopback, and some hosts over the HTTP proxy that the environment names.");
    } else if parts.policy.network == Network::Off && parts.policy.tier != Tier::Unconfined {
        sentences.push(if parts.policy.tier == Tier::Namespaces {
            "They have no network but loopback."
        } else {
            "They have no network."
        });
    }
    sentences.join(" ")
}

/// The message of the commit that keeps what the agent left uncommitted.
pub(crate) fn commit_message(launch: &WorkerLaunch, exit: &ExitReason) -> String {
    let subject: String = launch
        .spec
        .description
        .chars()
        .map(|character| if character.is_control() { ' ' } else { character })
        .take(72)
        .collect();
    let subject = if subject.trim().is_empty() { launch.spec.id.to_string() } else { subject };
    match exit {
        ExitReason::Completed => subject,
        other => format!("{subject}\n\nUnfinished: {}.", other.code().replace('_', " ")),
    }
}
