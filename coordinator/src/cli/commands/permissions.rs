//! `swarm permissions explain`: what would become of a call, and which rule of which file, or which default, says so.
//!
//! The shell reads the settings itself, under the trust that holds, and decides as a worker would: no server is asked.

use std::path::PathBuf;

use agent_host::{
    ClaudeSettingsError, DangerousForms, DecidedBy, DiskPaths, Explanation, Ground, MatchingRule, Part,
    PermissionQuery, RuleSet, SandboxState, Subject, explain,
};
use serde_json::{Value, json};
use swarm_protocol::{
    launch::Isolation,
    permission::{PermissionMode, Rule, RuleBehavior},
};

use super::{
    super::{
        args::{ExplainCallArgs, PermissionsArgs, PermissionsCommand},
        error::{CliError, Result},
        output::{BOLD, DIM, paint},
        repository,
        shell::Shell,
        task,
        text::visible,
    },
    doctor,
};
use crate::submit::{self, Settings, SubmitError};

/// `swarm permissions`.
pub(crate) async fn permissions(shell: &mut Shell, args: &PermissionsArgs) -> Result<u8> {
    match &args.command {
        PermissionsCommand::Explain(args) => explained(shell, args),
        PermissionsCommand::Log(args) => super::answers::log(shell, &args.id).await,
    }
}

/// A call, as a rule would name it.
struct Call {
    tool: String,
    subject: Option<Subject>,
    input: Value,
}

fn explained(shell: &mut Shell, args: &ExplainCallArgs) -> Result<u8> {
    let call = Call::read(&args.call)?;
    let repository = repository::around(shell);
    let flags =
        task::flag("--permission-mode", "permission_mode", args.permission_mode.map(PermissionMode::as_str));
    let variables: Vec<(String, String)> = shell
        .around
        .variables
        .iter()
        .filter(|(name, value)| {
            (name.starts_with("SWARM_") || *name == "CLAUDE_CONFIG_DIR") && !value.is_empty()
        })
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let checkout = repository.as_ref().map(|repository| repository.checkout.clone());
    let flags: Vec<_> = flags.into_iter().collect();
    let user_home = shell.around.user_home.clone();
    let settings = submit::settings_of(&shell.home, &user_home, checkout.as_deref(), &variables, &flags)
        .map_err(|error| settings_error(&error))?;
    let mode = submit::permission_mode(&settings.config, &settings.claude)
        .map_err(|error| settings_error(&error))?;
    let rules = RuleSet::new(settings.claude.rules.iter().cloned()).map_err(|errors| {
        errors.iter().fold(CliError::new("bad_config", "rules do not parse"), |shown, error| {
            shown.cause(format!("{error}: {}", error.source))
        })
    })?;
    let tier = if args.no_sandbox { Some(0) } else { doctor::tier(&shell.around.program) };
    // What the kernel can do is not known without the other program: then as if it could do nothing.
    let enforces = tier.is_some_and(|tier| tier > 0);
    let worktree = checkout.unwrap_or_else(|| shell.around.directory.clone());
    let cwd = match shell.around.directory.starts_with(&worktree) {
        true => shell.around.directory.clone(),
        false => worktree.clone(),
    };
    let ground = Ground {
        mode,
        isolation: Isolation::Worktree,
        sandbox: SandboxState {
            enforces,
            auto_allow: settings.config.sandbox_auto_allow,
            is_read_only: mode == PermissionMode::Plan,
        },
        is_unattended: args.unattended,
        worktree: &worktree,
        home: &user_home,
        writable: &[],
        readable: &[],
        paths: &DiskPaths,
    };
    let subjects: Vec<Subject> = call.subject.into_iter().collect();
    let query = PermissionQuery {
        tool: &call.tool,
        input: &call.input,
        subjects: &subjects,
        is_read_only: READERS.contains(&call.tool.as_str()),
        cwd: &cwd,
    };
    let explanation = explain(&rules, &DangerousForms::embedded(), &query, &ground);
    let surroundings =
        Circumstances { mode, mode_source: mode_source(&settings, mode), tier, settings: &settings };
    match shell.is_json() {
        true => {
            shell.json("permission.explained", None, None, surroundings.json(&args.call, &explanation))?
        }
        false => surroundings.print(shell, &args.call, &explanation)?,
    }
    Ok(0)
}

/// Tools that only read, or keep the agent's own lists and jobs.
const READERS: [&str; 11] = [
    "Read",
    "Grep",
    "Glob",
    "LS",
    "WebFetch",
    "WebSearch",
    "BashOutput",
    "TodoWrite",
    "KillShell",
    "Retrieve",
    "Skill",
];

