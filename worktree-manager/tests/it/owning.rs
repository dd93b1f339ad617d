use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use worktree_manager::{
    Advance, AdvanceError, CommitOutcome, CommitRequest, Identity, LockError, MigrateError, Operation,
    OwnError, OwnWorktree, QUARANTINE_DIR, SkipReason, SnapshotError, StoreError, silent,
};

use crate::support::{
    Bench, command, command_ok, config, contents, create, finish, git, own, raw_git, write,
};

#[tokio::test]
async fn a_snapshot_holds_everything_and_leaves_the_index_alone() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    let path = &worktree.path;
    write(path, "a.txt", "staged\n");
    git(path, &["add", "a.txt"]);
    write(path, "a.txt", "staged and changed\n");
    write(path, "new/untracked file", "u\n");
    write(path, "noise.log", "ignored\n");
    std::fs::remove_file(path.join("b.txt")).unwrap();
    let index = std::fs::read(worktree.git_dir.join("index")).unwrap();
    let status = git(path, &["status", "--porcelain"]);
    let index_after_status = std::fs::read(worktree.git_dir.join("index")).unwrap();
    assert_eq!(index.len(), index_after_status.len());
    let own = own(&manager, &worktree).await;
    let first = own.snapshot().await.unwrap();
    assert_eq!(std::fs::read(worktree.git_dir.join("index")).unwrap(), index_after_status);
    assert_eq!(git(path, &["status", "--porcelain"]), status);
    let hidden = "refs/swarm/snapshots/agent-a/1";
    assert_eq!(bench.rev(hidden), first.commit);
    let files = bench.git(["ls-tree", "-r", "--name-only", hidden]);
    assert_eq!(files, ".gitignore\na.txt\nnew/untracked file");
    assert_eq!(bench.git(["show", "refs/swarm/snapshots/agent-a/1^2:a.txt"]), "staged");

    // Everything changes, and comes back.
    git(path, &["commit", "-q", "-am", "more", "--no-verify"]);
    write(path, "a.txt", "later\n");
    write(path, "later", "x\n");
    std::fs::remove_dir_all(path.join("new")).unwrap();
    let before = own.restore_snapshot(1).await.unwrap();
    assert_eq!(before.number, 2);
    assert_eq!(git(path, &["status", "--porcelain"]), status);
    assert_eq!(git(path, &["rev-parse", "HEAD"]), worktree.base.as_str());
    assert_eq!(std::fs::read_to_string(path.join("a.txt")).unwrap(), "staged and changed\n");
    assert!(!path.join("later").exists() && path.join("noise.log").exists());
    own.restore_snapshot(2).await.unwrap();
    assert_eq!(std::fs::read_to_string(path.join("later")).unwrap(), "x\n");
    let unknown = own.restore_snapshot(99).await.unwrap_err();
    assert!(unknown.to_string().contains("1, 2, 3"), "{unknown}");
    bench.fsck();
}

#[tokio::test]
async fn a_stopped_merge_survives_a_snapshot() {
    let bench = Bench::new();
    bench.git(["branch", "other"]);
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    bench.git(["checkout", "-q", "other"]);
    bench.write("a.txt", "theirs\n");
    bench.git(["commit", "-q", "-am", "theirs"]);
    let own = own(&manager, &worktree).await;
    write(&worktree.path, "a.txt", "ours\n");
    command_ok(&own, &["commit", "-q", "-am", "ours"]);
    assert!(!command(&own, &["merge", "other"]).status.success());
    let status = command_ok(&own, &["status", "--porcelain"]);
    assert_eq!(status, "UU a.txt");
    let outcome = own.commit_all(&CommitRequest::new("end")).await.unwrap();
    let held = CommitOutcome::Held { operation: Operation::Merge, snapshot: 1 };
    assert_eq!(outcome, held);
    git(&worktree.path, &["merge", "--abort"]);
    own.restore_snapshot(1).await.unwrap();
    assert_eq!(git(&worktree.path, &["status", "--porcelain"]), "UU a.txt");
    assert_eq!(git(&worktree.path, &["ls-files", "-u"]).lines().count(), 3);
    bench.fsck();
}

