//! What a command sees of the file system on tier 1, as a list of mounts. An allow-list as on tier 2: a place
//! that is not named is not there, and with it no socket of a program outside. Looks at the disk, changes nothing.

use super::policy::{SandboxPolicy, WriteScope};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Component, Path, PathBuf};

/// Where the temp directory is seen as well.
const TEMP: &str = "/tmp";
/// The private home, in the temp directory.
pub(super) const HOME_DIR: &str = "home";
/// Made by the sandbox itself.
const MADE_HERE: [&str; 2] = ["/dev", "/proc"];
/// As the kernel bounds a chain of symbolic links.
const MAX_LINKS: usize = 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    ReadOnly,
    ReadWrite,
    Device,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    /// What stands at this place outside.
    Tree { source: PathBuf, access: Access },
    /// The private home: made where it is missing, never through a link.
    Home { source: PathBuf },
    /// A file that commands must not change: made where `made`, passed over where it is missing.
    Protected { made: bool },
    /// Nothing, on top of something that is not to be seen.
    Cover,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    /// By where they are seen, so that a place comes after those around it.
    pub(super) places: BTreeMap<PathBuf, Place>,
    /// Symbolic links that lead to places: where, and its text.
    pub(super) links: BTreeMap<PathBuf, PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) content: Content,
    pub(super) is_dir: bool,
}

impl View {
    /// What is absent outside is left out.
    pub(super) fn of(policy: &SandboxPolicy) -> Self {
        let mut view = Self::default();
        let worktree_access = match policy.write_scope {
            WriteScope::Worktree => Access::ReadWrite,
            WriteScope::ReadOnly => Access::ReadOnly,
        };
        for path in &policy.system.readable {
            view.show(path, Access::ReadOnly);
        }
        let mut system: BTreeSet<PathBuf> = view.places.keys().cloned().collect();
        for path in &policy.system.devices {
            view.show(path, Access::Device);
        }
        let temp = Self::real(&policy.temp_dir);
        for home in policy.home.iter().map(|home| Self::real(home)) {
            if home.parent().is_some()
                && home.is_dir()
                && Some(&home) != Self::real_option(&policy.worktree).as_ref()
            {
                view.note_links(policy.home.as_deref().unwrap_or(&home));
                let content = Content::Home { source: temp.join(HOME_DIR) };
                view.places.insert(home, Place { content, is_dir: true });
            }
        }
        let content = Content::Tree { source: temp.clone(), access: Access::ReadWrite };
        view.places.insert(PathBuf::from(TEMP), Place { content, is_dir: true });
        for path in &policy.readable {
            view.show(path, Access::ReadOnly);
        }
        view.show(&policy.temp_dir, Access::ReadWrite);
        view.show(&policy.worktree, worktree_access);
        for path in &policy.writable {
            view.show(path, worktree_access);
        }
        for named in
            policy.readable.iter().chain([&policy.temp_dir, &policy.worktree]).chain(&policy.writable)
        {
            system.remove(&Self::real(named));
        }
        view.cover(&policy.system.unreadable, &system);
        for path in &policy.readable {
            view.cover_sockets(path);
        }
        view.leave_out_the_obvious();
        for path in &policy.protected {
            // Its directory is a place commands may write, so it is taken by its name and through no link.
            let Some(path) =
                path.parent().and_then(|parent| Some(Self::real_option(parent)?.join(path.file_name()?)))
            else {
                continue;
            };
            let made = path.file_name().is_some_and(|name| name == "config.worktree");
            view.places.insert(path, Place { content: Content::Protected { made }, is_dir: false });
        }
        view
    }

    fn show(&mut self, path: &Path, access: Access) {
        let Some(real) = self.note_links(path) else { return };
        let is_made_here = MADE_HERE.iter().any(|made| real.starts_with(made));
        if real.parent().is_none() || (is_made_here && access != Access::Device) {
            return;
        }
        let is_dir = real.is_dir();
        self.places.insert(real.clone(), Place { content: Content::Tree { source: real, access }, is_dir });
    }

    /// Where a path leads; what links there are on the way has to be seen as well.
    fn note_links(&mut self, path: &Path) -> Option<PathBuf> {
        let (real, links) = follow(path)?;
        self.links.extend(links);
        Some(real)
    }

    fn real_option(path: &Path) -> Option<PathBuf> {
        follow(path).map(|(real, _)| real)
    }

    fn real(path: &Path) -> PathBuf {
        Self::real_option(path).unwrap_or_else(|| path.to_owned())
    }

    /// Covers what is not to be read inside of the system's places; those that the policy names itself stay.
    fn cover(&mut self, unreadable: &[PathBuf], system: &BTreeSet<PathBuf>) {
        for path in unreadable.iter().filter_map(|path| Self::real_option(path)) {
            let around = path.ancestors().find(|ancestor| self.places.contains_key(*ancestor));
            if around.is_some_and(|around| system.contains(around)) {
                let is_dir = path.is_dir();
                self.places.insert(path, Place { content: Content::Cover, is_dir });
            }
        }
    }

