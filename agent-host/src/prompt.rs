//! The system prompt and the first message of an agent.
//!
//! The system prompt holds nothing that differs between the agents of a session or between days, so that
//! they share its cache; all that does differ goes into the first message. Pure.

/// The default prompt of a worker.
pub const WORKER_PROMPT: &str = include_str!("prompt/worker.md");
/// The prompt of the read-only inner agent `Explore`.
pub const EXPLORE_PROMPT: &str = include_str!("prompt/explore.md");
/// The prompt of the read-only inner agent `Plan`.
pub const PLAN_PROMPT: &str = include_str!("prompt/plan.md");

/// What git says about the working copy is cut to this many characters.
pub const MAX_GIT_STATUS_CHARS: usize = 2_000;

/// The layers of a system prompt. The first of `replacement`, `coordinator`, `agent_definition`, `custom`
/// that is given takes the place of the default.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemPromptParts<'a> {
    /// Stands alone: no tool texts, no other section but `append`.
    pub replacement: Option<&'a str>,
    pub coordinator: Option<&'a str>,
    pub agent_definition: Option<&'a str>,
    /// `--system-prompt`
    pub custom: Option<&'a str>,
    /// Added at the very end.
    pub append: Option<&'a str>,
    /// Of the enabled tools only, so that a disabled one leaves no trace.
    pub tools: &'a [ToolText<'a>],
    /// Some tools are deferred and found by ToolSearch.
    pub has_deferred_tools: bool,
    /// Server and its instructions.
    pub mcp_instructions: &'a [(&'a str, &'a str)],
    /// Skill and when to use it.
    pub skills: &'a [(&'a str, &'a str)],
}

/// What a tool says about its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ToolText<'a> {
    pub name: &'a str,
    pub text: &'a str,
}

/// Puts the system prompt together. The same parts give the same bytes, whatever the order of the tools.
pub fn system_prompt(parts: &SystemPromptParts<'_>) -> String {
    let SystemPromptParts {
        replacement,
        coordinator,
        agent_definition,
        custom,
        append,
        tools,
        has_deferred_tools,
        mcp_instructions,
        skills,
    } = *parts;
    let mut sections = Vec::new();
    if let Some(replacement) = replacement {
        sections.push(replacement.trim().to_owned());
    } else {
        let base = coordinator.or(agent_definition).or(custom).unwrap_or(WORKER_PROMPT);
        sections.push(base.trim().to_owned());
        sections.extend(tool_section(tools));
        if has_deferred_tools {
            sections.push(
                "# Further tools\nSome tools are known by name only. ToolSearch finds them by what they do and makes \
                 them callable; search before you conclude that something cannot be done."
                    .to_owned(),
            );
        }
        sections.extend(named_section(
            "# MCP servers\nWhat the servers say about their tools:",
            mcp_instructions,
        ));
        sections
            .extend(named_section("# Skills\nThe Skill tool loads one when its description fits:", skills));
    }
    sections.extend(append.map(|append| append.trim().to_owned()));
    sections.retain(|section| !section.is_empty());
    sections.join("\n\n")
}

fn tool_section(tools: &[ToolText<'_>]) -> Option<String> {
    let mut tools: Vec<&ToolText<'_>> = tools.iter().filter(|tool| !tool.text.trim().is_empty()).collect();
    tools.sort_unstable();
    tools.dedup();
    let texts: Vec<String> =
        tools.iter().map(|tool| format!("## {}\n{}", tool.name, tool.text.trim())).collect();
    (!texts.is_empty()).then(|| format!("# Tools\n{}", texts.join("\n\n")))
}

fn named_section(head: &str, entries: &[(&str, &str)]) -> Option<String> {
    let mut entries = entries.to_vec();
    entries.sort_unstable();
    let lines: Vec<String> =
        entries.iter().map(|(name, text)| format!("- {name}: {}", text.trim())).collect();
    (!lines.is_empty()).then(|| format!("{head}\n{}", lines.join("\n")))
}

/// What differs between agents, machines and days.
#[derive(Debug, Clone, Copy)]
pub struct EnvironmentInfo<'a> {
    /// Such as `linux x86_64`.
    pub platform: &'a str,
    /// The day, `2026-11-30`.
    pub date: &'a str,
    pub cwd: &'a str,
    /// `None` outside git.
    pub git: Option<GitState<'a>>,
    /// `provider/model`
    pub model: &'a str,
    /// The block of [`memory_reminder`](crate::memory_reminder).
    pub memory: Option<&'a str>,
    /// First of the agent's own ports, and how many.
    pub ports: Option<(u16, u16)>,
    /// What bounds the agent's commands, as sentences; empty for none.
    pub confinement: &'a str,
}