#[tokio::test]
async fn a_finished_merge_is_committed_with_both_parents() {
    let bench = Bench::new();
    bench.git(["checkout", "-q", "-b", "other"]);
    bench.write("other.txt", "x\n");
    bench.git(["add", "."]);
    bench.git(["commit", "-q", "-m", "theirs"]);
    bench.git(["checkout", "-q", "main"]);
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    let mut own = own(&manager, &worktree).await;
    command_ok(&own, &["merge", "-q", "--no-ff", "--no-commit", "other"]);
    let outcome = own.commit_all(&CommitRequest::new("end")).await.unwrap();
    assert!(matches!(outcome, CommitOutcome::Committed { .. }), "{outcome:?}");
    own.advance_branch().await.unwrap();
    assert!(own.state().await.unwrap().operation.is_none());
    let parents = bench.git(["log", "-1", "--format=%P", worktree.branch.as_str()]);
    assert_eq!(parents.split(' ').count(), 2);
}

#[tokio::test]
async fn commands_commit_with_the_shared_store_read_only() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    let mut own = own(&manager, &worktree).await;
    let shared = bench.repo.join(".git");
    let before = contents(&shared, &worktree.git_dir);
    set_mode(&shared.join("objects"), 0o555);
    write(&worktree.path, "a.txt", "by a command\n");
    write(&worktree.path, "new", "n\n");
    command_ok(&own, &["add", "."]);
    command_ok(&own, &["commit", "-q", "-m", "one"]);
    write(&worktree.path, "a.txt", "again\n");
    command_ok(&own, &["commit", "-q", "--amend", "-am", "one, amended"]);
    write(&worktree.path, "b.txt", "to be stashed\n");
    let stash = command_ok(&own, &["stash", "create"]);
    command_ok(&own, &["checkout", "-q", "b.txt"]);
    command_ok(&own, &["stash", "apply", "-q", &stash]);
    command_ok(&own, &["checkout", "-q", "b.txt"]);
    command_ok(&own, &["gc", "--auto"]);
    set_mode(&shared.join("objects"), 0o755);
    // Root ignores modes, so the proof is that nothing shared changed.
    assert_eq!(contents(&shared, &worktree.git_dir), before);

    let head = command_ok(&own, &["rev-parse", "HEAD"]);
    assert!(!raw_git(&bench.repo, &["cat-file", "-e", &head]).status.success());
    let advance = own.advance_branch().await.unwrap();
    assert!(matches!(advance, Advance::Moved { kept: None, .. }), "{advance:?}");
    assert_eq!(bench.rev(worktree.branch.as_str()).as_str(), head);
    assert_eq!(own.advance_branch().await.unwrap(), Advance::Unmoved);
    bench.fsck();
}

#[tokio::test]
async fn stash_push_fails_before_it_touches_a_file() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    let own = own(&manager, &worktree).await;
    write(&worktree.path, "a.txt", "work\n");
    // What a sandbox does by mounting refs read-only; modes do not bind root.
    std::fs::create_dir(bench.repo.join(".git/refs/stash.lock")).unwrap();
    let out = command(&own, &["stash"]);
    assert!(!out.status.success());
    let content = std::fs::read_to_string(worktree.path.join("a.txt")).unwrap();
    assert_eq!(content, "work\n");
}

fn set_mode(dir: &Path, mode: u32) {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode)).unwrap();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
    }
}

#[tokio::test]
async fn packs_of_commands_are_taken_over_as_well() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    let mut own = own(&manager, &worktree).await;
    write(&worktree.path, "a.txt", "packed\n");
    command_ok(&own, &["commit", "-q", "-am", "packed"]);
    command_ok(&own, &["repack", "-q", "-d", "-l"]);
    let migrated = own.migrate_objects().await.unwrap();
    assert_eq!(migrated.packs, 1);
    assert_eq!(own.migrate_objects().await.unwrap(), Default::default());
    own.advance_branch().await.unwrap();
    bench.fsck();
}

