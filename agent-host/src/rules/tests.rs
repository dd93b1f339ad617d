use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::Value;
use swarm_protocol::{
    launch::Isolation,
    permission::{PermissionMode, Rule, RuleBehavior, RuleOrigin},
};

use super::*;
use crate::dangerous::DangerousForms;

mod bash_files;
mod bash_modes;
mod bash_rules;
mod measured;
mod path_rules;
mod properties;
mod wildcards;

/// Links and files of an imagined disk.
#[derive(Debug, Default)]
struct Disk {
    links: BTreeMap<PathBuf, PathBuf>,
    files: Vec<PathBuf>,
}

impl PathResolver for Disk {
    fn resolve(&self, path: &Path) -> Option<PathBuf> {
        let mut out = PathBuf::from("/");
        for part in path.components() {
            match part {
                std::path::Component::ParentDir => {
                    out.pop();
                }
                std::path::Component::Normal(name) => {
                    out.push(name);
                    if let Some(target) = self.links.get(&out) {
                        out.clone_from(target);
                    }
                }
                _ => {}
            }
        }
        Some(out)
    }

    fn exists(&self, path: &Path) -> bool {
        self.files.iter().any(|file| file.starts_with(path))
    }

    fn names(&self, directory: &Path, most: usize) -> Option<Vec<std::ffi::OsString>> {
        let directory = self.resolve(directory)?;
        let all = self.files.iter().chain(self.links.keys());
        let below = all.filter_map(|file| file.strip_prefix(&directory).ok()?.components().next());
        let mut names: Vec<_> = below.map(|name| name.as_os_str().to_owned()).collect();
        names.sort();
        names.dedup();
        (names.len() <= most).then_some(names)
    }

    fn look_below(&self, directory: &Path, is_it: &dyn Fn(&Path) -> bool) -> Look {
        let below = |file: &&PathBuf| file.starts_with(directory);
        let found = self.files.iter().filter(below).find(|file| is_it(file));
        found.map_or(Look::Nothing, |file| Look::Found(file.clone()))
    }
}

const ENFORCING: SandboxState = SandboxState { enforces: true, auto_allow: true, is_read_only: false };

/// An agent in `/w` with rules, and the answers it gets as short texts.
struct Agent {
    rules: RuleSet,
    mode: PermissionMode,
    sandbox: SandboxState,
    isolation: Isolation,
    unattended: bool,
    disk: Disk,
    forms: DangerousForms,
}

fn rule(behavior: RuleBehavior, text: &str) -> Rule {
    let origin = RuleOrigin {
        level: "project".into(),
        file: Some("/p/.claude/settings.json".into()),
        line: Some(3),
        anchor: Some("/p".into()),
    };
    Rule { behavior, text: text.into(), origin }
}

/// Rules as `allow Bash(ls *)`, one each.
fn agent(rules: &[&str]) -> Agent {
    let rules = rules.iter().map(|line| {
        let (word, text) = line.split_once(' ').unwrap();
        let behavior = match word {
            "allow" => RuleBehavior::Allow,
            "ask" => RuleBehavior::Ask,
            "deny" => RuleBehavior::Deny,
            _ => panic!("{word}"),
        };
        rule(behavior, text)
    });
    let mut disk = Disk::default();
    disk.links.insert("/w/link-out".into(), "/".into());
    disk.links.insert("/w/dangling".into(), "/outside/new".into());
    disk.links.insert("/w/alias".into(), "/w/src".into());
    disk.files = [
        "/w/.env",
        "/w/src/lib.rs",
        "/w/docs/a.md",
        "/w/nested/.git/HEAD",
        "/w/bare/HEAD",
        "/w/lib/secret/key",
        "/w/bare/objects/x",
        "/w/half/HEAD",
        "/w/half/commondir",
    ]
    .map(PathBuf::from)
    .into();
    Agent {
        rules: RuleSet::new(rules).unwrap(),
        mode: PermissionMode::AcceptEdits,
        sandbox: SandboxState::default(),
        isolation: Isolation::Worktree,
        unattended: false,
        disk,
        forms: DangerousForms::embedded(),
    }
}

impl Agent {
    fn sandboxed(mut self) -> Self {
        self.sandbox = ENFORCING;
        self
    }

    fn mode(mut self, mode: PermissionMode) -> Self {
        self.mode = mode;
        self
    }

    fn answer(&self, tool: &str, subject: Subject, is_read_only: bool) -> PermissionAnswer {
        let ground = Ground {
            mode: self.mode,
            isolation: self.isolation,
            sandbox: self.sandbox,
            is_unattended: self.unattended,
            worktree: Path::new("/w"),
            home: Path::new("/home/u"),
            writable: &[],
            readable: &[],
            paths: &self.disk,
        };
        let subjects = [subject];
        let query = PermissionQuery {
            tool,
            input: &Value::Null,
            subjects: &subjects,
            is_read_only,
            cwd: Path::new("/w"),
        };
        decide(&self.rules, &self.forms, &query, &ground)
    }

    fn bash(&self, command: &str) -> PermissionAnswer {
        self.answer("Bash", Subject::Command(command.into()), false)
    }

    #[track_caller]
    fn allows(&self, command: &str) {
        let answer = self.bash(command);
        assert_eq!(answer.behavior, RuleBehavior::Allow, "`{command}`: {}", answer.by.because());
    }

    #[track_caller]
    fn asks(&self, command: &str) {
        let answer = self.bash(command);
        assert_eq!(answer.behavior, RuleBehavior::Ask, "`{command}`: {}", answer.by.because());
    }

    #[track_caller]
    fn denies(&self, command: &str) {
        let answer = self.bash(command);
        assert_eq!(answer.behavior, RuleBehavior::Deny, "`{command}`: {}", answer.by.because());
    }

    fn path(&self, tool: &str, path: &str) -> RuleBehavior {
        let subject = match tool {
            "Read" | "Grep" | "Glob" => Subject::Read(path.into()),
            _ => Subject::Write(path.into()),
        };
        let is_read_only = matches!(subject, Subject::Read(_));
        self.answer(tool, subject, is_read_only).behavior
    }
}
