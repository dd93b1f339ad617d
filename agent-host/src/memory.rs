//! Memory files: what people and agents wrote down for every agent that works here.
//!
//! `CLAUDE.md`, or `AGENTS.md` where the path from the repository's root to the working directory has none
//! of the former. They are data for the first user message, never for the system prompt. Imports are not
//! followed yet.

mod text;

use std::{
    collections::BTreeSet,
    fmt, fs, io,
    path::{Path, PathBuf},
};

/// Larger files are skipped (the reference's number).
pub const MAX_MEMORY_FILE_BYTES: u64 = 4 * 1024 * 1024;
/// What all files together may take in the first message, about 8,000 tokens.
pub const DEFAULT_MEMORY_BUDGET_BYTES: usize = 32 * 1024;

/// Where memory files are looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlaces {
    /// `~/.claude`
    pub user_directory: PathBuf,
    /// The root of the repository, for a worker its worktree.
    pub repository: PathBuf,
    /// Inside `repository`.
    pub cwd: PathBuf,
    pub budget_bytes: usize,
}

/// One file, without comments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryFile {
    pub path: PathBuf,
    pub kind: MemoryKind,
    pub text: String,
}

/// Whose words they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// The person's own, for all projects.
    User,
    /// Checked into the codebase.
    Project,
    /// The person's own, for this project.
    Local,
}

/// A file that is there and was not loaded.
#[derive(Debug)]
pub struct MemoryNotice {
    pub path: PathBuf,
    pub why: SkippedBecause,
}

#[derive(Debug, thiserror::Error)]
pub enum SkippedBecause {
    #[error("it is larger than {MAX_MEMORY_FILE_BYTES} bytes")]
    TooLarge,
    #[error("it is not text")]
    Binary,
    #[error("it is a link that leads out of the repository")]
    LeadsOutside,
    #[error("it is not a file")]
    NotAFile,
    #[error("it cannot be read")]
    Unreadable(#[source] io::Error),
}

impl fmt::Display for MemoryNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was not loaded: {}", self.path.display(), self.why)
    }
}

/// The memory of one agent. It grows when files below the working directory are read.
#[derive(Debug)]
pub struct Memory {
    places: MemoryPlaces,
    files: Vec<MemoryFile>,
    notices: Vec<MemoryNotice>,
    /// Directories looked at, and files by their real path: each is loaded once.
    seen: BTreeSet<PathBuf>,
    names: Names,
}

/// Which file names count on this path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    Claude,
    Agents,
}

const CLAUDE: [&str; 2] = ["CLAUDE.md", ".claude/CLAUDE.md"];
const AGENTS: [&str; 2] = ["AGENTS.md", ".claude/AGENTS.md"];
const LOCAL: &str = "CLAUDE.local.md";

impl Memory {
    /// Loads the person's file, then those from the repository's root down to the working directory.
    pub fn load(places: MemoryPlaces) -> Self {
        let directories = directories_between(&places.repository, &places.cwd);
        let has_claude = directories
            .iter()
            .any(|directory| CLAUDE.iter().chain([&LOCAL]).any(|name| directory.join(name).exists()));
        let names = if has_claude { Names::Claude } else { Names::Agents };
        let mut memory =
            Self { files: Vec::new(), notices: Vec::new(), seen: BTreeSet::new(), names, places };
        let user_file = memory.places.user_directory.join("CLAUDE.md");
        let found = memory.load_file(&user_file, MemoryKind::User);
        memory.files.extend(found);
        for directory in directories {
            let found = memory.load_directory(&directory);
            memory.files.extend(found);
        }
        memory
    }

    /// To be called when a file is read: loads the memory files of the directories between the working
    /// directory and that file which have not been looked at, and returns what is new.
    pub fn on_read(&mut self, path: &Path) -> Vec<MemoryFile> {
        let path = crate::dangerous::normalize(&self.places.cwd.join(path));
        let Some(directory) = path.parent().filter(|directory| directory.starts_with(&self.places.cwd))
        else {
            return Vec::new();
        };
        let mut new = Vec::new();
        for directory in directories_between(&self.places.cwd, directory) {
            new.extend(self.load_directory(&directory));
        }
        self.files.extend(new.iter().cloned());
        new
    }

    /// All that was loaded, the nearest last.
    pub fn files(&self) -> &[MemoryFile] {
        &self.files
    }

    /// What was found and not loaded.
    pub fn notices(&self) -> &[MemoryNotice] {
        &self.notices
    }

