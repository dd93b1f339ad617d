//! One checked-out tree, named by its three directories and never discovered: the files inside are
//! an agent's and may lie about where the repository is.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::git::{Access, Git, GitCommand, GitError, Neutral, Place};
use crate::porcelain::{self, ConfigEntry, Malformed, StatusEntry};
use crate::types::CommitId;

/// Which of the user's filters and merge drivers may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drivers {
    /// None: the server.
    Off,
    /// Those of the user's own and the shared configuration, not of a worktree's, and only those whose
    /// commands run nothing out of the tree, where an agent may have written it: the worker.
    Trusted,
}

#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) git: Git,
    pub(crate) git_dir: PathBuf,
    pub(crate) common_dir: PathBuf,
    pub(crate) work_tree: PathBuf,
    pub(crate) neutral: Neutral,
}

/// How deep a status looks into submodules.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Submodules {
    /// Only their HEAD. git starts no process inside them, whose configuration an agent can write.
    HeadOnly,
}

impl Tree {
    pub(crate) fn place(&self) -> Place {
        Place::Repo {
            git_dir: self.git_dir.clone(),
            common_dir: self.common_dir.clone(),
            work_tree: Some(self.work_tree.clone()),
        }
    }

    pub(crate) fn read<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> GitCommand {
        self.git.command(&self.place(), Access::Read, args).neutral(&self.neutral)
    }

    pub(crate) fn write<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> GitCommand {
        self.git.command(&self.place(), Access::Write, args).neutral(&self.neutral)
    }

    /// Reads the configuration as it is now in this tree and switches drivers off accordingly.
    pub(crate) async fn with_drivers(mut self, drivers: Drivers) -> Result<Self, GitError> {
        let config = self.config().await?;
        self.neutral = neutral_for(&config, drivers);
        Ok(self)
    }

    pub(crate) async fn config(&self) -> Result<Vec<ConfigEntry>, GitError> {
        let out = self
            .git
            .command(&self.place(), Access::Read, ["config", "--list", "-z", "--show-scope", "--includes"])
            .run()
            .await?;
        let parsed = porcelain::config_list(&out.stdout);
        let parsed = parsed.map_err(|Malformed(problem)| out.unreadable(problem))?;
        out.success()?;
        Ok(parsed)
    }

    pub(crate) async fn status(&self, submodules: Submodules) -> Result<Vec<StatusEntry>, GitError> {
        let ignore = match submodules {
            Submodules::HeadOnly => "--ignore-submodules=dirty",
        };
        let out = self
            .read(["status", "--porcelain=v2", "-z", "--no-renames", "--untracked-files=all", ignore])
            .run()
            .await?;
        if out.code != Some(0) {
            return Err(out.into_error());
        }
        porcelain::status(&out.stdout).map_err(|Malformed(problem)| out.unreadable(problem))
    }

    pub(crate) async fn head(&self) -> Result<CommitId, GitError> {
        self.rev("HEAD^{commit}").await
    }

    /// Resolves one expression to a full id.
    pub(crate) async fn rev(&self, expression: &str) -> Result<CommitId, GitError> {
        let out = self.read(["rev-parse", "--verify", "--end-of-options", expression]).run().await?;
        if out.code != Some(0) {
            return Err(out.into_error());
        }
        let text = String::from_utf8_lossy(&out.stdout);
        CommitId::parse(&text).map_err(|_| out.unreadable("an id was expected"))
    }

    pub(crate) fn operation(&self) -> Option<crate::unfinished::Operation> {
        crate::unfinished::Operation::in_git_dir(&self.git_dir)
    }

    /// Paths that differ between two trees.
    pub(crate) async fn touched(
        &self,
        from: &str,
        to: &str,
    ) -> Result<Vec<crate::types::RepoPath>, GitError> {
        let out = self.read(["diff-tree", "-r", "-z", "--name-only", "--no-renames", from, to]).ok().await?;
        Ok(porcelain::paths(&out))
    }

    /// The id printed by a command that makes one object.
    pub(crate) async fn object(command: GitCommand) -> Result<CommitId, GitError> {
        let out = command.run().await?;
        if out.code != Some(0) {
            return Err(out.into_error());
        }
        let text = String::from_utf8_lossy(&out.stdout);
        CommitId::parse(&text).map_err(|_| out.unreadable("an id was expected"))
    }
}

