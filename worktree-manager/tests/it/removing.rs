use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::time::Duration;

use worktree_manager::{
    BranchName, DiscardError, Force, KeepReason, Leftover, LockError, Operation, Removal, RemoveError,
    Retention,
};

use crate::support::{Bench, agent, command, command_ok, create, finish, git, own, spec, write};

fn reasons(removal: Removal) -> Vec<KeepReason> {
    match removal {
        Removal::Kept { reasons } => reasons,
        Removal::Removed { .. } => panic!("it was removed"),
    }
}

#[tokio::test]
async fn without_a_change_worktree_and_branch_go() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    write(&worktree.path, "build.log", "ignored\n");
    let removal = manager.remove_if_unchanged(&worktree.agent).await.unwrap();
    assert_eq!(removal, Removal::Removed { saved: None });
    assert!(!worktree.path.exists() && !worktree.git_dir.exists());
    assert_eq!(bench.git(["branch", "--list", "swarm*"]), "");
    assert!(manager.list().unwrap().is_empty());
    bench.fsck();
}

#[tokio::test]
async fn any_change_keeps_it() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    write(&worktree.path, "new", "n\n");
    let kept = reasons(manager.remove_if_unchanged(&worktree.agent).await.unwrap());
    assert!(matches!(&kept[..], [KeepReason::Untracked { files }] if files[0].to_string() == "new"));
    std::fs::remove_file(worktree.path.join("new")).unwrap();
    // A commit that exists only in the private store of commands.
    let own = own(&manager, &worktree).await;
    command_ok(&own, &["commit", "-q", "--allow-empty", "-m", "x"]);
    drop(own);
    let kept = reasons(manager.remove_if_unchanged(&worktree.agent).await.unwrap());
    assert!(matches!(&kept[..], [KeepReason::Commits { .. }]), "{kept:?}");
    let kept = reasons(manager.remove(&worktree.agent, Force::No).await.unwrap());
    assert!(matches!(&kept[..], [KeepReason::NotOnBranch { .. }]), "{kept:?}");
    finish(&manager, &worktree, "x").await;
    let removed = manager.remove(&worktree.agent, Force::No).await.unwrap();
    assert_eq!(removed, Removal::Removed { saved: None });
    assert!(bench.git(["branch", "--list", "swarm*"]).contains("agent-a"));
    bench.fsck();
}

#[tokio::test]
async fn a_link_called_node_modules_goes_alone() {
    let bench = Bench::new();
    bench.write("node_modules/lib/index.js", "x\n");
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    symlink(bench.repo.join("node_modules"), worktree.path.join("node_modules")).unwrap();
    let removed = manager.remove(&worktree.agent, Force::No).await.unwrap();
    assert_eq!(removed, Removal::Removed { saved: None });
    assert!(!worktree.path.exists());
    assert_eq!(bench.read("node_modules/lib/index.js"), "x\n");
}

#[tokio::test]
async fn forced_removal_stores_everything_first() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    let own = own(&manager, &worktree).await;
    write(&worktree.path, "a.txt", "mine\n");
    command_ok(&own, &["commit", "-q", "-am", "mine"]);
    bench.write("a.txt", "main\n");
    bench.git(["commit", "-q", "-am", "main"]);
    assert!(!command(&own, &["rebase", "main"]).status.success());
    write(&worktree.path, "untracked", "u\n");
    drop(own);
    let kept = reasons(manager.remove(&worktree.agent, Force::No).await.unwrap());
    let operation = Operation::Rebase;
    assert!(kept.contains(&KeepReason::InProgress { operation }), "{kept:?}");
    assert!(worktree.path.exists());
    let removed = manager.remove(&worktree.agent, Force::Yes).await.unwrap();
    let Removal::Removed { saved: Some(saved) } = removed else { panic!("{removed:?}") };
    assert_eq!(saved.restore_command, "swarm restore agent-a 1");
    assert!(!worktree.path.exists());
    // Revival at the same path, and the stored state.
    let revived = manager.recreate(&worktree.agent, &worktree.branch, &worktree.base).await.unwrap();
    assert_eq!(revived.worktree.path, worktree.path);
    manager.restore_snapshot(&worktree.agent, 1).await.unwrap();
    let untracked = std::fs::read_to_string(worktree.path.join("untracked")).unwrap();
    assert_eq!(untracked, "u\n");
    assert!(git(&worktree.path, &["status", "--porcelain"]).contains("UU a.txt"));
    bench.fsck();
}

