//! Branches that began at a person's uncommitted changes: a merge takes the work alone.

use std::collections::BTreeSet;
use std::time::Duration;

use worktree_manager::{BranchName, Manager, MergeOutcome, MergeProof, Strategy, Worktree};

use crate::support::{Bench, finish, into_main, spec, write};

/// A person with a staged change, one that is not, an untracked and an ignored file; a worker that began there
/// and made two commits.
async fn carried(bench: &Bench, manager: &Manager) -> Worktree {
    bench.write("b.txt", "staged\n");
    bench.git(["add", "b.txt"]);
    bench.write("b.txt", "by the person\n");
    bench.write("new", "untracked\n");
    bench.write("debug.log", "ignored\n");
    let base = manager.repository().snapshot_dirty().await.unwrap().commit;
    let worktree = manager.create(&spec("agent-a", &base)).await.unwrap().worktree;
    assert!(worktree.path.join("new").exists() && !worktree.path.join("debug.log").exists());
    assert_eq!(bench.rev(&format!("{base}^")), bench.rev("HEAD"));
    write(&worktree.path, "a.txt", "one\n2\nthree\n");
    finish(manager, &worktree, "first").await;
    write(&worktree.path, "c.txt", "see\n");
    finish(manager, &worktree, "second").await;
    worktree
}

#[tokio::test]
async fn case_15_a_merge_leaves_the_carried_changes_where_they_are_in_every_form() {
    let subjects = [
        (Strategy::FastForwardOrMerge, "second,first,first"),
        (Strategy::Rebase, "second,first,first"),
        (Strategy::MergeCommit, "Merge branch,second,first,first"),
        (Strategy::Squash, "Squash branch,first"),
    ];
    for (strategy, expected) in subjects {
        let bench = Bench::new();
        let manager = bench.manager().await;
        let worktree = carried(&bench, &manager).await;
        let main = BranchName::parse("main").unwrap();
        let before = bench.git(["status", "--porcelain"]);
        assert_eq!(manager.is_merged(&worktree.branch, &main).await.unwrap(), None);
        let merged = manager.merge(&into_main(&worktree, strategy), None).await.unwrap();
        assert!(matches!(merged, MergeOutcome::Merged { .. }), "{strategy:?}: {merged:?}");
        // The work is there, the person's changes are neither in the branch nor lost.
        assert_eq!((bench.read("a.txt"), bench.read("c.txt")), ("one\n2\nthree\n".into(), "see\n".into()));
        assert_eq!(bench.git(["show", "main:b.txt"]), "bee");
        assert_eq!(
            (bench.read("b.txt"), bench.read("new")),
            ("by the person\n".into(), "untracked\n".into())
        );
        assert_eq!(bench.git(["status", "--porcelain"]), before, "{strategy:?}");
        let log = bench.git(["log", "--topo-order", "--format=%s", "main"]);
        let log: Vec<_> = log.lines().map(|line| line.split(" '").next().unwrap()).collect();
        assert_eq!(log.join(","), expected, "{strategy:?}");
        assert_eq!(
            manager.is_merged(&worktree.branch, &main).await.unwrap(),
            Some(MergeProof::TreeEquality),
            "{strategy:?}"
        );
        let again = manager.merge(&into_main(&worktree, strategy), None).await.unwrap();
        assert!(matches!(again, MergeOutcome::AlreadyMerged { .. }), "{strategy:?}: {again:?}");
        bench.fsck();
    }
}

#[tokio::test]
async fn case_15_work_on_a_carried_file_merges_once_the_person_has_committed_it() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    bench.write("a.txt", "one\ntwo and a half\nthree\n");
    let base = manager.repository().snapshot_dirty().await.unwrap().commit;
    let worktree = manager.create(&spec("agent-a", &base)).await.unwrap().worktree;
    write(&worktree.path, "a.txt", "one\ntwo and a half\nthree\nfour\n");
    finish(&manager, &worktree, "on top").await;
    let held = manager.merge(&into_main(&worktree, Strategy::FastForwardOrMerge), None).await.unwrap();
    let MergeOutcome::Refused { files, .. } = held else { panic!("{held:?}") };
    assert_eq!(files[0].to_string(), "a.txt");
    assert_eq!(bench.read("a.txt"), "one\ntwo and a half\nthree\n");
    bench.git(["commit", "-qam", "by the person"]);
    let merged = manager.merge(&into_main(&worktree, Strategy::FastForwardOrMerge), None).await.unwrap();
    assert!(matches!(merged, MergeOutcome::Merged { .. }), "{merged:?}");
    assert_eq!(bench.read("a.txt"), "one\ntwo and a half\nthree\nfour\n");
    assert_eq!(bench.git(["status", "--porcelain"]), "");
}

#[tokio::test]
async fn carried_changes_stay_while_anybody_needs_them() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = carried(&bench, &manager).await;
    let commit = bench.rev(&format!("{}~2", worktree.branch));
    let none = BTreeSet::new();
    let expire = async |needed: &BTreeSet<_>, age| manager.expire_carried(needed, age).await.unwrap();
    assert!(expire(&none, Duration::ZERO).await.is_empty(), "a branch began there");
    let removed = manager.remove(&worktree.agent, worktree_manager::Force::No).await.unwrap();
    assert_eq!(removed, worktree_manager::Removal::Removed { saved: None });
    bench.git(["branch", "-q", "-D", worktree.branch.as_str()]);
    assert!(expire(&none, Duration::from_secs(u64::MAX)).await.is_empty(), "it is young");
    assert!(expire(&BTreeSet::from([commit.clone()]), Duration::ZERO).await.is_empty(), "a session needs it");
    assert_eq!(expire(&none, Duration::ZERO).await, [commit]);
    assert_eq!(bench.git(["for-each-ref", "refs/swarm/bases"]), "");
}
