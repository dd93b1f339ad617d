//! `swarm doctor`: whether this machine has what swarm needs; each line says what it found.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use serde::Deserialize;
use serde_json::json;
use swarm_protocol::api::ServerInfo;

use super::super::{
    args::DoctorArgs,
    error::Result,
    format,
    glyph::{Class, Glyphs},
    output::{DIM, paint},
    repository, server_process,
    shell::{Shell, now},
    task,
    text::visible,
};
use super::show::tier_words;
use crate::room::{Floors, Room, free_disk};

/// Git older than this lacks what worktrees and merges need.
const OLDEST_GIT: (u32, u32) = (2, 38);

/// Less than this and a build in a worktree is likely to fill the disk.
const LITTLE_SPACE: u64 = 1 << 30;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Good,
    Doubtful,
    Bad,
}

/// A line of the report.
#[derive(Debug)]
struct Finding {
    what: &'static str,
    health: Health,
    words: String,
    /// Lines of their own below it.
    details: Vec<String>,
    hint: Option<String>,
}

impl Finding {
    fn new(what: &'static str, health: Health, words: impl Into<String>) -> Self {
        Self { what, health, words: words.into(), details: Vec::new(), hint: None }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Checks everything; 1 if a line is bad.
pub(crate) async fn doctor(shell: &mut Shell, args: &DoctorArgs) -> Result<u8> {
    if args.chaos {
        return Err(super::later("doctor", "--chaos"));
    }
    let findings = [
        git(),
        home(shell),
        room(shell),
        server(shell).await,
        sandbox(&shell.around.program),
        model(shell),
        tmux(),
    ];
    for finding in &findings {
        if shell.is_json() {
            let health = match finding.health {
                Health::Good => "good",
                Health::Doubtful => "doubtful",
                Health::Bad => "bad",
            };
            let fields = json!({"what": finding.what, "health": health, "words": finding.words, "details": finding.details, "hint": finding.hint});
            shell.json("doctor", None, None, fields)?;
        } else {
            let text = line(shell.glyphs, finding);
            shell.out.text(&text)?;
        }
    }
    Ok(u8::from(findings.iter().any(|finding| finding.health == Health::Bad)))
}

fn line(glyphs: Glyphs, finding: &Finding) -> String {
    let class = match finding.health {
        Health::Good => Class::Done,
        Health::Doubtful => Class::Doubt,
        Health::Bad => Class::Failed,
    };
    let mut text = format!(
        "{} {:<8} {}\n",
        paint(class.style(), glyphs.still(class)),
        finding.what,
        visible(&finding.words)
    );
    for detail in &finding.details {
        text.push_str(&format!("           {}\n", visible(detail)));
    }
    if let Some(hint) = &finding.hint {
        text.push_str(&format!("           {} {}\n", paint(DIM, "hint:"), visible(hint)));
    }
    text
}

fn output(program: &str, argument: &str) -> Option<String> {
    let output =
        Command::new(program).arg(argument).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn git() -> Finding {
    let Some(version) = output("git", "--version") else {
        return Finding::new("git", Health::Bad, "not found").hint("install git");
    };
    let version = version.trim_start_matches("git version ").to_owned();
    let mut numbers = version.split('.').map_while(|part| part.parse::<u32>().ok());
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found < OLDEST_GIT {
        let (major, minor) = OLDEST_GIT;
        return Finding::new("git", Health::Bad, version).hint(format!("at least {major}.{minor} is needed"));
    }
    Finding::new("git", Health::Good, version)
}

fn home(shell: &Shell) -> Finding {
    let root = shell.path(shell.home.root());
    let free = free_disk(shell.home.root());
    let words = free.map_or_else(|| root.clone(), |free| format!("{root}, {} free", format::size(free)));
    let existing = shell.home.root().ancestors().find(|ancestor| ancestor.exists()).unwrap_or(Path::new("/"));
    let writable = nix::unistd::access(existing, nix::unistd::AccessFlags::W_OK).is_ok();
    match (writable, free) {
        (false, _) => Finding::new("home", Health::Bad, format!("{words}, cannot be written"))
            .hint("SWARM_HOME=/other/place"),
        (true, Some(free)) if free < LITTLE_SPACE => {
            Finding::new("home", Health::Doubtful, words).hint("worktrees need space: swarm gc")
        }
        (true, _) => Finding::new("home", Health::Good, words),
    }
}

/// Whether a worker would be started now, by what is free and by the settings.
fn room(shell: &Shell) -> Finding {
    let settings = match task::settings(shell, None, Vec::new()) {
        Ok(settings) => settings,
        Err(error) => return Finding::new("room", Health::Bad, error.message).hint(error.causes.join(" ")),
    };
    let floors = Floors::new(&settings.config);
    let root = settings.config.worktree_root.as_deref();
    let worktrees = root
        .map_or_else(|| shell.home.worktrees(), |root| agent_host::at_home(root, &shell.around.user_home));
    let found = Room::measure(&[shell.home.root(), &worktrees]);
    let size = |free: Option<u64>| free.map_or_else(|| "unknown".to_owned(), format::size);
    let words = format!(
        "memory {}, disk {} free; a worker starts from {} and {}",
        size(found.memory),
        size(found.disk),
        format::size(floors.memory),
        format::size(floors.disk),
    );
    match found.lacks(&floors) {
        None => Finding::new("room", Health::Good, words),
        Some(lack) => Finding::new("room", Health::Doubtful, words)
            .hint(format!("a worker {}; free some, or lower the setting", lack.reason())),
    }
}

async fn server(shell: &Shell) -> Finding {
    let found = match server_process::running(shell).await {
        Ok(Some(found)) => found,
        Ok(None) => return Finding::new("server", Health::Good, "none runs; swarm run starts one"),
        Err(error) => return Finding::new("server", Health::Bad, error.message),
    };
    let info: ServerInfo = match found.client.get("/info").await {
        Ok(info) => info,
        Err(error) => {
            return Finding::new("server", Health::Bad, error.message).hint("swarm serve --stop --leave");
        }
    };
    let age = format::age(now().millis_since(info.started_at));
    let words = format!("{}, pid {}, {age}, {}", info.version, info.pid, found.client.address);
    if info.version == env!("CARGO_PKG_VERSION") {
        Finding::new("server", Health::Good, words)
    } else {
        Finding::new("server", Health::Bad, format!("{words}; this is swarm {}", env!("CARGO_PKG_VERSION")))
            .hint("swarm serve --stop --leave")
    }
}

/// What `swarm-worker probe` prints.
#[derive(Debug, Deserialize)]
struct Probe {
    tier: u8,
    #[serde(default)]
    notes: Vec<String>,
    #[serde(default)]
    tiers: Vec<ProbedTier>,
}

#[derive(Debug, Deserialize)]
struct ProbedTier {
    tier: u8,
    #[serde(default)]
    obstacles: Vec<String>,
    #[serde(default)]
    holds: Vec<String>,
    #[serde(default)]
    does_not_hold: Vec<String>,
}

/// The sandbox's tier, if the worker beside this program can say it.
pub(crate) fn tier(program: &Path) -> Option<u8> {
    let worker = program.with_file_name("swarm-worker");
    let output =
        Command::new(worker).arg("probe").stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    Some(serde_json::from_slice::<Probe>(&output.stdout).ok()?.tier)
}

fn sandbox(program: &Path) -> Finding {
    let worker = program.with_file_name("swarm-worker");
    let output = Command::new(&worker).arg("probe").stdin(Stdio::null()).stderr(Stdio::null()).output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            return Finding::new("sandbox", Health::Bad, format!("{}: {error}", worker.display()))
                .hint("swarm-worker belongs beside swarm");
        }
    };
    match serde_json::from_slice::<Probe>(&output.stdout) {
        Ok(probe) => probed(&probe),
        Err(_) => Finding::new("sandbox", Health::Bad, "swarm-worker probe does not answer")
            .hint("swarm and swarm-worker of one version belong together"),
    }
}

fn probed(probe: &Probe) -> Finding {
    let health = if probe.tier == 1 { Health::Good } else { Health::Doubtful };
    let mut finding = Finding::new("sandbox", health, tier_words(probe.tier));
    if probe.tiers.is_empty() {
        finding.details.clone_from(&probe.notes);
    }
    for tier in &probe.tiers {
        let mut add = |what: &str, list: &[String]| {
            finding.details.extend(list.iter().map(|word| format!("tier {} {what}: {word}", tier.tier)));
        };
        add("is not to be had", &tier.obstacles);
        add("holds", &tier.holds);
        add("does not hold", &tier.does_not_hold);
    }
    match probe.tier {
        0 => finding.hint("a kernel with Landlock confines commands"),
        1 => finding,
        _ => finding.hint("user namespaces, where the machine allows them, confine commands better"),
    }
}

fn model(shell: &Shell) -> Finding {
    let repository = repository::around(shell);
    let settings = match task::settings(shell, repository.as_ref(), Vec::new()) {
        Ok(settings) => settings,
        Err(error) => return Finding::new("model", Health::Bad, error.message).hint(error.causes.join(" ")),
    };
    let config = &settings.config;
    let (Some(model), key) = (config.coordinator_model.as_ref().or(config.model.as_ref()), "model") else {
        return Finding::new("model", Health::Bad, "none configured; swarm run --model demo needs none");
    };
    let source = config
        .source(if config.coordinator_model.is_some() { "coordinator_model" } else { key })
        .map_or_else(String::new, |source| format!(", from {source}"));
    let words = format!("{model}{source}");
    let missing = match model.split('/').next() {
        Some("anthropic") => {
            [&["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL"][..]].concat()
        }
        Some("openai") => [&["OPENAI_API_KEY", "OPENAI_BASE_URL"][..]].concat(),
        _ => Vec::new(),
    };
    if !missing.is_empty() && !missing.iter().any(|name| shell.around.variable(name).is_some()) {
        return Finding::new("model", Health::Bad, format!("{words}; no key for it"))
            .hint(format!("set {}", missing[0]));
    }
    Finding::new("model", Health::Good, words)
}

fn tmux() -> Finding {
    match output("tmux", "-V") {
        Some(version) => Finding::new("tmux", Health::Good, version.trim_start_matches("tmux ").to_owned()),
        None => Finding::new("tmux", Health::Good, "not found; only --tmux needs it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tier_says_what_it_holds_and_what_not() {
        let probed = |text: &str| probed(&serde_json::from_str(text).unwrap());
        let found = probed(
            r#"{"tier":2,"landlock_abi":6,"seccomp":true,"notes":["x"],"tiers":[
                {"tier":1,"obstacles":["no user namespaces"]},
                {"tier":2,"obstacles":[],"holds":["writes"],"does_not_hold":["chmod"]}]}"#,
        );
        assert_eq!(found.health, Health::Doubtful);
        assert_eq!(found.words, "tier 2 (Landlock, seccomp)");
        assert_eq!(
            found.details,
            [
                "tier 1 is not to be had: no user namespaces",
                "tier 2 holds: writes",
                "tier 2 does not hold: chmod"
            ]
        );
        let found = probed(r#"{"tier":0,"notes":["the kernel has no Landlock"]}"#);
        assert_eq!((found.words.as_str(), found.health), ("tier 0: nothing is confined", Health::Doubtful));
        assert_eq!(found.details, ["the kernel has no Landlock"]);
        assert_eq!(probed(r#"{"tier":1}"#).health, Health::Good);
    }
}