/// Begins an operation that cannot end by itself, in one command, so that the branch has not followed: the
/// commit `mine` is named by the operation's notes alone.
fn begin(own: &worktree_manager::OwnWorktree, operation: Operation) -> String {
    write(own.path(), "a.txt", "mine\n");
    command_ok(own, &["commit", "-q", "-am", "mine"]);
    let mine = command_ok(own, &["rev-parse", "HEAD"]);
    let stopped = match operation {
        Operation::Rebase => command(own, &["rebase", "main"]),
        Operation::Merge | Operation::CherryPick | Operation::Revert => {
            command_ok(own, &["reset", "-q", "--hard", "main"]);
            match operation {
                Operation::Merge => command(own, &["merge", &mine]),
                Operation::CherryPick => command(own, &["cherry-pick", &mine]),
                _ => command(own, &["revert", "--no-edit", &mine]),
            }
        }
        Operation::Bisect => {
            command_ok(own, &["bisect", "start"]);
            command_ok(own, &["checkout", "-q", "HEAD~1"]);
            return mine;
        }
        Operation::ApplyMailbox => {
            let patch = command_ok(own, &["format-patch", "--stdout", "-1"]);
            command_ok(own, &["reset", "-q", "--hard", "main"]);
            write(own.path(), "mine.patch", &format!("{patch}\n"));
            command(own, &["am", "-q", "mine.patch"])
        }
    };
    assert!(!stopped.status.success(), "{operation} ended");
    mine
}

#[tokio::test]
async fn case_20_what_git_has_not_finished_keeps_a_worktree_and_force_stores_all_of_it() {
    for operation in [
        Operation::Rebase,
        Operation::Merge,
        Operation::CherryPick,
        Operation::Revert,
        Operation::ApplyMailbox,
        Operation::Bisect,
    ] {
        let bench = Bench::new();
        let manager = bench.manager().await;
        let worktree = create(&bench, &manager, "agent-a").await.worktree;
        let branch = BranchName::parse("main").unwrap();
        bench.write("a.txt", "main\n");
        bench.git(["commit", "-q", "-am", "main"]);
        let own = own(&manager, &worktree).await;
        let mine = begin(&own, operation);
        write(&worktree.path, "untracked", "u\n");
        own.migrate_objects().await.unwrap();
        drop(own);
        let before = git(&worktree.path, &["status", "--porcelain"]);
        let head = git(&worktree.path, &["rev-parse", "HEAD"]);

        let wanted = KeepReason::InProgress { operation };
        let kept = reasons(manager.remove(&worktree.agent, Force::No).await.unwrap());
        assert!(kept.contains(&wanted), "{operation}: {kept:?}");
        let kept = reasons(manager.remove_if_unchanged(&worktree.agent).await.unwrap());
        assert!(kept.contains(&wanted), "{operation}: {kept:?}");
        let swept = manager.gc(&BTreeSet::new(), &branch, Force::No).await.unwrap();
        assert!(swept.kept[0].reasons.join("; ").contains(&operation.to_string()), "{swept:?}");
        let refused = manager.discard(&worktree.agent, Force::No).await.unwrap_err();
        assert!(
            matches!(&refused, DiscardError::Kept { reasons, .. } if reasons == std::slice::from_ref(&wanted)),
            "{refused:?}"
        );
        assert_eq!(git(&worktree.path, &["status", "--porcelain"]), before, "{operation}");

        let discarded = manager.discard(&worktree.agent, Force::Yes).await.unwrap();
        assert!(discarded.restore_command.starts_with("swarm restore agent-a"));
        assert!(!worktree.path.exists());
        bench.git(["reflog", "expire", "--expire=now", "--all"]);
        bench.git(["gc", "-q", "--prune=now"]);
        if operation != Operation::ApplyMailbox {
            // `git am` took its patch from a file, which is stored as such.
            assert_eq!(bench.git(["cat-file", "-t", &mine]), "commit", "{operation}");
        }
        let restored = manager.restore_discarded(&worktree.agent, discarded.at).await.unwrap();
        assert_eq!(restored.operation, Some(operation));
        assert_eq!(git(&worktree.path, &["status", "--porcelain"]), before, "{operation}");
        assert_eq!(git(&worktree.path, &["rev-parse", "HEAD"]), head, "{operation}");
        bench.fsck();
    }
}

#[tokio::test]
async fn a_worktree_that_a_person_locked_is_not_discarded() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    std::fs::write(worktree.git_dir.join("locked"), "on a stick\n").unwrap();
    let refused = manager.discard(&worktree.agent, Force::Yes).await.unwrap_err();
    assert!(refused.to_string().contains("it is locked: on a stick"), "{refused}");
    assert!(worktree.path.exists());
}

#[tokio::test]
async fn removal_waits_for_the_owner_and_then_names_it() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    let own = own(&manager, &worktree).await;
    let hasty = manager.clone().with_owner_wait(Duration::from_millis(50));
    let result = hasty.remove(&worktree.agent, Force::Yes).await;
    let owned = matches!(result, Err(RemoveError::Lock(LockError::Owned { .. })));
    assert!(owned, "{result:?}");
    assert!(worktree.path.exists());
    drop(own);
}

#[tokio::test]
async fn a_worktree_removed_by_hand_is_forgotten() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    std::fs::remove_dir_all(&worktree.path).unwrap();
    let report = manager.reconcile().await.unwrap();
    assert_eq!(report.removed[0].what, Leftover::Record);
    assert_eq!(bench.git(["worktree", "list"]).lines().count(), 1);
    // The branch may be work.
    assert!(bench.git(["branch", "--list", "swarm*"]).contains("agent-a"));
    create(&bench, &manager, "agent-a").await;
}

