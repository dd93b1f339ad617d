//! `swarm diff`, `merge`, `discard`, `restore`, `gc`: what becomes of a worker's branch.

use serde_json::{Value, json};
use swarm_protocol::{
    SessionId,
    api::{
        ConflictFile, DiffView, DiscardView, GcBody, GcView, MergeBody, MergeStrategy, MergeView,
        RestoreBody, RestoreView, SnapshotView, WorkerView,
    },
};

use super::super::{
    args::{DiffArgs, DiscardArgs, GcArgs, MergeArgs, RestoreArgs, Strategy},
    error::{CliError, Result},
    format,
    link::Links,
    output::{BOLD, CYAN, DIM, GREEN, RED, YELLOW, paint},
    pager,
    shell::Shell,
    text::{self, visible},
};
use super::{Place, connect};

/// `swarm diff`.
pub(crate) async fn diff(shell: &mut Shell, args: &DiffArgs) -> Result<u8> {
    let Place { client, known } = connect(shell, &args.id).await?;
    let worker = known.worker(&args.id)?;
    let path = format!("/workers/{}/diff{}", worker.id, if args.stat { "?stat=true" } else { "" });
    let view: DiffView = client.get(&path).await?;
    if shell.is_json() {
        return json_line(shell, "worker.diff", &worker, json!({"worker_id": worker.id, "diff": view}));
    }
    if args.stat {
        let links = Links::find(&shell.around, &shell.out, &client.address).await;
        let text = stat(&worker, &view, &links);
        shell.out.text(&text)?;
    } else if view.patch.is_empty() {
        shell.notice(&format!("{} changed nothing since {}", worker.id.suffix(), format::commit(&view.base)));
    } else if shell.out.is_terminal {
        let patch = coloured(&view.patch);
        pager::show(shell, pager::Kind::Diff, &patch)?;
    } else {
        // Byte for byte: `git apply` takes it.
        shell.out.bytes(view.patch.as_bytes())?;
    }
    Ok(0)
}

/// A patch in git's colours, foreign bytes made harmless.
fn coloured(patch: &str) -> String {
    let mut shown = String::with_capacity(patch.len() + patch.len() / 8);
    for line in patch.lines() {
        let style = match line.as_bytes().first() {
            _ if ["diff ", "index ", "--- ", "+++ "].iter().any(|start| line.starts_with(start)) => BOLD,
            Some(b'+') => GREEN,
            Some(b'-') => RED,
            Some(b'@') => CYAN,
            _ => anstyle::Style::new(),
        };
        // Tabs are code here, not columns.
        let harmless: Vec<String> = line.split('\t').map(visible).collect();
        shown.push_str(&paint(style, &harmless.join("\t")));
        shown.push('\n');
    }
    shown
}

fn stat(worker: &WorkerView, view: &DiffView, links: &Links) -> String {
    let DiffView { base, commits, files, uncommitted, .. } = view;
    let left_over = match uncommitted.len() {
        0 => "nothing uncommitted".to_owned(),
        n => format!("{} uncommitted", format::count(n as u64, "file")),
    };
    let mut shown = format!(
        "{} {}   {} since {}, {left_over}\n",
        links.worker(&worker.id, &paint(CYAN, worker.id.suffix())),
        visible(&worker.name),
        format::count(*commits, "commit"),
        format::commit(base)
    );
    let names: Vec<String> = files.iter().map(|file| visible(&file.path)).collect();
    let widest = names.iter().map(|name| text::width(name)).max().unwrap_or(0);
    for (file, name) in files.iter().zip(names) {
        let name = text::left(&name, widest);
        let figures = match (file.added, file.removed) {
            (Some(added), Some(removed)) => format!(
                "{} {}",
                paint(GREEN, &text::right(&format!("+{added}"), 7)),
                paint(RED, &format!("-{removed}"))
            ),
            _ => "binary".to_owned(),
        };
        shown.push_str(&format!("  {name} {figures}\n"));
    }
    for file in uncommitted {
        shown.push_str(&format!("  {} {}\n", visible(file), paint(YELLOW, "uncommitted")));
    }
    shown
}

