//! Shell commands.

use std::path::{Path, PathBuf};

use swarm_protocol::{
    launch::Isolation,
    permission::{PermissionMode, RuleBehavior},
};

use super::{
    Case, DecidedBy, PermissionAnswer, Subject,
    cwds::Cwds,
    path::{Access, Target},
    strictest,
};
use crate::{
    bash::{self, Layer, Parsed, PlainCommand, RedirectOp, TooComplex, Word},
    dangerous::{DangerousForm, FormKind, Place},
    rules::{
        Entry, Look,
        command::{self, Breadth, Permit},
        file_args::{self, FileUse},
        grammar::Specifier,
        paths::expand,
        proposal, read_only,
        wildcard::Match,
    },
};

/// Files that swallow or supply bytes and hold nothing.
const NEUTRAL_FILES: [&str; 6] =
    ["/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin", "/dev/zero", "/dev/tty"];

impl Case<'_> {
    pub(super) fn command(&self, text: &str) -> PermissionAnswer {
        let commands = match bash::parse(text) {
            Parsed::Simple(commands) => commands,
            Parsed::TooComplex(reason) => return self.too_complex(reason),
        };
        let mut cwds = Cwds::new(self.query.cwd);
        strictest(commands.iter().map(|command| {
            cwds.enter(command);
            let answer = self.plain_command(command, cwds.current());
            cwds.leave(command, self.ground.home);
            answer
        }))
        .unwrap_or_else(|| PermissionAnswer::allow(DecidedBy::ReadOnlySet))
    }

    /// A person decides, except where the person said that nothing asks and no rule could have refused.
    fn too_complex(&self, reason: TooComplex) -> PermissionAnswer {
        let refuses_commands = [RuleBehavior::Deny, RuleBehavior::Ask].iter().any(|behavior| {
            self.rules.list(*behavior).iter().any(|entry| {
                entry.pattern.covers_tool("Bash") || matches!(entry.pattern.specifier, Specifier::Path(_))
            })
        });
        if self.ground.mode == PermissionMode::BypassPermissions && !refuses_commands {
            return PermissionAnswer::allow(DecidedBy::Mode(self.ground.mode));
        }
        if self.ground.isolation == Isolation::None && !self.reads_only_by_sandbox() {
            return PermissionAnswer::deny(DecidedBy::ReadOnlyAgent);
        }
        if self.plans() && !self.reads_only_by_sandbox() {
            return PermissionAnswer::deny(DecidedBy::Mode(self.ground.mode));
        }
        PermissionAnswer::ask(DecidedBy::TooComplex(reason), None)
    }

    fn reads_only_by_sandbox(&self) -> bool {
        self.ground.sandbox.enforces && self.ground.sandbox.is_read_only
    }

    fn plain_command(&self, command: &PlainCommand, cwds: &[PathBuf]) -> PermissionAnswer {
        let layers = match bash::layers(command) {
            Ok(layers) => layers,
            Err(reason) => {
                let outer = [Layer { command: command.clone(), kind: bash::LayerKind::Outer }];
                return self
                    .refusal_by_rule(RuleBehavior::Deny, &outer)
                    .unwrap_or_else(|| self.too_complex(reason));
            }
        };
        let files = self.files(&layers, cwds);
        let refusals = [
            self.refusal_by_rule(RuleBehavior::Deny, &layers),
            self.file_refusal(&files, RuleBehavior::Deny),
            self.refusal_by_rule(RuleBehavior::Ask, &layers),
            self.file_refusal(&files, RuleBehavior::Ask),
            self.denied_files_below(&layers, cwds),
            self.any_object(&layers),
        ];
        let refusals = || refusals.iter().flatten();
        if let Some(answer) =
            refusals().find(|answer| answer.behavior == RuleBehavior::Deny).or(refusals().next())
        {
            return answer.clone();
        }
        self.unrefused(command, &layers, &files, cwds)
    }

    /// No deny or ask rule speaks: dangerous forms, mode, allow rules, sandbox, read-only set.
    fn unrefused(
        &self,
        command: &PlainCommand,
        layers: &[Layer],
        files: &[File],
        cwds: &[PathBuf],
    ) -> PermissionAnswer {
        let Ground { mode, isolation, sandbox } = self.short_ground();
        let form = self.worst_form(layers, cwds);
        let kind = form.map(|form| form.kind);
        let by_form =
            |form: &DangerousForm| DecidedBy::DangerousForm { id: form.id.clone(), why: form.why.clone() };
        if let Some(form) = form.filter(|form| form.kind == FormKind::Critical) {
            return PermissionAnswer::ask(by_form(form), None);
        }
        if isolation == Isolation::None
            && !self.reads_only_by_sandbox()
            && !self.is_read_only(layers, files, kind)
        {
            return PermissionAnswer::deny(DecidedBy::ReadOnlyAgent);
        }
        if self.plans() && !self.is_read_only(layers, files, kind) {
            // What acts elsewhere is no planning either; the rest cannot write where the sandbox lets nothing be.
            let acts = kind > Some(FormKind::Hidden) || risky_variable(layers).is_some();
            let writes = files.iter().any(|file| file.writes && !file.is_neutral());
            if acts || writes || !self.reads_only_by_sandbox() {
                return PermissionAnswer::deny(DecidedBy::Mode(mode));
            }
        }
        if mode == PermissionMode::BypassPermissions {
            return PermissionAnswer::allow(DecidedBy::Mode(mode));
        }
        if let Some(form) = form.filter(|form| form.kind == FormKind::Person) {
            return PermissionAnswer::ask(by_form(form), None);
        }
        if !sandbox.enforces
            && let Some(path) = self.other_repository(layers, cwds)
        {
            return PermissionAnswer::ask(DecidedBy::OtherRepository { path }, None);
        }
        let permit = command::permit(self.rules, layers);
        if let Some(permit) = permit
            && self.covers(permit, kind, layers, cwds)
        {
            return match self.file_outside(files, sandbox.enforces) {
                None => PermissionAnswer::allow(DecidedBy::Rule(permit.entry.rule.clone())),
                Some(by) => PermissionAnswer::ask(by, None),
            };
        }
        if let Some(form) = form.filter(|form| form.kind == FormKind::Effect) {
            return PermissionAnswer::ask(by_form(form), proposal::for_command(command, true));
        }
        if let Some(name) = risky_variable(layers) {
            return PermissionAnswer::ask(DecidedBy::RiskyVariable { name }, None);
        }
        if let Some(path) = files.iter().filter(|file| file.writes).find_map(|file| self.protected_file(file))
        {
            return PermissionAnswer::ask(DecidedBy::ProtectedPath { path }, None);
        }
        if sandbox.enforces && sandbox.auto_allow {
            return PermissionAnswer::allow(DecidedBy::SandboxAutoAllow);
        }
        if self.is_read_only(layers, files, kind) {
            return match self.file_outside(files, sandbox.enforces) {
                None => PermissionAnswer::allow(DecidedBy::ReadOnlySet),
                Some(by) => PermissionAnswer::ask(by, None),
            };
        }
        if let Some(by) = self.file_outside(files, sandbox.enforces) {
            return PermissionAnswer::ask(by, None);
        }
        match form {
            Some(form) => PermissionAnswer::ask(by_form(form), proposal::for_command(command, true)),
            None => PermissionAnswer::ask(DecidedBy::NoRule, proposal::for_command(command, false)),
        }
    }

    fn short_ground(&self) -> Ground {
        Ground { mode: self.ground.mode, isolation: self.ground.isolation, sandbox: self.ground.sandbox }
    }

    /// Whether an allow rule reaches this command with its forms and variables.
    fn covers(&self, permit: Permit<'_>, kind: Option<FormKind>, layers: &[Layer], cwds: &[PathBuf]) -> bool {
        let variables_are_safe =
            layers.iter().flat_map(|layer| &layer.command.assignments).all(|assignment| {
                read_only::is_safe_variable(&assignment.name)
                    || (self.ground.sandbox.enforces
                        && !read_only::is_risky_assignment(&assignment.name, &assignment.value))
            });
        match permit.breadth {
            Breadth::Family => {
                let is_open = self.ground.sandbox.enforces || !self.hides(layers, cwds);
                variables_are_safe && kind != Some(FormKind::Hidden) && is_open && !self.follows_links(layers)
            }
            Breadth::Everything => true,
            Breadth::Exact => variables_are_safe,
        }
    }

    fn refusal_by_rule(&self, behavior: RuleBehavior, layers: &[Layer]) -> Option<PermissionAnswer> {
        let (entry, matched) = command::refusal(self.rules, behavior, layers)?;
        let rule = entry.rule.clone();
        Some(match (matched, behavior) {
            (Match::Yes, behavior) => PermissionAnswer::new(behavior, DecidedBy::Rule(rule)),
            _ => PermissionAnswer::ask(DecidedBy::RuleMayMatch(rule), None),
        })
    }

    fn place<'p>(&'p self, cwds: &'p [PathBuf]) -> Place<'p> {
        Place {
            cwds,
            worktree: self.ground.worktree,
            home: self.ground.home,
            globs_may_be_options: !self.ground.sandbox.enforces,
        }
    }

    /// Whether a layer runs or writes what its name does not say, whatever else is to be said of it.
    fn hides(&self, layers: &[Layer], cwds: &[PathBuf]) -> bool {
        layers.iter().any(|layer| self.forms.is_hidden(&layer.command, &self.place(cwds)))
    }

    fn worst_form(&self, layers: &[Layer], cwds: &[PathBuf]) -> Option<&DangerousForm> {
        let place = self.place(cwds);
        layers.iter().filter_map(|layer| self.forms.find(&layer.command, &place)).max_by_key(|form| form.kind)
    }

    fn is_read_only(&self, layers: &[Layer], files: &[File], kind: Option<FormKind>) -> bool {
        // Only wrappers that change nothing may stand around it.
        kind.is_none()
            && layers.iter().all(|layer| layer.kind != bash::LayerKind::Inner)
            && layers.last().is_some_and(|layer| read_only::is_read_only(&layer.command))
            && !self.follows_links(layers)
            && files.iter().all(|file| !file.writes || file.is_neutral())
    }

    /// Whether it walks directories and goes where links in them lead: nobody knows where, and no sandbox holds it.
    fn follows_links(&self, layers: &[Layer]) -> bool {
        !self.ground.sandbox.enforces && layers.iter().any(|layer| file_args::follows_links(&layer.command))
    }

    /// Files the command names, by redirection or as arguments.
    fn files(&self, layers: &[Layer], cwds: &[PathBuf]) -> Vec<File> {
        let mut files = Vec::new();
        for layer in layers {
            for redirect in &layer.command.redirects {
                let writes = match redirect.op {
                    RedirectOp::Read => false,
                    RedirectOp::Write => true,
                    RedirectOp::Duplicate => continue,
                };
                files.push(self.file(&redirect.target, cwds, writes, true));
            }
            let use_of = file_args::file_use(&layer.command);
            if use_of == FileUse::None {
                continue;
            }
            for word in file_args::file_args(&layer.command) {
                let mut file = self.file(&word, cwds, use_of == FileUse::Writes, false);
                file.is_certain = use_of != FileUse::Unknown;
                files.push(file);
            }
            let top = [self.ground.worktree.to_path_buf()];
            let tree_paths = file_args::tree_paths(&layer.command);
            files.extend(tree_paths.iter().map(|word| self.file(word, &top, false, false)));
        }
        files
    }

    fn file(&self, word: &Word, cwds: &[PathBuf], writes: bool, is_redirect: bool) -> File {
        let text = word.text().map(|text| match (word.tilde, text.strip_prefix('~')) {
            (true, Some(rest)) if rest.is_empty() || rest.starts_with('/') => {
                format!("{}{rest}", self.ground.home.display())
            }
            _ => text.to_owned(),
        });
        // Which file a pattern names, only the shell knows.
        let text = text.filter(|_| !(is_redirect && word.glob));
        // `~name` is another person's home: somewhere outside.
        let foreign_home = word.tilde && text.as_deref().is_some_and(|text| text.starts_with('~'));
        let absolute = text.as_deref().is_some_and(|text| text.starts_with('/'));
        let targets = match &text {
            None => Vec::new(),
            Some(_) if foreign_home => Vec::new(),
            Some(_) if cwds.is_empty() && !absolute => Vec::new(),
            Some(text) if absolute => vec![self.target(Path::new(text))],
            Some(text) => cwds.iter().map(|cwd| self.target(&cwd.join(text))).collect(),
        };
        let expanded = if word.glob { self.expanded(&targets) } else { Some(Vec::new()) };
        let (targets, expanded) = expanded.map(|expanded| (targets, expanded)).unwrap_or_default();
        File { text, glob: word.glob, targets, expanded, writes, is_redirect, is_certain: true }
    }

    /// Whether the command could tell its shell that `*` names hidden files. By the words alone, wherever they stand.
    fn globs_name_hidden(&self) -> bool {
        self.query.subjects.iter().any(|subject| match subject {
            Subject::Command(text) => {
                ["shopt", "dotglob", "GLOBIGNORE"].iter().any(|word| text.contains(word))
            }
            _ => false,
        })
    }

    /// What the shell may make of patterns; none where that is too much to look at.
    fn expanded(&self, patterns: &[Target]) -> Option<Vec<Target>> {
        let names_hidden = self.globs_name_hidden();
        let found: Option<Vec<Vec<PathBuf>>> = patterns
            .iter()
            .map(|pattern| expand(self.ground.paths, &pattern.written, names_hidden))
            .collect();
        Some(found?.into_iter().flatten().map(|path| self.target(&path)).collect())
    }

    fn file_refusal(&self, files: &[File], behavior: RuleBehavior) -> Option<PermissionAnswer> {
        for file in files {
            let access = if file.writes { Access::Write } else { Access::Read };
            let named = file.targets.iter().map(|target| (target, file.is_certain));
            for (target, is_certain) in named.chain(file.expanded.iter().map(|target| (target, false))) {
                if let Some(entry) = self.path_rule(target, access, behavior) {
                    let rule = entry.rule.clone();
                    return Some(match is_certain {
                        true => PermissionAnswer::new(behavior, DecidedBy::Rule(rule)),
                        false => PermissionAnswer::ask(DecidedBy::RuleMayMatch(rule), None),
                    });
                }
            }
            // Where it leads is not known: any rule about paths may mean it.
            if file.targets.is_empty() && file.is_certain {
                let any = self.rules.list(behavior).iter().find(|entry| {
                    self.concerns(entry, access, behavior)
                        && matches!(entry.pattern.specifier, Specifier::Path(_))
                });
                if let Some(entry) = any {
                    return Some(PermissionAnswer::ask(DecidedBy::RuleMayMatch(entry.rule.clone()), None));
                }
            }
            if file.glob && file.is_certain {
                let met = self.rules.list(behavior).iter().find(|entry| {
                    let anchors = entry.anchors(self.ground.home, self.ground.worktree);
                    self.concerns(entry, access, behavior)
                        && matches!(&entry.pattern.specifier, Specifier::Path(pattern)
                            if file.targets.iter().any(|target| pattern.may_meet(&target.written.to_string_lossy(), anchors)))
                });
                if let Some(entry) = met {
                    return Some(PermissionAnswer::ask(DecidedBy::RuleMayMatch(entry.rule.clone()), None));
                }
            }
        }
        None
    }

    /// An object of git that is named by its hash may be a denied file.
    fn any_object(&self, layers: &[Layer]) -> Option<PermissionAnswer> {
        if !layers.iter().any(|layer| file_args::prints_any_object(&layer.command)) {
            return None;
        }
        let about_files = |entry: &&Entry| {
            self.concerns(entry, Access::Read, RuleBehavior::Deny)
                && matches!(entry.pattern.specifier, Specifier::Path(_))
        };
        let entry = self.rules.list(RuleBehavior::Deny).iter().find(about_files)?;
        Some(PermissionAnswer::ask(DecidedBy::RuleMayMatch(entry.rule.clone()), None))
    }

    /// A recursive reader over a directory that holds a denied file: the sandbox does not know of rules.
    fn denied_files_below(&self, layers: &[Layer], cwds: &[PathBuf]) -> Option<PermissionAnswer> {
        let denials: Vec<&Entry> = self
            .rules
            .list(RuleBehavior::Deny)
            .iter()
            .filter(|entry| entry.pattern.covers_tool("Read"))
            .filter(|entry| matches!(entry.pattern.specifier, Specifier::Path(_)))
            .collect();
        if denials.is_empty() {
            return None;
        }
        let is_denied = |path: &Path| {
            denials.iter().any(|entry| {
                let anchors = entry.anchors(self.ground.home, self.ground.worktree);
                matches!(&entry.pattern.specifier, Specifier::Path(pattern) if pattern.matches(path, anchors))
            })
        };
        for layer in layers.iter().filter(|layer| file_args::walks_directories(&layer.command)) {
            let mut words = file_args::file_args(&layer.command);
            if words.is_empty() {
                words.push(Word::literal("."));
            }
            for word in &words {
                for target in self.file(word, cwds, false, false).all() {
                    let directory = target.resolved.as_ref().unwrap_or(&target.written).clone();
                    let by = match self.ground.paths.look_below(&directory, &is_denied) {
                        Look::Found(path) => DecidedBy::DeniedFilesBelow { path },
                        Look::TooMuch => DecidedBy::MayHoldDenied { path: directory },
                        Look::Nothing => continue,
                    };
                    return Some(PermissionAnswer::ask(by, None));
                }
            }
        }
        None
    }

    /// A repository above where git would run that is not the one that the person knows: its configuration may name
    /// programs. Where git would run nobody knows, there may be any.
    fn other_repository(&self, layers: &[Layer], cwds: &[PathBuf]) -> Option<PathBuf> {
        let is_git = |layer: &Layer| layer.command.program().map(bash::base_name) == Some("git");
        if !layers.iter().any(is_git) {
            return None;
        }
        if cwds.is_empty() {
            return Some(PathBuf::from("."));
        }
        let there = |dir: &Path, name: &str| self.ground.paths.exists(&dir.join(name));
        // A bare one has its objects in itself, or `commondir` says where.
        let is_repository = |dir: &Path| {
            there(dir, ".git")
                || (there(dir, "HEAD")
                    && ["objects", "refs", "commondir", "config"].iter().any(|name| there(dir, name)))
        };
        cwds.iter()
            .flat_map(|cwd| cwd.ancestors())
            .filter(|dir| !self.ground.worktree.starts_with(dir))
            .find(|dir| is_repository(dir))
            .map(Path::to_path_buf)
    }

    fn protected_file(&self, file: &File) -> Option<PathBuf> {
        file.all().find_map(|target| self.protected(target))
    }

    /// What an allow rule for a command does not cover: files outside the worktree, protected files and,
    /// where edits ask, redirections into files.
    fn file_outside(&self, files: &[File], sandbox_enforces: bool) -> Option<DecidedBy> {
        for file in files.iter().filter(|file| file.is_certain && !file.is_neutral()) {
            if file.writes
                && let Some(path) = self.protected_file(file)
            {
                return Some(DecidedBy::ProtectedPath { path });
            }
            if sandbox_enforces {
                continue;
            }
            let access = if file.writes { Access::Write } else { Access::Read };
            if file.targets.is_empty() {
                return Some(DecidedBy::OutsideWorktree {
                    path: file.text.clone().unwrap_or_default().into(),
                });
            }
            for target in file.all() {
                if self.path_permit(target, access).is_some() {
                    continue;
                }
                let Some(resolved) = &target.resolved else {
                    return Some(DecidedBy::LinkLeadsOutside { path: target.written.clone(), target: None });
                };
                if !self.is_inside(&target.written, access) || !self.is_inside(resolved, access) {
                    return Some(DecidedBy::OutsideWorktree { path: resolved.clone() });
                }
                if file.writes && file.is_redirect && self.ground.mode == PermissionMode::Default {
                    return Some(DecidedBy::NoRule);
                }
            }
        }
        None
    }
}