/// Names of filters and drivers with commands in `config`, switched off.
pub(crate) fn neutral_for(config: &[ConfigEntry], drivers: Drivers) -> Neutral {
    let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for entry in config {
        let wanted = match drivers {
            Drivers::Off => true,
            Drivers::Trusted => entry.scope == "worktree" || is_from_tree(entry),
        };
        if !wanted || entry.scope == "command" {
            continue;
        }
        let settings: &[(&str, &str)] = if filter_name(&entry.key).is_some() {
            &[("smudge", ""), ("clean", ""), ("process", ""), ("required", "false")]
        } else if entry.key.starts_with(b"merge.") && entry.key.ends_with(b".driver") {
            &[("driver", "false")]
        } else {
            continue;
        };
        let Some(dot) = entry.key.iter().rposition(|b| *b == b'.') else {
            continue;
        };
        for (name, value) in settings {
            let mut key = entry.key[..=dot].to_vec();
            key.extend_from_slice(name.as_bytes());
            let pair = (key, value.as_bytes().to_vec());
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
        }
    }
    Neutral(pairs.into())
}

/// Whether the command of a filter or merge driver runs a file of the tree it works on.
fn is_from_tree(entry: &ConfigEntry) -> bool {
    let is_driver = entry.key.starts_with(b"merge.") && entry.key.ends_with(b".driver");
    if filter_name(&entry.key).is_none() && !is_driver {
        return false;
    }
    let from_tree = entry.value.as_deref().is_some_and(crate::driver::runs_from_tree);
    if from_tree {
        tracing::warn!(
            key = %crate::types::printable(&entry.key),
            "switched off: its command may run a file of the worktree, unconfined; name an absolute path"
        );
    }
    from_tree
}

/// The name in `filter.<name>.smudge` and its relatives that run something.
pub(crate) fn filter_name(key: &[u8]) -> Option<&[u8]> {
    let rest = key.strip_prefix(b"filter.")?;
    let dot = rest.iter().rposition(|b| *b == b'.')?;
    matches!(&rest[dot + 1..], b"smudge" | b"clean" | b"process").then(|| &rest[..dot])
}

/// Writes to `path` so that a crash leaves the old content or the new.
pub(crate) fn write_durably(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    let dir = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir)?;
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    std::fs::File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_switched_off_by_scope() {
        let entry = |scope: &str, key: &str| ConfigEntry {
            scope: scope.to_owned(),
            key: key.as_bytes().to_vec(),
            value: Some(b"evil".to_vec()),
        };
        let config = [
            entry("global", "filter.lfs.smudge"),
            entry("global", "filter.lfs.clean"),
            entry("worktree", "filter.a.b.process"),
            entry("local", "merge.x.driver"),
            entry("local", "merge.conflictstyle"),
        ];
        let check = |drivers, expected: &[&str]| {
            let Neutral(pairs) = neutral_for(&config, drivers);
            let keys: Vec<_> = pairs.iter().map(|(k, _)| String::from_utf8_lossy(k).into_owned()).collect();
            assert_eq!(keys, expected);
        };
        let a = ["filter.a.b.smudge", "filter.a.b.clean", "filter.a.b.process", "filter.a.b.required"];
        check(Drivers::Trusted, &a);
        let value = |text: &str| ConfigEntry {
            value: Some(text.as_bytes().to_vec()),
            ..entry("local", "filter.x.clean")
        };
        let from_tree = |text: &str| neutral_for(&[value(text)], Drivers::Trusted).0.len();
        assert_eq!((from_tree("./tools/clean.sh %f"), from_tree("git-lfs clean")), (4, 0));
        let merge = ConfigEntry { value: Some(b"tools/m %A".to_vec()), ..entry("local", "merge.x.driver") };
        assert_eq!(neutral_for(&[merge], Drivers::Trusted).0.len(), 1);
        let lfs = ["filter.lfs.smudge", "filter.lfs.clean", "filter.lfs.process", "filter.lfs.required"];
        let all = [&lfs[..], &a[..], &["merge.x.driver"]].concat();
        check(Drivers::Off, &all);
    }
}