/// `swarm merge`.
pub(crate) async fn merge(shell: &mut Shell, args: &MergeArgs) -> Result<u8> {
    let later = [(args.all, "--all"), (args.resolve.is_some(), "--resolve"), (args.queue, "--queue")];
    if let Some((_, name)) = later.into_iter().find(|(given, _)| *given) {
        return Err(super::later("merge", name));
    }
    let Some(id) = &args.id else { return Err(CliError::usage("an id is missing")) };
    let Place { client, known } = connect(shell, id).await?;
    let worker = known.worker(id)?;
    let body = MergeBody {
        into: args.into.clone(),
        strategy: match args.strategy {
            Strategy::Merge => MergeStrategy::Merge,
            Strategy::Squash => MergeStrategy::Squash,
            Strategy::Rebase => MergeStrategy::Rebase,
            Strategy::NoFf => MergeStrategy::NoFf,
        },
        check: args.check,
        dry_run: args.dry_run,
    };
    let view: MergeView = client.post(&format!("/workers/{}/merge", worker.id), &body).await?;
    if shell.is_json() {
        let exit = u8::from(refused(&view));
        let fields = json!({"worker_id": worker.id, "merge": view});
        shell.json("worker.merge", Some(worker.session_id), None, fields)?;
        return Ok(exit);
    }
    let id = worker.id.suffix().to_owned();
    match view {
        MergeView::Merged { into, from, to, files, insertions, deletions } => {
            let links = Links::find(&shell.around, &shell.out, &client.address).await;
            shell.out.line(&format!(
                "merged {} into {}: {}..{}, {} +{insertions} -{deletions}",
                links.worker(&worker.id, &paint(CYAN, &id)),
                visible(&into),
                format::commit(&from),
                format::commit(&to),
                format::count(files, "file")
            ))?;
            Ok(0)
        }
        MergeView::Clean { into, from } => {
            let into = visible(&into);
            shell
                .out
                .line(&format!("{id} merges into {into} at {} without conflict", format::commit(&from)))?;
            Ok(0)
        }
        MergeView::AlreadyMerged { into } => {
            shell.out.line(&format!("{id} is in {} already", visible(&into)))?;
            Ok(0)
        }
        MergeView::Conflict { into, at, files } => {
            let text = conflict(&id, &into, &at, &files, worker.files_changed);
            shell.out.text(&text)?;
            Ok(1)
        }
        MergeView::TargetDirty { into, checkout, files } => Err(CliError::new(
            "target_dirty",
            format!("{into} was not moved: files this merge touches are changed"),
        )
        .cause(format!(
            "{} has it checked out: {}",
            shell.path(std::path::Path::new(&checkout)),
            files.join(", ")
        ))
        .hint(format!("commit or stash them, or land elsewhere: swarm merge {id} --into NAME"))),
        MergeView::TargetMoved { into, expected, actual } => {
            Err(CliError::new("target_moved", format!("{into} was not moved: somebody moved it meanwhile"))
                .cause(format!(
                    "it was at {}, it is at {}",
                    format::commit(&expected),
                    format::commit(&actual)
                ))
                .hint(format!("look again: swarm merge {id}")))
        }
        MergeView::CheckFailed { output } => {
            Err(CliError::new("check_failed", "nothing was moved: the check failed on the merged tree")
                .cause(output)
                .hint(format!("swarm send {id} TEXT, or without the check: swarm merge {id}")))
        }
    }
}

const fn refused(view: &MergeView) -> bool {
    match view {
        MergeView::Merged { .. } | MergeView::Clean { .. } | MergeView::AlreadyMerged { .. } => false,
        MergeView::Conflict { .. }
        | MergeView::TargetDirty { .. }
        | MergeView::TargetMoved { .. }
        | MergeView::CheckFailed { .. } => true,
    }
}

fn conflict(id: &str, into: &str, at: &str, files: &[ConflictFile], changed: u64) -> String {
    let into = visible(into);
    let of = if changed >= files.len() as u64 { format!(" of {changed}") } else { String::new() };
    let number = files.len() as u64;
    let noun = if of.is_empty() { format::count(number, "file") } else { format!("{number}{of} files") };
    let mut shown = format!("{} {noun}; {into} stays at {}\n", paint(RED, "conflict:"), format::commit(at));
    let widest = files.iter().map(|file| text::width(&visible(&file.path))).max().unwrap_or(0);
    for ConflictFile { path, lines } in files {
        let lines = match &lines[..] {
            [] => String::new(),
            [only] => format!("   lines {only}"),
            [most @ .., last] => format!("   lines {} and {last}", most.join(", ")),
        };
        shown.push_str(&format!("  {}{lines}\n", text::left(&visible(path), widest)));
    }
    let named: Vec<String> = files.iter().take(3).map(|file| visible(&file.path)).collect();
    let hint = format!("swarm send {id} \"rebase on {into}, solve {}\", then merge", named.join(", "));
    shown.push_str(&format!("{} {hint}\n", paint(DIM, "hint:")));
    shown
}

/// `swarm discard`.
pub(crate) async fn discard(shell: &mut Shell, args: &DiscardArgs) -> Result<u8> {
    let Place { client, known } = connect(shell, &args.id).await?;
    let worker = known.worker(&args.id)?;
    let query = if args.force { "?force=true" } else { "" };
    let path = format!("/workers/{}/discard{query}", worker.id);
    let view: DiscardView = client.post(&path, &json!({})).await?;
    if shell.is_json() {
        return json_line(shell, "worker.discard", &worker, json!({"discard": view}));
    }
    let id = worker.id.suffix();
    let words = match view.kept_ref {
        Some(_) => format!("{id} discarded; back within {} days: swarm restore {id}", view.days),
        None => format!("{id} discarded; it had no branch"),
    };
    shell.out.line(&words)?;
    Ok(0)
}