impl Call {
    /// `Bash(git push)`, `Read(.env)`, `WebFetch(https://…)`, `mcp__server__tool`.
    fn read(text: &str) -> Result<Self> {
        let wrong = |what: &str| {
            CliError::usage(format!("`{text}` is no call: {what}"))
                .hint("write it as a rule would name it: Bash(git push), Read(.env), WebFetch(https://example.com), mcp__server__tool")
        };
        let (tool, inner) = match text.split_once('(') {
            None => (text, None),
            Some((tool, rest)) => match rest.strip_suffix(')') {
                Some(inner) => (tool, Some(inner)),
                None => return Err(wrong("the bracket is not closed")),
            },
        };
        if tool.is_empty() || !tool.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
        {
            return Err(wrong("it does not begin with the name of a tool"));
        }
        let needs = |what: &str| inner.filter(|inner| !inner.trim().is_empty()).ok_or_else(|| wrong(what));
        let path = |inner: &str| PathBuf::from(inner);
        let (subject, input) = match tool {
            "Bash" => {
                let command = needs("Bash needs a command in brackets")?;
                (Some(Subject::Command(command.to_owned())), json!({"command": command}))
            }
            "Read" | "Grep" | "Glob" | "LS" => {
                let inner = inner.unwrap_or(".");
                (Some(Subject::Read(path(inner))), json!({"file_path": inner, "path": inner}))
            }
            "Edit" | "Write" | "MultiEdit" | "NotebookEdit" => {
                let inner = needs("it needs a path in brackets")?;
                (Some(Subject::Write(path(inner))), json!({"file_path": inner}))
            }
            "WebFetch" => {
                let inner = needs("WebFetch needs an address in brackets")?;
                (
                    Some(Subject::Host(host_of(inner).ok_or_else(|| wrong("the address names no host"))?)),
                    json!({"url": inner}),
                )
            }
            _ => match inner {
                Some(inner) => (Some(Subject::Name(inner.to_owned())), json!({"name": inner})),
                None => (None, json!({})),
            },
        };
        Ok(Self { tool: tool.to_owned(), subject, input })
    }
}

/// The host of a URL, of `domain:HOST`, or of a bare name.
fn host_of(text: &str) -> Option<String> {
    if let Ok(url) = reqwest::Url::parse(text)
        && let Some(host) = url.host_str()
    {
        return Some(host.to_owned());
    }
    let host = text.strip_prefix("domain:").unwrap_or(text);
    let is_name =
        !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'));
    is_name.then(|| host.to_owned())
}

/// Where the mode comes from, in words.
fn mode_source(settings: &Settings, mode: PermissionMode) -> String {
    let source = settings.config.source("permission_mode").map(ToString::to_string).unwrap_or_default();
    match settings.claude.default_mode {
        Some(of_files) if of_files == mode && settings.config.permission_mode != mode => {
            "defaultMode of a settings file".to_owned()
        }
        _ => source,
    }
}

fn settings_error(error: &SubmitError) -> CliError {
    let shown = CliError::new("bad_config", error.to_string());
    let SubmitError::Settings { errors } = error else {
        let mut source = std::error::Error::source(error);
        let mut shown = shown;
        while let Some(cause) = source {
            shown = shown.cause(cause.to_string());
            source = cause.source();
        }
        return shown;
    };
    errors
        .iter()
        .filter_map(ClaudeSettingsError::place)
        .fold(shown, |shown, place| shown.cause(place.to_string()))
}

/// What the answer depends on besides rules.
struct Circumstances<'a> {
    mode: PermissionMode,
    mode_source: String,
    /// The sandbox's; none when the other program does not say.
    tier: Option<u8>,
    settings: &'a Settings,
}

