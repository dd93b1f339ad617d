//! Names made for agents: slugs, branch names, and another name when one is taken. Pure.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A name that git or the file system would not take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Only lower-case letters, digits and dashes make a safe directory and ref part.
    #[error(
        "{name:?} is no agent id: use 1 to 64 lower-case letters, digits and dashes, a letter or digit first"
    )]
    Agent { name: String },
    /// git's rules for refs, and no leading dash.
    #[error("{name:?} is no valid branch name (see `git check-ref-format --help`)")]
    Branch { name: String },
    /// Eight hex digits.
    #[error("{name:?} is no session tag: it is the last 8 hex digits of the session's id")]
    Session { name: String },
}

macro_rules! text_type {
    ($name:ident, $parse:path) => {
        impl $name {
            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                $parse(&text)
            }
        }
        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }
    };
}

/// The id of the agent a worktree belongs to; also its directory's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AgentId(String);
text_type!(AgentId, AgentId::parse);

impl AgentId {
    /// # Errors
    /// [`NameError::Agent`] when it is not safe as a directory and a ref part.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let ok = (1..=64).contains(&text.len())
            && !text.starts_with('-')
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        ok.then(|| Self(text.to_owned())).ok_or_else(|| NameError::Agent { name: text.to_owned() })
    }
}

/// The last eight hex digits of a session's id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionTag(String);
text_type!(SessionTag, SessionTag::parse);

impl SessionTag {
    /// # Errors
    /// [`NameError::Session`] when it is not eight hex digits.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let ok = text.len() == 8 && text.bytes().all(|b| b.is_ascii_hexdigit());
        ok.then(|| Self(text.to_ascii_lowercase()))
            .ok_or_else(|| NameError::Session { name: text.to_owned() })
    }
}

/// A local branch without `refs/heads/`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BranchName(String);
text_type!(BranchName, BranchName::parse);

impl BranchName {
    /// # Errors
    /// [`NameError::Branch`] when git would refuse it.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let ok = !text.starts_with('-')
            && text != "HEAD"
            && git2::Reference::is_valid_name(&format!("refs/heads/{text}"));
        ok.then(|| Self(text.to_owned())).ok_or_else(|| NameError::Branch { name: text.to_owned() })
    }

    /// `refs/heads/<name>`.
    pub fn full_ref(&self) -> String {
        format!("refs/heads/{}", self.0)
    }
}

/// What stands before the session in a branch name; may hold slashes. Default `swarm`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BranchPrefix(String);
text_type!(BranchPrefix, BranchPrefix::parse);

impl BranchPrefix {
    /// # Errors
    /// [`NameError::Branch`] when git would refuse it.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        BranchName::parse(text).map(|name| Self(name.0))
    }
}

impl Default for BranchPrefix {
    fn default() -> Self {
        Self("swarm".to_owned())
    }
}

/// A description as a branch part: ASCII lower case, digits, dashes, 1 to 40 characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slug(String);

const SLUG_LIMIT: usize = 40;
/// For a description without any letter or digit of ASCII.
const EMPTY_SLUG: &str = "work";

impl Slug {
    /// Never fails and is never empty.
    pub fn of(description: &str) -> Self {
        let mut slug = String::new();
        for c in description.chars() {
            if c.is_ascii_alphanumeric() {
                slug.push(c.to_ascii_lowercase());
            } else if !slug.is_empty() && !slug.ends_with('-') {
                slug.push('-');
            }
            if slug.len() > SLUG_LIMIT {
                break;
            }
        }
        if slug.len() > SLUG_LIMIT {
            // Rather a whole word less than half a word.
            let cut = slug[..=SLUG_LIMIT].rfind('-').filter(|at| *at >= SLUG_LIMIT / 2);
            slug.truncate(cut.unwrap_or(SLUG_LIMIT));
        }
        let slug = slug.trim_end_matches('-');
        Self(if slug.is_empty() { EMPTY_SLUG } else { slug }.to_owned())
    }

    /// The text itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The parts of a worker's branch name.
#[derive(Clone, Debug)]
pub struct BranchPlan {
    /// First part or parts.
    pub prefix: BranchPrefix,
    /// Second part.
    pub session: SessionTag,
    /// Third part.
    pub agent: AgentId,
    /// Last part.
    pub slug: Slug,
}

/// Why a branch has another name than planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Renamed {
    /// Somebody's branch has the name and is left alone.
    #[error("branch {wanted} exists already and was left alone; {taken} is used instead")]
    Exists { wanted: String, taken: String },
    /// git cannot have `a` and `a/b`.
    #[error("branch {blocking} exists, so git allows no branch {wanted}; {taken} is used instead")]
    PrefixIsBranch { wanted: String, blocking: String, taken: String },
    /// git cannot have `a/b` and `a/b/c`.
    #[error("branches below {wanted}/ exist, so git allows no branch {wanted}; {taken} is used instead")]
    IsDirectory { wanted: String, taken: String },
}

/// A name that is free, and the reason when it is not the planned one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenBranch {
    /// Free in the given set.
    pub name: BranchName,
    /// Set when the plan's own name was not free.
    pub renamed: Option<Renamed>,
}