#[tokio::test]
async fn damaged_and_linked_objects_stay_outside() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    let mut own = own(&manager, &worktree).await;
    write(&worktree.path, "a.txt", "fine\n");
    command_ok(&own, &["commit", "-q", "-am", "fine"]);
    let private = worktree.git_dir.join(QUARANTINE_DIR);
    let blob = command_ok(&own, &["rev-parse", "HEAD:a.txt"]);
    let tree = command_ok(&own, &["rev-parse", "HEAD^{tree}"]);
    let object = |id: &str| private.join(&id[..2]).join(&id[2..]);
    // One object's content under another's name.
    std::fs::remove_file(object(&blob)).unwrap();
    std::fs::copy(object(&tree), object(&blob)).unwrap();
    let error = own.advance_branch().await.unwrap_err();
    assert!(matches!(error, AdvanceError::Migrate(_)), "{error:?}");
    assert!(error.to_string().contains(&blob), "{error}");
    assert_eq!(bench.rev(worktree.branch.as_str()), worktree.base);
    // A link is not followed, so its object is missing, and the branch stays.
    std::fs::remove_file(object(&blob)).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", object(&blob)).unwrap();
    let error = own.advance_branch().await.unwrap_err();
    assert!(matches!(error, AdvanceError::Incomplete { .. }), "{error:?}");
    assert_eq!(bench.rev(worktree.branch.as_str()), worktree.base);
    std::fs::remove_file(object(&blob)).unwrap();
    git(&worktree.path, &["hash-object", "-w", "a.txt"]);
    own.advance_branch().await.unwrap();
    bench.fsck();
}

#[tokio::test]
async fn a_crash_between_moving_objects_and_the_branch_loses_nothing() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    let first = own(&manager, &worktree).await;
    write(&worktree.path, "a.txt", "x\n");
    command_ok(&first, &["commit", "-q", "-am", "x"]);
    first.migrate_objects().await.unwrap();
    let head = command_ok(&first, &["rev-parse", "HEAD"]);
    drop(first);
    bench.fsck();
    assert_eq!(bench.rev(worktree.branch.as_str()), worktree.base);
    // The next process finds objects without a ref, never a ref without objects.
    let mut second = own(&manager, &worktree).await;
    second.advance_branch().await.unwrap();
    assert_eq!(bench.rev(worktree.branch.as_str()).as_str(), head);
}

#[tokio::test]
async fn a_rewound_branch_keeps_its_old_tip() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    let mut own = own(&manager, &worktree).await;
    write(&worktree.path, "a.txt", "one\n");
    command_ok(&own, &["commit", "-q", "-am", "one"]);
    own.advance_branch().await.unwrap();
    let old = bench.rev(worktree.branch.as_str());
    command_ok(&own, &["reset", "-q", "--hard", "HEAD~1"]);
    let advance = own.advance_branch().await.unwrap();
    assert!(matches!(advance, Advance::Moved { kept: Some(1), .. }), "{advance:?}");
    assert_eq!(bench.rev("refs/swarm/snapshots/agent-a/1"), old);
}

#[tokio::test]
async fn a_branch_somebody_else_moved_is_not_overwritten() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    let mut own = own(&manager, &worktree).await;
    bench.git(["commit", "-q", "--allow-empty", "-m", "person"]);
    bench.git(["update-ref", &worktree.branch.full_ref(), "main"]);
    write(&worktree.path, "a.txt", "x\n");
    command_ok(&own, &["commit", "-q", "-am", "x"]);
    let error = own.advance_branch().await.unwrap_err();
    assert!(matches!(error, AdvanceError::Moved { .. }), "{error:?}");
    assert_eq!(bench.rev(worktree.branch.as_str()), bench.rev("main"));
}