/// The state of the agent's working copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GitState<'a> {
    /// The branch that the work ends up on.
    pub branch: Option<&'a str>,
    /// Commands work on a detached HEAD and the branch follows.
    pub is_detached: bool,
    /// `git log --oneline` of a few commits.
    pub recent_commits: &'a str,
    /// `git status --short`
    pub status: &'a str,
}

/// The text blocks that stand before the task in the first user message.
pub fn first_message(info: &EnvironmentInfo<'_>) -> Vec<String> {
    let EnvironmentInfo { platform, date, cwd, git, model, memory, ports, confinement } = *info;
    let mut lines = vec![
        format!("Working directory: {cwd}"),
        format!("Platform: {platform}"),
        format!("Date: {date}"),
        format!("Model: {model}"),
    ];
    if let Some((first, n)) = ports {
        let last = first.saturating_add(n.saturating_sub(1));
        lines.push(format!("Ports for servers that you start: {first}-{last} (SWARM_PORT_BASE)"));
    }
    if !confinement.is_empty() {
        lines.push(format!("Commands: {confinement}"));
    }
    let mut blocks: Vec<String> = memory.map(str::to_owned).into_iter().collect();
    blocks.push(reminder(&lines.join("\n")));
    blocks.extend(git.map(|git| git_state(&git)));
    blocks
}

/// The block about git; also sent with a person's later messages and when it changed.
pub fn git_state(git: &GitState<'_>) -> String {
    let GitState { branch, is_detached, recent_commits, status } = *git;
    let mut lines = Vec::new();
    match (branch, is_detached) {
        (Some(branch), false) => lines.push(format!("Branch: {branch}")),
        (Some(branch), true) => lines.push(format!(
            "Branch: {branch}. HEAD is detached on purpose: commit as usual, the branch is moved to HEAD after each command."
        )),
        (None, true) => lines.push("HEAD is detached.".to_owned()),
        (None, false) => lines.push("No commit yet.".to_owned()),
    }
    if !recent_commits.trim().is_empty() {
        lines.push(format!("Recent commits:\n{}", cut(recent_commits.trim_end(), MAX_GIT_STATUS_CHARS)));
    }
    match status.trim().is_empty() {
        true => lines.push("Nothing is changed.".to_owned()),
        false => lines.push(format!("Status:\n{}", cut(status.trim_end(), MAX_GIT_STATUS_CHARS))),
    }
    reminder(&lines.join("\n"))
}

/// Names of branches and files are foreign text: they must not end the block they stand in.
fn reminder(text: &str) -> String {
    format!(
        "<system-reminder>\n{}\n</system-reminder>",
        text.replace("</system-reminder", "<\u{200b}/system-reminder")
    )
}

/// Whole lines up to `most` characters, and what is missing.
fn cut(text: &str, most: usize) -> String {
    let Some((end, _)) = text.char_indices().nth(most) else { return text.to_owned() };
    let end = text[..end].rfind('\n').unwrap_or(end);
    let n_more = text[end..].lines().filter(|line| !line.is_empty()).count();
    format!("{}\n[{n_more} more lines]", &text[..end])
}

#[cfg(test)]
mod tests;