/// The plain values of the ground that this module branches on.
struct Ground {
    mode: PermissionMode,
    isolation: Isolation,
    sandbox: super::SandboxState,
}

/// A file that a command names.
struct File {
    /// `None` when only the shell knows it.
    text: Option<String>,
    glob: bool,
    /// One for each directory the command may run in; empty when unknown.
    targets: Vec<Target>,
    /// What the shell may make of those that are patterns.
    expanded: Vec<Target>,
    writes: bool,
    is_redirect: bool,
    /// The program is known to open this argument.
    is_certain: bool,
}

impl File {
    fn all(&self) -> impl Iterator<Item = &Target> {
        self.targets.iter().chain(&self.expanded)
    }

    fn is_neutral(&self) -> bool {
        self.text.as_deref().is_some_and(|text| NEUTRAL_FILES.contains(&text))
    }
}

fn risky_variable(layers: &[Layer]) -> Option<String> {
    layers
        .iter()
        .flat_map(|layer| &layer.command.assignments)
        .find(|assignment| read_only::is_risky_assignment(&assignment.name, &assignment.value))
        .map(|assignment| assignment.name.clone())
        .or_else(|| {
            // Their value is not known.
            layers
                .iter()
                .flat_map(|layer| read_only::names_set_by_builtin(&layer.command))
                .find(|name| read_only::is_risky_assignment(name, &Word::unknown()))
                .map(str::to_owned)
        })
}