#[tokio::test]
async fn the_last_commit_takes_what_is_not_ignored() {
    let bench = Bench::new();
    // Hooks and signing would fail.
    write(&bench.repo.join(".git"), "hooks/pre-commit", "#!/bin/sh\nexit 1\n");
    let hook = bench.repo.join(".git/hooks/pre-commit");
    std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
    bench.git(["config", "commit.gpgSign", "true"]);
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    let path = &worktree.path;
    write(path, "new.txt", "n\n");
    write(path, "x.log", "ignored\n");
    std::fs::remove_file(path.join("b.txt")).unwrap();
    write(path, "b.txt/inside", "a file became a directory\n");
    let big = std::fs::File::create(path.join("big.bin")).unwrap();
    big.set_len(51 * 1024 * 1024).unwrap();
    write(path, "nested/x", "x\n");
    git(&path.join("nested"), &["init", "-q"]);
    let mut own = own(&manager, &worktree).await;
    let request = CommitRequest {
        co_author: Some(Identity { name: "agent-a".to_owned(), email: "agent-a@swarm".to_owned() }),
        ..CommitRequest::new("Work of agent-a")
    };
    let outcome = own.commit_all(&request).await.unwrap();
    let CommitOutcome::Committed { commit, skipped } = outcome else { panic!("{outcome:?}") };
    let skipped: Vec<_> = skipped.into_iter().map(|s| (s.path.to_string(), s.reason)).collect();
    let bytes = 51 * 1024 * 1024;
    assert_eq!(
        skipped,
        [
            ("big.bin".to_owned(), SkipReason::TooLarge { bytes }),
            ("nested".to_owned(), SkipReason::NestedRepository)
        ]
    );
    own.advance_branch().await.unwrap();
    let shown = bench.git(["show", "--format=%an <%ae>%n%B", "--name-status", commit.as_str()]);
    let expected = "Ada <ada@example.org>\nWork of agent-a\n\nCo-authored-by: agent-a <agent-a@swarm>";
    assert!(shown.starts_with(expected), "{shown}");
    assert!(shown.ends_with("D\tb.txt\nA\tb.txt/inside\nA\tnew.txt"), "{shown}");
    let left = git(path, &["status", "--porcelain"]);
    assert_eq!(left, "?? big.bin\n?? nested/");
    let again = own.commit_all(&request).await.unwrap();
    assert!(matches!(again, CommitOutcome::Nothing { skipped } if skipped.len() == 2));
    bench.fsck();
}

#[tokio::test]
async fn without_a_user_the_commit_is_swarms() {
    let bench = Bench::new();
    bench.git(["config", "--unset", "user.name"]);
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    write(&worktree.path, "a.txt", "x\n");
    finish(&manager, &worktree, "x").await;
    let by = bench.git(["log", "-1", "--format=%an <%ae>", worktree.branch.as_str()]);
    assert_eq!(by, "swarm <swarm@localhost>");
}

#[tokio::test]
async fn a_rebase_in_progress_is_kept() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    let mut own = own(&manager, &worktree).await;
    write(&worktree.path, "a.txt", "mine\n");
    command_ok(&own, &["commit", "-q", "-am", "mine"]);
    own.advance_branch().await.unwrap();
    let tip = bench.rev(worktree.branch.as_str());
    bench.write("a.txt", "main\n");
    bench.git(["commit", "-q", "-am", "main"]);
    assert!(!command(&own, &["rebase", "main"]).status.success());
    let outcome = own.commit_all(&CommitRequest::new("end")).await.unwrap();
    let operation = Operation::Rebase;
    assert!(matches!(outcome, CommitOutcome::Held { operation: o, .. } if o == operation));
    assert_eq!(own.advance_branch().await.unwrap(), Advance::Held { operation });
    assert_eq!(bench.rev(worktree.branch.as_str()), tip);
    assert!(worktree.git_dir.join("rebase-merge").exists());
    command_ok(&own, &["rebase", "--abort"]);
    assert_eq!(own.advance_branch().await.unwrap(), Advance::Unmoved);
    bench.fsck();
}

#[tokio::test]
async fn a_worktree_has_one_owner_at_a_time() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    let first = own(&manager, &worktree).await;
    let assignment = manager.assignment(&worktree);
    let second = OwnWorktree::open_with(&worktree.path, assignment, config(), silent()).await;
    assert!(matches!(second, Err(OwnError::Lock(LockError::Owned { .. }))), "{second:?}");
    drop(first);
    drop(own(&manager, &worktree).await);
}