    /// The block of the first message; `None` without any file.
    pub fn reminder(&self) -> Option<String> {
        memory_reminder(&self.files, self.places.budget_bytes)
    }

    fn load_directory(&mut self, directory: &Path) -> Vec<MemoryFile> {
        if !self.seen.insert(directory.to_path_buf()) {
            return Vec::new();
        }
        let names = match self.names {
            Names::Claude => CLAUDE,
            Names::Agents => AGENTS,
        };
        let project =
            names.iter().map(|name| directory.join(name)).find(|path| path.symlink_metadata().is_ok());
        let local = Some(directory.join(LOCAL)).filter(|_| self.names == Names::Claude);
        let mut found = Vec::new();
        found.extend(project.and_then(|path| self.load_file(&path, MemoryKind::Project)));
        found.extend(local.and_then(|path| self.load_file(&path, MemoryKind::Local)));
        found
    }

    fn load_file(&mut self, path: &Path, kind: MemoryKind) -> Option<MemoryFile> {
        match self.read(path, kind) {
            Ok(text) => text.map(|text| MemoryFile { path: path.to_path_buf(), kind, text }),
            Err(why) => {
                self.notices.push(MemoryNotice { path: path.to_path_buf(), why });
                None
            }
        }
    }

    /// `None` when there is no file, or when it was loaded under another name.
    fn read(&mut self, path: &Path, kind: MemoryKind) -> Result<Option<String>, SkippedBecause> {
        let real = match fs::canonicalize(path) {
            Ok(real) => real,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(SkippedBecause::Unreadable(error)),
        };
        if kind != MemoryKind::User {
            let root = fs::canonicalize(&self.places.repository).map_err(SkippedBecause::Unreadable)?;
            if !real.starts_with(root) {
                return Err(SkippedBecause::LeadsOutside);
            }
        }
        let metadata = fs::metadata(&real).map_err(SkippedBecause::Unreadable)?;
        // A pipe would be waited for.
        if !metadata.is_file() {
            return Err(SkippedBecause::NotAFile);
        }
        if metadata.len() > MAX_MEMORY_FILE_BYTES {
            return Err(SkippedBecause::TooLarge);
        }
        if !self.seen.insert(real.clone()) {
            return Ok(None);
        }
        let bytes = fs::read(&real).map_err(SkippedBecause::Unreadable)?;
        let text = String::from_utf8(bytes)
            .ok()
            .filter(|text| !text.contains('\0'))
            .ok_or(SkippedBecause::Binary)?;
        let text = text::without_block_comments(text.trim_start_matches('\u{feff}'));
        Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty()))
    }
}

/// From `top` down to `bottom`, both included; only `top` when `bottom` is not below it.
fn directories_between(top: &Path, bottom: &Path) -> Vec<PathBuf> {
    let mut directory = top.to_path_buf();
    let mut all = vec![directory.clone()];
    for part in bottom.strip_prefix(top).unwrap_or(Path::new("")) {
        directory.push(part);
        all.push(directory.clone());
    }
    all
}

/// The text block for files, within a budget of bytes. The nearest file is kept before the others, and
/// what is cut or left out is said in its place.
pub fn memory_reminder(files: &[MemoryFile], budget_bytes: usize) -> Option<String> {
    if files.is_empty() {
        return None;
    }
    let mut left = budget_bytes;
    let mut bodies: Vec<String> = files
        .iter()
        .rev()
        .map(|file| {
            let body = text::cut_to(&file.text, left);
            left = left.saturating_sub(body.kept_bytes);
            body.text
        })
        .collect();
    bodies.reverse();
    let mut out = String::from(
        "<system-reminder>\nInstructions for work in this repository. Follow them where they concern your task; \
         a later file is nearer and wins over an earlier one.\n",
    );
    for (file, body) in files.iter().zip(bodies) {
        let whose = match file.kind {
            MemoryKind::User => "the person's own instructions for all projects",
            MemoryKind::Project => "project instructions, checked into the codebase",
            MemoryKind::Local => "the person's own instructions for this project",
        };
        // A file must not be able to end the block it stands in.
        let body = body.replace("</system-reminder", "<\u{200b}/system-reminder");
        out += &format!("\nContents of {} ({whose}):\n\n{body}\n", file.path.display());
    }
    out += "</system-reminder>";
    Some(out)
}

#[cfg(test)]
mod tests;