    /// What listens in a place that is shown, such as git's monitor of files, belongs to a program outside.
    fn cover_sockets(&mut self, directory: &Path) {
        let Some(directory) = Self::real_option(directory) else { return };
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_socket()) {
                self.places.insert(entry.path(), Place { content: Content::Cover, is_dir: false });
            }
        }
    }

    /// A place that the one around it shows in the same way needs no mount.
    fn leave_out_the_obvious(&mut self) {
        let mut obvious = Vec::new();
        for (target, place) in &self.places {
            let around =
                target.ancestors().skip(1).find_map(|ancestor| Some((ancestor, self.places.get(ancestor)?)));
            let shows_the_same =
                around.is_some_and(|(ancestor, around)| match (&around.content, &place.content) {
                    (
                        Content::Tree { source: outer, access },
                        Content::Tree { source: inner, access: same },
                    ) => outer == ancestor && inner == target && access == same,
                    _ => false,
                });
            if shows_the_same {
                obvious.push(target.clone());
            }
        }
        for target in obvious {
            self.places.remove(&target);
        }
    }
}

/// Where a path leads, and the links on the way. `None` where nothing is there.
fn follow(path: &Path) -> Option<(PathBuf, Vec<(PathBuf, PathBuf)>)> {
    let mut links = Vec::new();
    let mut real = PathBuf::from("/");
    let mut left: VecDeque<OsString> = parts(path);
    while let Some(part) = left.pop_front() {
        if part == ".." {
            real.pop();
            continue;
        }
        let next = real.join(&part);
        if !next.symlink_metadata().ok()?.is_symlink() {
            real = next;
            continue;
        }
        if links.len() == MAX_LINKS {
            return None;
        }
        let target = next.read_link().ok()?;
        if target.is_absolute() {
            real = PathBuf::from("/");
        }
        for part in parts(&target).into_iter().rev() {
            left.push_front(part);
        }
        links.push((next, target));
    }
    Some((real, links))
}

fn parts(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::system_paths::SystemPaths;
    use super::*;

    /// A line for each place below `root`: how it is seen, and where.
    fn check(root: &Path, view: &View, expected: &[&str]) {
        let shown = |path: &Path| match path.strip_prefix(root) {
            Ok(inside) => inside.display().to_string(),
            Err(_) => path.display().to_string(),
        };
        let line = |(target, place): (&PathBuf, &Place)| {
            let kind = match &place.content {
                Content::Tree { access, .. } => format!("{access:?}"),
                Content::Home { source } => format!("Home of {}", shown(source)),
                Content::Protected { made } => format!("Protected{}", if *made { ", made" } else { "" }),
                Content::Cover => "Cover".to_owned(),
            };
            format!("{kind}: {}", shown(target))
        };
        assert_eq!(view.places.iter().map(line).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_is_named_is_seen_and_nothing_twice() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for name in
            ["sys/lib", "sys/secret/deep", "home/.tool", "home/.ssh", "main/.git/worktrees/w", "tree", "temp"]
        {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        std::fs::write(root.join("sys/key"), "").unwrap();
        std::os::unix::fs::symlink("sys/lib", root.join("lib")).unwrap();
        let at = |name: &str| root.join(name);
        let system = SystemPaths {
            readable: vec![at("sys"), at("lib"), at("home/.tool"), at("absent"), "/proc".into()],
            unreadable: vec![at("sys/secret"), at("sys/key"), at("home/.ssh"), at("main")],
            devices: Vec::new(),
            shared_memory: Vec::new(),
        };
        let mut policy = SandboxPolicy::for_worktree(at("tree"), at("temp"), system);
        policy.readable = vec![at("main/.git"), at("sys/secret/deep")];
        policy.writable = vec![at("main/.git/worktrees/w")];
        policy.protected = vec![at("main/.git/worktrees/w/config.worktree"), at("tree/.git"), at("gone/x")];
        policy.home = Some(at("home"));
        let seen = [
            "ReadWrite: /tmp",
            "Home of temp/home: home",
            "ReadOnly: home/.tool",
            "ReadOnly: main/.git",
            "ReadWrite: main/.git/worktrees/w",
            "Protected, made: main/.git/worktrees/w/config.worktree",
            "ReadOnly: sys",
            "Cover: sys/key",
            "Cover: sys/secret",
            "ReadOnly: sys/secret/deep",
            "ReadWrite: temp",
            "ReadWrite: tree",
            "Protected: tree/.git",
        ];
        let view = View::of(&policy);
        check(&root, &view, &seen);
        assert_eq!(view.links.get(&at("lib")), Some(&PathBuf::from("sys/lib")));
        policy.write_scope = WriteScope::ReadOnly;
        let view = View::of(&policy);
        let read_only = seen.map(|line| match line {
            "ReadWrite: tree" => "ReadOnly: tree",
            line => line,
        });
        let read_only: Vec<&str> =
            read_only.into_iter().filter(|line| *line != "ReadWrite: main/.git/worktrees/w").collect();
        check(&root, &view, &read_only);
    }

    #[test]
    fn links_are_followed_to_their_end_and_not_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        let link = |text: &str, name: &str| std::os::unix::fs::symlink(text, root.join(name)).unwrap();
        link("a", "one");
        link("one/../one/b", "two");
        link("loop", "loop");
        assert_eq!(follow(&root.join("two")).unwrap().0, root.join("a/b"));
        assert_eq!(follow(&root.join("two")).unwrap().1.len(), 3);
        assert_eq!(follow(&root.join("loop")), None);
        assert_eq!(follow(&root.join("absent")), None);
    }
}