#[tokio::test]
async fn a_replaced_git_file_is_noticed() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    std::fs::remove_file(worktree.path.join(".git")).unwrap();
    git(&worktree.path, &["init", "-q"]);
    let assignment = manager.assignment(&worktree);
    let opened = OwnWorktree::open_with(&worktree.path, assignment, config(), silent()).await;
    assert!(matches!(opened, Err(OwnError::NotOurs { .. })), "{opened:?}");
}

#[tokio::test]
async fn a_foreign_lock_is_waited_for_and_then_named() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    write(&worktree.path, "a.txt", "x\n");
    let lock = worktree.git_dir.join("index.lock");
    std::fs::write(&lock, "").unwrap();
    let heard = std::sync::Arc::new(std::sync::Mutex::new(0));
    let (count, path) = (heard.clone(), lock.clone());
    // The holder lets go once the waiting has been seen three times.
    let progress = std::sync::Arc::new(move |_| {
        let mut count = count.lock().unwrap();
        *count += 1;
        if *count == 3 {
            std::fs::remove_file(&path).unwrap();
        }
    });
    let assignment = manager.assignment(&worktree);
    let own = OwnWorktree::open_with(&worktree.path, assignment, config(), progress).await.unwrap();
    let outcome = own.commit_all(&CommitRequest::new("x")).await.unwrap();
    assert!(matches!(outcome, CommitOutcome::Committed { .. }));
    assert_eq!(*heard.lock().unwrap(), 3);
    // Then for ever.
    write(&worktree.path, "a.txt", "y\n");
    std::fs::write(&lock, "").unwrap();
    let error = own.commit_all(&CommitRequest::new("y")).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("index.lock") && text.contains("left alone"), "{text}");
    assert!(lock.exists());
}

/// Puts a link to `target` where a command finds `place`, as a command can.
fn exchange(place: &Path, target: &Path) {
    match place.symlink_metadata() {
        Ok(meta) if meta.is_dir() => std::fs::remove_dir_all(place).unwrap(),
        Ok(_) => std::fs::remove_file(place).unwrap(),
        Err(_) => {}
    }
    std::os::unix::fs::symlink(target, place).unwrap();
}

#[tokio::test]
async fn a_link_in_the_private_store_leads_nowhere() {
    let bench = Bench::new();
    let other = Bench::new();
    other.write("other.txt", "of another repository\n");
    other.git(["add", "."]);
    other.git(["commit", "-q", "-m", "other"]);
    other.git(["repack", "-q", "-a", "-d"]);
    bench.git(["repack", "-q", "-a", "-d"]);
    bench.write("loose.txt", "loose\n");
    bench.git(["add", "."]);
    bench.git(["commit", "-q", "-m", "loose"]);
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    let mut own = own(&manager, &worktree).await;
    write(&worktree.path, "a.txt", "mine\n");
    command_ok(&own, &["hash-object", "-w", "a.txt"]);
    let private = worktree.git_dir.join(QUARANTINE_DIR);
    let away = worktree.git_dir.join("away");
    let (store, others) = (bench.repo.join(".git/objects"), other.repo.join(".git/objects"));
    let loose = bench.git(["rev-parse", "HEAD:loose.txt"]);
    let fan = &loose[..2];
    let before = [contents(&store, Path::new("/none")), contents(&others, Path::new("/none"))];
    let untouched = || {
        assert_eq!([contents(&store, Path::new("/none")), contents(&others, Path::new("/none"))], before);
        bench.fsck();
        other.fsck();
    };
    let check = async |place: &Path, target: &Path| {
        exchange(place, target);
        let error = own.migrate_objects().await.unwrap_err();
        assert!(matches!(&error, MigrateError::NotADirectory { path } if path == place), "{error:?}");
        assert!(error.to_string().contains(&*place.to_string_lossy()), "{error}");
        untouched();
        std::fs::remove_file(place).unwrap();
    };
    std::fs::rename(&private, &away).unwrap();
    for target in [&store, &others] {
        check(&private, target).await;
    }
    // A file of that name is no better.
    std::fs::write(&private, "").unwrap();
    assert!(matches!(own.migrate_objects().await, Err(MigrateError::NotADirectory { .. })));
    std::fs::remove_file(&private).unwrap();
    std::fs::rename(&away, &private).unwrap();
    for target in [&store, &others] {
        check(&private.join("pack"), &target.join("pack")).await;
    }
    std::fs::rename(&private, &away).unwrap();
    std::fs::create_dir(&private).unwrap();
    check(&private.join(fan), &store.join(fan)).await;
    std::fs::remove_dir(&private).unwrap();

    // A pack and its index by links.
    std::fs::create_dir_all(private.join("pack")).unwrap();
    for entry in std::fs::read_dir(others.join("pack")).unwrap() {
        let entry = entry.unwrap();
        exchange(&private.join("pack").join(entry.file_name()), &entry.path());
    }
    assert_eq!(own.migrate_objects().await.unwrap(), Default::default());
    untouched();
    std::fs::remove_dir_all(&private).unwrap();

    // With its own directory again all goes on.
    std::fs::rename(&away, &private).unwrap();
    command_ok(&own, &["commit", "-q", "-am", "mine"]);
    let advance = own.advance_branch().await.unwrap();
    assert!(matches!(advance, Advance::Moved { .. }), "{advance:?}");
    bench.fsck();
}

