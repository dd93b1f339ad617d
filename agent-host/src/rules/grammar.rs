//! The text of a rule: `Tool` or `Tool(specifier)`.

use swarm_protocol::permission::RuleBehavior;

use super::{
    paths::{PathPattern, PathPatternError},
    wildcard::{Match, Text, Wildcard},
};

/// A rule that was read.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    /// May hold `*` for MCP tools.
    pub(crate) tool_name: String,
    pub(crate) specifier: Specifier,
}

#[derive(Debug, Clone)]
pub(crate) enum Specifier {
    /// Every call of the tool.
    Any,
    Command(CommandPattern),
    Path(PathPattern),
    /// Host of a URL; `*.` in front covers subdomains.
    Domain(String),
    /// Name of an inner agent or a skill.
    Name(CommandPattern),
    /// An input field of any other tool.
    Param {
        name: String,
        value: Wildcard,
    },
}

/// A pattern over a command line.
#[derive(Debug, Clone)]
pub(crate) struct CommandPattern {
    whole: Wildcard,
    /// Set for a trailing ` *` or `:*`: the text before it, alone or followed by a blank and anything.
    prefix: Option<Wildcard>,
}

impl CommandPattern {
    fn new(text: &str) -> Self {
        let text = inner_blanks(text);
        let prefix = text.strip_suffix(":*").or_else(|| text.strip_suffix(" *")).map(Wildcard::new);
        Self { whole: Wildcard::new(&text), prefix }
    }

    pub(crate) fn matches(&self, text: &Text) -> Match {
        match &self.prefix {
            None => self.whole.matches(text),
            Some(prefix) => prefix.matches(text).max(prefix.with_star_appended(" ").matches(text)),
        }
    }

    /// A `*` of the pattern never chooses the program: no path, and no name that needs quotes.
    pub(crate) fn may_start(&self, program: &str) -> bool {
        let plain = |c: char| c.is_alphanumeric() || "_./+-@%:,[]".contains(c);
        let n_literal = self.whole.literal_start().filter(|c| *c == '/').count();
        program.chars().all(plain) && program.matches('/').count() <= n_literal
    }

    /// Names one command, not a family.
    pub(crate) fn is_exact(&self) -> bool {
        self.prefix.is_none() && !self.whole.has_star()
    }
}

/// Quotes in a rule group words as they do in the command they stand for.
fn inner_blanks(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut quote: Option<char> = None;
    for c in text.chars() {
        match quote {
            Some(open) if open == c => quote = None,
            Some(_) if c == ' ' => out.push(super::wildcard::INNER_BLANK),
            Some(_) => out.push(c),
            None if matches!(c, '"' | '\'') => quote = Some(c),
            None => out.push(c),
        }
    }
    match quote {
        // Unbalanced: an apostrophe, taken as written.
        Some(_) => text.to_owned(),
        None => out,
    }
}

/// Why a rule is not one. `at` counts characters of the rule's text from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleSyntaxError {
    #[error("a rule needs a tool name")]
    NoTool { at: usize },
    #[error("`{found}` cannot stand in a tool name; a rule is `Tool` or `Tool(specifier)`")]
    ToolName { found: char, at: usize },
    #[error("the bracket after `{tool}` is not closed")]
    Unclosed { tool: String, at: usize },
    #[error("text after the closing bracket")]
    Trailing { at: usize },
    #[error("`{tool}()` is empty; write `{tool}` for every call")]
    EmptySpecifier { tool: String, at: usize },
    #[error(
        "a path is written `//absolute`, `~/home`, `/from the settings' directory` or `relative`, not as a URL"
    )]
    UrlAsPath { at: usize },
    #[error("the path pattern does not parse")]
    Path { at: usize, source: PathPatternError },
    #[error("`domain:` needs a host name, such as domain:example.com")]
    Domain { at: usize },
    #[error("an allow rule may use `*` only after `mcp__server__`")]
    WideAllow { at: usize },
    #[error("`{tool}` takes no specifier in an allow rule")]
    ParamAllow { tool: String, at: usize },
}