impl Circumstances<'_> {
    fn json(&self, call: &str, explanation: &Explanation) -> Value {
        let Explanation { answer, rules } = explanation;
        let ignored: Vec<String> = self.settings.claude.ignored.iter().map(ToString::to_string).collect();
        let rules: Vec<Value> = rules
            .iter()
            .map(|MatchingRule { rule, part }| {
                json!({"rule": rule, "part": match part {
                    Part::Decides => "decides",
                    Part::Perhaps => "may_match",
                    Part::Overruled => "overruled",
                }})
            })
            .collect();
        json!({
            "call": call,
            "behavior": answer.behavior,
            "decided_by": deciding(&answer.by),
            "because": answer.by.because(),
            "rules": rules,
            "proposed_rule": answer.proposed_rule,
            "permission_mode": self.mode,
            "permission_mode_source": self.mode_source,
            "sandbox_tier": self.tier,
            "ignored": ignored,
        })
    }

    fn print(&self, shell: &mut Shell, call: &str, explanation: &Explanation) -> Result<()> {
        let Explanation { answer, rules } = explanation;
        let verb = match answer.behavior {
            RuleBehavior::Allow => "is allowed",
            RuleBehavior::Ask => "asks a person",
            RuleBehavior::Deny => "is refused",
        };
        shell.out.line(&format!("{} {verb}", paint(BOLD, &visible(call))))?;
        let mut line = |name: &str, words: &str| {
            shell.out.line(&format!("  {}  {}", paint(DIM, &format!("{name:<9}")), visible(words)))
        };
        line("because", &answer.by.because())?;
        line("decided by", deciding(&answer.by))?;
        for MatchingRule { rule, part } in rules {
            let words = match part {
                Part::Decides => "decides",
                Part::Perhaps => "may match, depending on a value that only the shell knows",
                Part::Overruled => "matches, but something stronger decides",
            };
            line("rule", &format!("{}: {words}", place(rule)))?;
        }
        if let Some(rule) = &answer.proposed_rule {
            line("always", &format!("would write {rule}"))?;
        }
        line("mode", &format!("{} ({})", self.mode.as_str(), self.mode_source))?;
        let sandbox = match self.tier {
            Some(0) => "does not enforce: only allow rules and the read-only set pass".to_owned(),
            Some(tier) if self.settings.config.sandbox_auto_allow => {
                format!("tier {tier} enforces: clean commands pass")
            }
            Some(tier) => format!("tier {tier} enforces; sandbox.auto_allow is off"),
            None => "not known, as swarm-worker does not answer: taken as if it did not enforce".to_owned(),
        };
        line("sandbox", &sandbox)?;
        for ignored in &self.settings.claude.ignored {
            line("ignored", &ignored.to_string())?;
        }
        Ok(())
    }
}

/// A rule with its file and line.
fn place(rule: &Rule) -> String {
    let behavior = match rule.behavior {
        RuleBehavior::Deny => "deny",
        RuleBehavior::Ask => "ask",
        RuleBehavior::Allow => "allow",
    };
    let origin = match (&rule.origin.file, rule.origin.line) {
        (Some(file), Some(line)) => format!("{file}:{line}"),
        (Some(file), None) => file.clone(),
        _ => rule.origin.level.clone(),
    };
    format!("{behavior} {} ({origin})", rule.text)
}

/// One word for what decided.
fn deciding(by: &DecidedBy) -> &'static str {
    match by {
        DecidedBy::Rule(_) | DecidedBy::RuleMayMatch(_) => "rule",
        DecidedBy::Mode(_) => "permission_mode",
        DecidedBy::ReadOnlyTool => "read_only_tool",
        DecidedBy::ReadOnlySet => "read_only_set",
        DecidedBy::SandboxAutoAllow => "sandbox",
        DecidedBy::DangerousForm { .. } => "dangerous_form",
        DecidedBy::RiskyVariable { .. } => "risky_variable",
        DecidedBy::TooComplex(_) => "too_complex",
        DecidedBy::OutsideWorktree { .. } => "outside_worktree",
        DecidedBy::LinkLeadsOutside { .. } => "link_leads_outside",
        DecidedBy::ProtectedPath { .. } => "protected_path",
        DecidedBy::DeniedFilesBelow { .. } | DecidedBy::MayHoldDenied { .. } => "denied_files_below",
        DecidedBy::OtherRepository { .. } => "other_repository",
        DecidedBy::ReadOnlyAgent => "read_only_agent",
        DecidedBy::NoRule => "no_rule",
        DecidedBy::Unattended(by) => deciding(by),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_as_rules_name_them() {
        let subject = |text: &str| {
            Call::read(text).map(|call| (call.tool, call.subject)).map_err(|error| error.message)
        };
        let is = |tool: &str, subject: Option<Subject>| Ok((tool.to_owned(), subject));
        assert_eq!(subject("Bash(echo (a))"), is("Bash", Some(Subject::Command("echo (a)".into()))));
        assert_eq!(subject("Read(~/.env)"), is("Read", Some(Subject::Read("~/.env".into()))));
        assert_eq!(subject("Grep"), is("Grep", Some(Subject::Read(".".into()))));
        assert_eq!(subject("Write(a b)"), is("Write", Some(Subject::Write("a b".into()))));
        assert_eq!(
            subject("WebFetch(https://docs.rs/x?y)"),
            is("WebFetch", Some(Subject::Host("docs.rs".into())))
        );
        assert_eq!(
            subject("WebFetch(domain:docs.rs)"),
            is("WebFetch", Some(Subject::Host("docs.rs".into())))
        );
        assert_eq!(subject("mcp__a__b"), is("mcp__a__b", None));
        assert_eq!(subject("Agent(Explore)"), is("Agent", Some(Subject::Name("Explore".into()))));
        for (text, part) in [
            ("Bash", "needs a command"),
            ("Bash()", "needs a command"),
            ("Bash(x", "not closed"),
            ("", "the name of a tool"),
            ("git push", "the name of a tool"),
            ("Edit", "needs a path"),
            ("WebFetch(/x y)", "names no host"),
        ] {
            assert!(subject(text).is_err_and(|message| message.contains(part)), "{text}");
        }
    }
}