#[tokio::test]
async fn discarding_and_restoring_is_lossless() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    write(&worktree.path, "a.txt", "committed\n");
    finish(&manager, &worktree, "work").await;
    let tip = bench.rev(worktree.branch.as_str());
    write(&worktree.path, "b.txt", "staged\n");
    git(&worktree.path, &["add", "b.txt"]);
    write(&worktree.path, "untracked", "u\n");
    let status = git(&worktree.path, &["status", "--porcelain"]);
    let discarded = manager.discard(&worktree.agent, Force::No).await.unwrap();
    assert_eq!(discarded.tip, tip);
    assert!(discarded.restore_command.starts_with("swarm restore agent-a --discarded "));
    assert!(!worktree.path.exists());
    assert_eq!(bench.git(["branch", "--list", "swarm*"]), "");
    bench.git(["gc", "-q", "--prune=now"]);
    assert_eq!(manager.discarded().await.unwrap(), std::slice::from_ref(&discarded));
    // The name was taken meanwhile.
    bench.git(["branch", worktree.branch.as_str(), "main"]);
    let restored = manager.restore_discarded(&worktree.agent, discarded.at).await.unwrap();
    assert_eq!(restored.branch.as_str(), format!("{}-2", worktree.branch));
    assert_eq!(bench.rev(restored.branch.as_str()), tip);
    assert_eq!(git(&worktree.path, &["status", "--porcelain"]), status);
    assert!(manager.discarded().await.unwrap().is_empty());
    let again = manager.restore_discarded(&worktree.agent, discarded.at).await;
    assert!(again.unwrap_err().to_string().contains("recycle bin"));

    manager.discard(&worktree.agent, Force::No).await.unwrap();
    let young = manager.empty_bin(Duration::from_secs(3600)).await.unwrap();
    assert!(young.is_empty());
    assert_eq!(manager.empty_bin(Duration::ZERO).await.unwrap().len(), 1);
    bench.fsck();
}

#[tokio::test]
async fn old_and_bulky_snapshots_expire_but_the_newest_stays() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    let own = own(&manager, &worktree).await;
    for n in 0..3 {
        write(&worktree.path, "a.txt", &format!("{n}\n"));
        own.snapshot().await.unwrap();
    }
    let keep = Retention { max_age: Duration::MAX, max_bytes: u64::MAX };
    let none = manager.expire_snapshots(&worktree.agent, keep).await.unwrap();
    assert!(none.is_empty());
    let small = Retention { max_bytes: 1, ..keep };
    let dropped = manager.expire_snapshots(&worktree.agent, small).await.unwrap();
    assert_eq!(dropped, [2, 1]);
    assert_eq!(manager.snapshots(&worktree.agent).await.unwrap().len(), 1);
}

#[tokio::test]
async fn gc_keeps_unmerged_work_and_names_it() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let main = BranchName::parse("main").unwrap();
    let unmerged = create(&bench, &manager, "agent-a").await.worktree;
    write(&unmerged.path, "a.txt", "work\n");
    finish(&manager, &unmerged, "work").await;
    let merged = create(&bench, &manager, "agent-b").await.worktree;
    let needed = create(&bench, &manager, "agent-c").await.worktree;
    let dirty = create(&bench, &manager, "agent-d").await.worktree;
    write(&dirty.path, "new", "n\n");
    let stray = manager.home().join("agent-x");
    write(&stray, "what", "?\n");
    std::fs::create_dir(manager.home().join(".scratch-left")).unwrap();
    let keep = BTreeSet::from([needed.agent.clone()]);
    let report = manager.gc(&keep, &main, Force::No).await.unwrap();
    assert!(!merged.path.exists() && needed.path.exists() && stray.exists());
    assert!(report.removed.iter().any(|s| s.what == Leftover::Scratch));
    let kept: Vec<_> = report.kept.iter().map(|k| k.reasons.join("; ")).collect();
    assert!(kept.iter().any(|r| r.contains("is not merged into main")), "{kept:?}");
    assert!(kept.iter().any(|r| r.contains("untracked files: new")), "{kept:?}");
    let report = manager.gc(&keep, &main, Force::Yes).await.unwrap();
    assert!(!unmerged.path.exists() && !dirty.path.exists());
    assert!(report.bytes > 0);
    assert!(bench.git(["branch", "--list", "swarm*"]).contains("agent-a"));
    assert_eq!(manager.snapshots(&agent("agent-d")).await.unwrap().len(), 1);
    bench.fsck();
}

#[tokio::test]
async fn a_half_made_worktree_is_swept_at_start() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let base = bench.rev("HEAD");
    {
        let spec = spec("agent-a", &base);
        let create = manager.create(&spec);
        tokio::pin!(create);
        // Dropped as soon as the directory is registered.
        std::future::poll_fn(|cx| {
            let done = create.as_mut().poll(cx).is_ready();
            let registered = bench.repo.join(".git/worktrees/agent-a").exists();
            if done || registered { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    }
    manager.reconcile().await.unwrap();
    if manager.list().unwrap().is_empty() {
        assert!(!manager.path_of(&agent("agent-a")).exists());
        assert_eq!(bench.git(["branch", "--list", "swarm*"]), "");
    }
    bench.fsck();
}