enum Clash {
    Exists,
    Parent(String),
    Directory,
}

impl BranchPlan {
    /// The name wished for.
    pub fn wanted(&self) -> BranchName {
        self.name(&self.prefix.0, "")
    }

    fn name(&self, prefix: &str, suffix: &str) -> BranchName {
        BranchName(format!("{prefix}/{}/{}/{}{suffix}", self.session, self.agent, self.slug.as_str()))
    }

    /// Finds a name free among `existing` (names without `refs/heads/`).
    pub fn choose(&self, existing: &BTreeSet<String>) -> ChosenBranch {
        let wanted = self.wanted();
        let Some(first) = clash(&wanted.0, existing) else {
            return ChosenBranch { name: wanted, renamed: None };
        };
        // The set is finite, so some number is free.
        let name = (2_u32..)
            .map(|n| match &first {
                Clash::Parent(_) if n == 2 => self.name(&format!("{}-work", self.prefix.0), ""),
                Clash::Parent(_) => self.name(&format!("{}-work-{n}", self.prefix.0), ""),
                Clash::Exists | Clash::Directory => self.name(&self.prefix.0, &format!("-{n}")),
            })
            .find(|name| clash(&name.0, existing).is_none())
            .expect("numbers do not run out before branches");
        let (wanted, taken) = (wanted.0, name.0.clone());
        let renamed = match first {
            Clash::Exists => Renamed::Exists { wanted, taken },
            Clash::Directory => Renamed::IsDirectory { wanted, taken },
            Clash::Parent(blocking) => Renamed::PrefixIsBranch { wanted, blocking, taken },
        };
        ChosenBranch { name, renamed: Some(renamed) }
    }
}

fn clash(name: &str, existing: &BTreeSet<String>) -> Option<Clash> {
    if existing.contains(name) {
        return Some(Clash::Exists);
    }
    for (at, _) in name.match_indices('/') {
        if existing.contains(&name[..at]) {
            return Some(Clash::Parent(name[..at].to_owned()));
        }
    }
    let below = format!("{name}/");
    existing.range(below.clone()..).next().filter(|other| other.starts_with(&below)).map(|_| Clash::Directory)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn slugs() {
        let check = |text: &str, expected: &str| assert_eq!(Slug::of(text).as_str(), expected);
        check("Investigate auth bug", "investigate-auth-bug");
        check("  --Fix #42: “Ünicode”  ", "fix-42-nicode");
        check("漢字だけ", "work");
        check("", "work");
        check("../../etc/passwd.lock", "etc-passwd-lock");
        check("refactor the authentication module and its tests", "refactor-the-authentication-module-and");
        check(&"x".repeat(99), &"x".repeat(40));
    }

    proptest! {
        #[test]
        fn every_description_makes_a_branch(text in ".*") {
            let slug = Slug::of(&text);
            prop_assert!((1..=40).contains(&slug.as_str().len()));
            let name = format!("swarm/x/{}", slug.as_str());
            prop_assert!(BranchName::parse(&name).is_ok());
        }
    }

    #[test]
    fn taken_names_lead_to_others() {
        let plan = BranchPlan {
            prefix: BranchPrefix::default(),
            session: SessionTag::parse("7c1d09e2").unwrap(),
            agent: AgentId::parse("agent-a1b").unwrap(),
            slug: Slug::of("fix"),
        };
        let check = |existing: &[&str], expected: &str, why: &str| {
            let existing = existing.iter().map(|s| (*s).to_owned()).collect();
            let chosen = plan.choose(&existing);
            assert_eq!(chosen.name.as_str(), expected);
            let renamed = chosen.renamed.map(|r| r.to_string()).unwrap_or_default();
            assert!(renamed.contains(why) && renamed.is_empty() == why.is_empty(), "{renamed}");
        };
        check(&["main"], "swarm/7c1d09e2/agent-a1b/fix", "");
        check(
            &["swarm/7c1d09e2/agent-a1b/fix", "swarm/7c1d09e2/agent-a1b/fix-2"],
            "swarm/7c1d09e2/agent-a1b/fix-3",
            "exists already and was left alone",
        );
        check(&["swarm"], "swarm-work/7c1d09e2/agent-a1b/fix", "branch swarm exists");
        check(&["swarm", "swarm-work"], "swarm-work-3/7c1d09e2/agent-a1b/fix", "branch swarm exists");
        check(&["swarm/7c1d09e2/agent-a1b/fix/deep"], "swarm/7c1d09e2/agent-a1b/fix-2", "branches below");
    }

    #[test]
    fn names_git_refuses_are_refused() {
        for bad in ["", "-x", "a..b", "a b", "x.lock", "HEAD", "a//b", "a/", "@{", "a\nb"] {
            assert!(BranchName::parse(bad).is_err(), "{bad:?}");
        }
        for bad in ["", "-a", "A", "a/b", "..", "a.b"] {
            assert!(AgentId::parse(bad).is_err(), "{bad:?}");
        }
    }
}