#[tokio::test]
async fn a_worktree_whose_private_store_is_a_link_is_not_opened() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    exchange(&worktree.git_dir.join(QUARANTINE_DIR), &bench.repo.join(".git/objects"));
    let assignment = manager.assignment(&worktree);
    let opened = OwnWorktree::open_with(&worktree.path, assignment, config(), silent()).await;
    assert!(matches!(opened, Err(OwnError::Quarantine { .. })), "{opened:?}");
}

#[tokio::test]
async fn an_object_over_the_limit_is_refused_by_its_size() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    let own = own(&manager, &worktree).await;
    let fan = worktree.git_dir.join(QUARANTINE_DIR).join("ab");
    std::fs::create_dir_all(&fan).unwrap();
    // All hole: reading it would need its whole size in memory or on the disk.
    let bytes = 1024 * 1024 * 1024 * 1024;
    let file = std::fs::File::create(fan.join("c".repeat(38))).unwrap();
    file.set_len(bytes).unwrap();
    let error = own.migrate_objects().await.unwrap_err();
    assert!(matches!(&error, MigrateError::TooLarge { bytes: b, .. } if *b == bytes), "{error:?}");
    assert!(error.to_string().contains("abcccc"), "{error}");
    let staged = std::fs::read_dir(bench.repo.join(".git/objects")).unwrap();
    assert!(!staged.flatten().any(|e| e.file_name().to_string_lossy().starts_with("tmp_objdir")));
}

#[tokio::test]
async fn an_index_that_is_no_plain_file_is_not_read() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    let own = own(&manager, &worktree).await;
    write(&worktree.path, "a.txt", "changed\n");
    let index = worktree.git_dir.join("index");
    let kept = worktree.git_dir.join("kept");
    std::fs::rename(&index, &kept).unwrap();
    let secret = bench.dir.path().join("secret");
    std::fs::write(&secret, "not for commands").unwrap();
    let names = || {
        let entries = std::fs::read_dir(&worktree.git_dir).unwrap();
        entries.map(|e| e.unwrap().file_name()).collect::<std::collections::BTreeSet<_>>()
    };
    let check = async || {
        let before = names();
        // The runtime has one thread: if that waited, so would the limit.
        let limit = std::time::Duration::from_secs(20);
        let result = tokio::time::timeout(limit, own.snapshot()).await.unwrap();
        let error = result.unwrap_err();
        let StoreError::Snapshot(SnapshotError::Index { source, .. }) = &error else { panic!("{error:?}") };
        assert!(source.to_string().contains("no plain file"), "{source}");
        assert_eq!(names(), before);
        let copies = bench.repo.join(".git/swarm/indexes").join(worktree.git_dir.file_name().unwrap());
        assert_eq!(std::fs::read_dir(&copies).unwrap().count(), 0);
        let mode = copies.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        std::fs::remove_file(&index).unwrap();
    };
    std::os::unix::fs::symlink(&secret, &index).unwrap();
    check().await;
    std::os::unix::fs::symlink(bench.dir.path().join("nothing"), &index).unwrap();
    check().await;
    assert!(!bench.dir.path().join("nothing").exists());
    nix::unistd::mkfifo(&index, nix::sys::stat::Mode::S_IRWXU).unwrap();
    check().await;
    std::fs::rename(&kept, &index).unwrap();
    own.snapshot().await.unwrap();
    assert!(names().iter().all(|n| !n.to_string_lossy().starts_with("swarm-index-")));
}

