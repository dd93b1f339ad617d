//! Path patterns of rules, and where a path really leads.

use std::{
    ffi::{OsStr, OsString},
    path::{Component, Path, PathBuf},
};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use swarm_protocol::permission::RuleBehavior;
use unicode_normalization::UnicodeNormalization;

/// Where paths lead, answered by the caller so that deciding stays a function of its arguments.
pub trait PathResolver: Send + Sync {
    /// The target of an absolute path: every link followed, also a dangling one, `.` and `..` resolved
    /// as the kernel does; what does not exist is appended as it is. `None` when that cannot be told
    /// (a loop of links, an unreadable directory).
    fn resolve(&self, path: &Path) -> Option<PathBuf>;

    /// Whether something exists there.
    fn exists(&self, path: &Path) -> bool;

    /// Looks for a path in a directory, at any depth. Links are not followed.
    fn look_below(&self, directory: &Path, is_it: &dyn Fn(&Path) -> bool) -> Look;

    /// Names in a directory, links followed to it; `None` when there are more than `most`. None where nothing can be
    /// listed.
    fn names(&self, directory: &Path, most: usize) -> Option<Vec<OsString>>;
}

/// Most names that are looked at for one pattern of the shell.
const MAX_NAMES: usize = 5_000;

/// What an absolute pattern may become in the shell: every path of the disk that it may name, and some that it does not,
/// for wildcards are taken widely. `names_hidden`: the shell was told that they name hidden files, too. `None` when that
/// is too much to look at.
pub(crate) fn expand(paths: &dyn PathResolver, pattern: &Path, names_hidden: bool) -> Option<Vec<PathBuf>> {
    let mut found = vec![PathBuf::from("/")];
    let mut left = MAX_NAMES;
    for component in pattern.components() {
        let part = match component {
            Component::Normal(part) => part,
            Component::ParentDir => OsStr::new(".."),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => continue,
        };
        let text = part.to_str()?;
        if !text.contains(['*', '?', '[']) {
            found.iter_mut().for_each(|path| path.push(part));
            continue;
        }
        let matcher = widely(text)?;
        let mut next = Vec::new();
        for directory in found {
            let names = paths.names(&directory, left)?;
            left -= names.len();
            // By themselves wildcards do not name what is hidden.
            let is_named = |name: &&OsString| {
                matcher.is_match(name)
                    && (names_hidden || text.starts_with('.') || !name.as_encoded_bytes().starts_with(b"."))
            };
            next.extend(names.iter().filter(is_named).map(|name| directory.join(name)));
            // Before bash 5.2 `.*` named the directory above as well.
            if text.starts_with('.') {
                next.push(directory.join(".."));
            }
        }
        found = next;
    }
    Some(found)
}

/// A matcher of names that takes each wildcard for any text, and what stands from a bracket on, too.
fn widely(component: &str) -> Option<globset::GlobMatcher> {
    let mut pattern = String::new();
    for c in component.chars() {
        match c {
            '*' | '?' => pattern.push('*'),
            '[' => {
                pattern.push('*');
                break;
            }
            c => pattern.push_str(&globset::escape(c.encode_utf8(&mut [0; 4]))),
        }
    }
    Some(globset::Glob::new(&pattern).ok()?.compile_matcher())
}

/// What a look into a directory found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    Found(PathBuf),
    Nothing,
    /// There is more than is looked through.
    TooMuch,
}

/// The path pattern does not compile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathPatternError {
    #[error("the pattern is empty")]
    Empty,
    #[error("the pattern is longer than {MAX_PATTERN} characters or too intricate")]
    TooLarge,
    #[error(transparent)]
    Glob(#[from] globset::Error),
}

/// Patterns are compiled to automata, so their size is bounded.
const MAX_PATTERN: usize = 1_000;
const MAX_ALTERNATIVES: usize = 100;

/// Where a pattern starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Anchor {
    /// `//x`
    Root,
    /// `~/x`
    Home,
    /// `/x`: the directory of the settings.
    Source,
    /// `x`, `./x`
    Cwd,
}

/// A gitignore-style pattern of a `Read`, `Edit` or `Cd` rule.
#[derive(Debug, Clone)]
pub(crate) struct PathPattern {
    anchor: Anchor,
    /// How many directories above the anchor it starts (`../x`).
    n_up: usize,
    set: GlobSet,
    /// The pattern as matched against the rest of a path.
    glob: String,
    any_depth: bool,
    folded: bool,
}

/// The directories that anchors stand for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Anchors<'a> {
    pub(crate) home: &'a Path,
    /// The directory of the settings file the rule came from.
    pub(crate) source: Option<&'a Path>,
    /// Whether that directory is the project, which the agent sees as its worktree.
    pub(crate) source_is_project: bool,
    pub(crate) worktree: &'a Path,
}