/// `swarm restore`.
pub(crate) async fn restore(shell: &mut Shell, args: &RestoreArgs) -> Result<u8> {
    let Place { client, known } = connect(shell, &args.id).await?;
    let worker = known.worker(&args.id)?;
    if args.list {
        let snapshots: Vec<SnapshotView> = client.get(&format!("/workers/{}/snapshots", worker.id)).await?;
        return list_snapshots(shell, &worker, &snapshots);
    }
    let body = RestoreBody { snapshot: args.snapshot };
    let view: RestoreView = client.post(&format!("/workers/{}/restore", worker.id), &body).await?;
    if shell.is_json() {
        return json_line(shell, "worker.restore", &worker, json!({"worker_id": worker.id, "restore": view}));
    }
    let mut words = visible(&view.message);
    if let Some(kept) = view.kept_as
        && !words.contains(&format!("snapshot {kept}"))
    {
        words.push_str(&format!("; what was there is now snapshot {kept}"));
    }
    shell.out.line(&words)?;
    Ok(0)
}

fn list_snapshots(shell: &mut Shell, worker: &WorkerView, snapshots: &[SnapshotView]) -> Result<u8> {
    if shell.is_json() {
        for snapshot in snapshots {
            json_line(
                shell,
                "worker.snapshot",
                worker,
                json!({"worker_id": worker.id, "snapshot": snapshot}),
            )?;
        }
        return Ok(0);
    }
    if snapshots.is_empty() {
        shell.notice(&format!("{} has no snapshot", worker.id.suffix()));
    }
    for SnapshotView { n, commit, at } in snapshots {
        let at = at.map(super::clock).unwrap_or_default();
        shell.out.line(&format!("{n:>4}  {at:<8}  {}", format::commit(commit)))?;
    }
    Ok(0)
}

/// `swarm gc`.
pub(crate) async fn gc(shell: &mut Shell, args: &GcArgs) -> Result<u8> {
    let Some(found) = super::super::server_process::for_reading(shell).await? else {
        shell.notice("nothing to remove: this home is empty");
        return Ok(0);
    };
    let body = GcBody { dry_run: args.dry_run, force: args.force };
    let view: GcView = found.client.post("/gc", &body).await?;
    if shell.is_json() {
        shell.json("gc", None, None, json!({"dry_run": args.dry_run, "gc": view}))?;
        return Ok(0);
    }
    let GcView { removed, kept, freed_bytes, used_bytes } = view;
    let verb = if args.dry_run { "would go" } else { "removed" };
    labelled(shell, verb, &removed)?;
    labelled(shell, "kept", &kept)?;
    if removed.is_empty() && kept.is_empty() {
        shell.notice("nothing to remove");
        return Ok(0);
    }
    let verb = if args.dry_run { "would free" } else { "freed" };
    let used = format::size(used_bytes);
    shell.out.line(&format!(
        "{} {} of {used}",
        paint(DIM, &text::left(verb, 10)),
        format::size(freed_bytes)
    ))?;
    Ok(0)
}

fn labelled(shell: &mut Shell, label: &str, lines: &[String]) -> Result<()> {
    for (at, line) in lines.iter().enumerate() {
        let label = if at == 0 { label } else { "" };
        shell.out.line(&format!("{} {}", paint(DIM, &text::left(label, 10)), visible(line)))?;
    }
    Ok(())
}

fn json_line(shell: &mut Shell, kind: &str, worker: &WorkerView, fields: Value) -> Result<u8> {
    let session: SessionId = worker.session_id;
    shell.json(kind, Some(session), None, fields)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use swarm_protocol::notification::FileChange;

    use super::*;
    use crate::cli::fixtures;

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn a_conflict_says_where_and_what_to_do() {
        let files = [ConflictFile {
            path: "src/auth/session.py".to_owned(),
            lines: vec!["40-61".to_owned(), "118-124".to_owned()],
        }];
        expect![[r#"
            conflict: 1 of 5 files; main stays at 9be0d11
              src/auth/session.py   lines 40-61 and 118-124
            hint: swarm send c4e "rebase on main, solve src/auth/session.py", then merge
        "#]]
        .assert_eq(&plain(&conflict("c4e", "main", "9be0d11aaaa", &files, 5)));
    }

    #[test]
    fn a_stat_lines_up() {
        let view = DiffView {
            base: "3f9ac21e0c".to_owned(),
            head: "x".to_owned(),
            branch: "b".to_owned(),
            commits: 4,
            files: vec![
                FileChange { path: "src/auth/session.py".to_owned(), added: Some(141), removed: Some(72) },
                FileChange { path: "logo.png".to_owned(), added: None, removed: None },
            ],
            uncommitted: Vec::new(),
            patch: String::new(),
        };
        expect![[r#"
            c4e Refactor session store   4 commits since 3f9ac21, nothing uncommitted
              src/auth/session.py    +141 -72
              logo.png            binary
        "#]]
        .assert_eq(&plain(&stat(
            &fixtures::worker("agent-c4e", "Refactor session store"),
            &view,
            &Links::default(),
        )));
    }
}