#[tokio::test]
async fn copies_of_indexes_that_a_killed_process_left_are_swept() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    let copies = bench.repo.join(".git/swarm/indexes").join(worktree.git_dir.file_name().unwrap());
    write(&copies, "swarm-index-left", "x");
    write(&copies, "swarm-index-stages/index", "x");
    let owner = own(&manager, &worktree).await;
    manager.reconcile().await.unwrap();
    assert_eq!(std::fs::read_dir(&copies).unwrap().count(), 2);
    drop(owner);
    manager.reconcile().await.unwrap();
    assert_eq!(std::fs::read_dir(&copies).unwrap().count(), 0);
}

#[tokio::test]
async fn a_filter_out_of_the_tree_is_not_run() {
    let bench = Bench::new();
    let script = |at: &Path, name: &str| {
        write(at, name, "#!/bin/sh\ntouch \"$0.ran\"\ntr a-z A-Z\n");
        std::fs::set_permissions(at.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    let outside = bench.dir.path().join("outside");
    script(&outside, "clean.sh");
    script(&bench.repo, "tools/clean.sh");
    bench.write(".gitattributes", "*.in filter=inside\n*.out filter=outside\n");
    bench.git(["add", "."]);
    bench.git(["commit", "-q", "-m", "filters"]);
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    bench.git(["config", "filter.inside.clean", "./tools/clean.sh"]);
    bench.git(["config", "filter.inside.required", "true"]);
    bench.git(["config", "filter.outside.clean", outside.join("clean.sh").to_str().unwrap()]);
    write(&worktree.path, "x.in", "text\n");
    write(&worktree.path, "x.out", "text\n");
    let own = own(&manager, &worktree).await;
    let snapshot = own.snapshot().await.unwrap();
    let stored = |name: &str| bench.git(["show", &format!("{}:{name}", snapshot.commit)]);
    assert_eq!((stored("x.in"), stored("x.out")), ("text".to_owned(), "TEXT".to_owned()));
    assert!(!worktree.path.join("tools/clean.sh.ran").exists());
    assert!(outside.join("clean.sh.ran").exists());
}

#[tokio::test]
async fn a_filter_written_after_the_start_is_not_run() {
    let bench = Bench::new();
    bench.git(["config", "extensions.worktreeConfig", "true"]);
    let manager = bench.manager().await;
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    let own = own(&manager, &worktree).await;
    let ran = bench.dir.path().join("ran");
    let filter = format!("[filter \"late\"]\n\tclean = \"touch '{}'; cat\"\n", ran.display());
    write(&worktree.git_dir, "config.worktree", &filter);
    write(&worktree.path, ".gitattributes", "* filter=late\n");
    write(&worktree.path, "a.txt", "text\n");
    own.state().await.unwrap();
    own.snapshot().await.unwrap();
    own.restore_snapshot(1).await.unwrap();
    let _committed = own.commit_all(&CommitRequest::new("x")).await.unwrap();
    own.apply_filters(&[worktree_manager::RepoPath::from_bytes(b"a.txt")]).await.unwrap();
    assert!(!ran.exists());
    git(&worktree.path, &["hash-object", "a.txt"]);
    assert!(ran.exists(), "the filter is one that git would run");
}