impl PathPattern {
    pub(crate) fn new(text: &str, behavior: RuleBehavior) -> Result<Self, PathPatternError> {
        let n_alternatives = text.matches([',', '{']).count();
        if text.len() > MAX_PATTERN || n_alternatives > MAX_ALTERNATIVES {
            return Err(PathPatternError::TooLarge);
        }
        let (anchor, rest) = if let Some(rest) = text.strip_prefix("//") {
            (Anchor::Root, rest)
        } else if let Some(rest) = text.strip_prefix("~/") {
            (Anchor::Home, rest)
        } else if text == "~" {
            (Anchor::Home, "**")
        } else if let Some(rest) = text.strip_prefix('/') {
            (Anchor::Source, rest)
        } else {
            (Anchor::Cwd, text.strip_prefix("./").unwrap_or(text))
        };
        let mut rest = rest.trim_end_matches('/');
        let mut n_up = 0;
        while let Some(below) = rest.strip_prefix("../") {
            n_up += 1;
            rest = below;
        }
        // Refusals reach further than permissions: any depth, any case, composed or not.
        let refuses = behavior != RuleBehavior::Allow;
        let relative = anchor == Anchor::Cwd && n_up == 0;
        let any_depth = relative && (refuses || (!rest.contains('/') && !text.starts_with("./")));
        let glob = match (rest, anchor) {
            ("" | ".", Anchor::Root | Anchor::Home | Anchor::Source) => "**".to_owned(),
            ("." | "..", _) => "**".to_owned(),
            ("", _) => return Err(PathPatternError::Empty),
            (rest, _) => rest.to_owned(),
        };
        let glob = if refuses { fold(&glob) } else { glob };
        Ok(Self { anchor, n_up, set: compile(&glob, any_depth, refuses)?, glob, any_depth, folded: refuses })
    }

    /// Whether the pattern covers this absolute path, or a directory above it.
    pub(crate) fn matches(&self, path: &Path, anchors: Anchors<'_>) -> bool {
        self.bases(anchors).iter().any(|base| {
            let rest = match self.folded {
                false => path.strip_prefix(base).ok().map(Path::to_path_buf),
                true => {
                    let (path, base) = (fold(&path.to_string_lossy()), fold(&base.to_string_lossy()));
                    Path::new(&path).strip_prefix(&base).ok().map(Path::to_path_buf)
                }
            };
            rest.is_some_and(|rest| {
                self.set.is_match(&rest) || (rest.as_os_str().is_empty() && self.glob == "**")
            })
        })
    }

    /// Whether a path with shell wildcards may become one that the pattern covers.
    pub(crate) fn may_meet(&self, shell_glob: &str, anchors: Anchors<'_>) -> bool {
        let shell = if self.folded { fold(shell_glob) } else { shell_glob.to_owned() };
        self.bases(anchors).iter().any(|base| {
            let base =
                if self.folded { fold(&base.to_string_lossy()) } else { base.to_string_lossy().into_owned() };
            let depth = if self.any_depth { "/**/" } else { "/" };
            let full = format!("{}{depth}{}", base.trim_end_matches('/'), self.glob);
            super::globs::may_meet(&shell, &full) || super::globs::may_meet(&shell, &format!("{full}/**"))
        })
    }

    fn bases(&self, anchors: Anchors<'_>) -> Vec<PathBuf> {
        let mut bases = match self.anchor {
            Anchor::Root => vec![PathBuf::from("/")],
            Anchor::Home => vec![anchors.home.to_path_buf()],
            Anchor::Source => anchors.source.map(Path::to_path_buf).into_iter().collect(),
            Anchor::Cwd => vec![anchors.worktree.to_path_buf()],
        };
        let in_project = matches!(self.anchor, Anchor::Source | Anchor::Cwd) && anchors.source_is_project;
        if in_project && self.anchor == Anchor::Source {
            bases.push(anchors.worktree.to_path_buf());
        } else if in_project && self.folded {
            bases.extend(anchors.source.map(Path::to_path_buf));
        }
        for base in &mut bases {
            for _ in 0..self.n_up {
                base.pop();
            }
        }
        bases.dedup();
        bases
    }
}

fn compile(glob: &str, any_depth: bool, folded: bool) -> Result<GlobSet, PathPatternError> {
    let mut set = GlobSetBuilder::new();
    let head = if any_depth { "**/" } else { "" };
    let mut globs = vec![format!("{head}{glob}")];
    if glob != "**" && !glob.ends_with("/**") {
        globs.push(format!("{head}{glob}/**"));
    } else if let Some(directory) = glob.strip_suffix("/**")
        && folded
    {
        // A refusal of everything below a directory refuses listing it, too.
        globs.push(format!("{head}{directory}"));
    }
    for glob in &globs {
        set.add(GlobBuilder::new(glob).literal_separator(true).backslash_escape(true).build()?);
    }
    set.build().map_err(PathPatternError::from)
}

/// One spelling for names that some file systems take as equal.
pub(crate) fn fold(text: &str) -> String {
    text.nfc().flat_map(char::to_lowercase).nfc().collect()
}