impl RuleSyntaxError {
    /// Character offset into the rule.
    pub fn at(&self) -> usize {
        match self {
            Self::NoTool { at }
            | Self::ToolName { at, .. }
            | Self::Unclosed { at, .. }
            | Self::Trailing { at }
            | Self::EmptySpecifier { at, .. }
            | Self::UrlAsPath { at }
            | Self::Path { at, .. }
            | Self::Domain { at }
            | Self::WideAllow { at }
            | Self::ParamAllow { at, .. } => *at,
        }
    }
}

/// Tools whose specifier is a path.
pub(crate) const PATH_TOOLS: [&str; 8] =
    ["Read", "Edit", "Write", "NotebookEdit", "Glob", "Grep", "Cd", "LS"];

pub(crate) fn parse(text: &str, behavior: RuleBehavior) -> Result<Pattern, RuleSyntaxError> {
    let (tool, specifier) = split(text)?;
    let tool = if tool == "Task" { "Agent" } else { tool };
    check_tool_name(tool, behavior)?;
    let at = tool.chars().count() + 1;
    let specifier = match specifier {
        None => Specifier::Any,
        Some("*") => Specifier::Any,
        Some(text) => specifier_of(tool, text, behavior, at)?,
    };
    Ok(Pattern { tool_name: tool.to_owned(), specifier })
}

fn split(text: &str) -> Result<(&str, Option<&str>), RuleSyntaxError> {
    let Some((tool, rest)) = text.split_once('(') else {
        return Ok((text, None));
    };
    let at = tool.chars().count();
    let Some((specifier, trailing)) = rest.rsplit_once(')') else {
        return Err(RuleSyntaxError::Unclosed { tool: tool.to_owned(), at });
    };
    if !trailing.is_empty() {
        return Err(RuleSyntaxError::Trailing { at: text.chars().count() - trailing.chars().count() });
    }
    if specifier.trim().is_empty() {
        return Err(RuleSyntaxError::EmptySpecifier { tool: tool.to_owned(), at });
    }
    Ok((tool, Some(specifier)))
}

fn check_tool_name(tool: &str, behavior: RuleBehavior) -> Result<(), RuleSyntaxError> {
    if tool.is_empty() {
        return Err(RuleSyntaxError::NoTool { at: 0 });
    }
    for (at, c) in tool.chars().enumerate() {
        if !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '*')) {
            return Err(RuleSyntaxError::ToolName { found: c, at });
        }
    }
    let Some(star) = tool.find('*') else { return Ok(()) };
    let literal_server = tool[..star]
        .strip_prefix("mcp__")
        .is_some_and(|rest| rest.split_once("__").is_some_and(|(server, _)| !server.is_empty()));
    if behavior == RuleBehavior::Allow && !literal_server {
        return Err(RuleSyntaxError::WideAllow { at: star });
    }
    Ok(())
}

fn specifier_of(
    tool: &str,
    text: &str,
    behavior: RuleBehavior,
    at: usize,
) -> Result<Specifier, RuleSyntaxError> {
    if PATH_TOOLS.contains(&tool) {
        if let Some(offset) = text.find("://") {
            return Err(RuleSyntaxError::UrlAsPath { at: at + text[..offset].chars().count() });
        }
        let pattern =
            PathPattern::new(text, behavior).map_err(|source| RuleSyntaxError::Path { at, source })?;
        return Ok(Specifier::Path(pattern));
    }
    match tool {
        "Bash" => Ok(Specifier::Command(CommandPattern::new(text))),
        "Agent" | "Subagent" | "Skill" => Ok(Specifier::Name(CommandPattern::new(text))),
        "WebFetch" | "WebSearch" => match text.strip_prefix("domain:").map(str::trim) {
            Some(host) if !host.is_empty() && !host.contains(['/', ':', ' ']) => {
                Ok(Specifier::Domain(host.to_ascii_lowercase()))
            }
            _ => Err(RuleSyntaxError::Domain { at }),
        },
        _ => match text.split_once(':') {
            Some((name, value)) if behavior != RuleBehavior::Allow && !name.is_empty() => {
                Ok(Specifier::Param { name: name.to_owned(), value: Wildcard::new(value) })
            }
            _ => Err(RuleSyntaxError::ParamAllow { tool: tool.to_owned(), at }),
        },
    }
}
