use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use worktree_manager::{
    BranchName, CheckOutcome, LandingRefusal, LineRange, Manager, MergeOutcome, MergeProof, Operation,
    Strategy, Worktree,
};

use crate::support::{Bench, ENV, agent, create, finish, git, into_main, raw_git, write};

async fn work(bench: &Bench, manager: &Manager, name: &str, files: &[(&str, &str)]) -> Worktree {
    let worktree = create(bench, manager, name).await.worktree;
    for (path, content) in files {
        write(&worktree.path, path, content);
    }
    finish(manager, &worktree, &format!("work of {name}")).await;
    worktree
}

#[tokio::test]
async fn a_diff_is_what_git_apply_takes() {
    let bench = Bench::new();
    bench.git(["config", "diff.noprefix", "true"]);
    bench.git(["config", "color.ui", "always"]);
    let manager = bench.manager().await;
    let files = [("a.txt", "one\n2\nthree\n"), ("new dir/ü.txt", "x"), ("bin", "\0\u{1}")];
    let worktree = work(&bench, &manager, "agent-a", &files).await;
    std::fs::rename(worktree.path.join("b.txt"), worktree.path.join("moved.txt")).unwrap();
    finish(&manager, &worktree, "rename").await;
    let main_before = bench.rev("main");
    bench.git(["commit", "-q", "--allow-empty", "-m", "main goes on"]);
    let repository = manager.repository();
    let diff = repository.diff(worktree.branch.as_str(), "main").await.unwrap();
    assert_eq!(diff.from, main_before);
    assert_eq!((diff.stat.files, diff.stat.insertions, diff.stat.deletions), (4, 2, 1));
    let renamed = diff.files.iter().find(|f| f.renamed_from.is_some()).unwrap();
    assert_eq!(renamed.path.to_string(), "moved.txt");
    let one = repository.diff_file(worktree.branch.as_str(), "main", &renamed.path).await.unwrap();
    assert!(!one.is_empty());
    let mut apply = Command::new("git")
        .current_dir(&bench.repo)
        .args(["apply", "--index", "-"])
        .envs(ENV)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    apply.stdin.take().unwrap().write_all(&diff.patch).unwrap();
    assert!(apply.wait().unwrap().success());
    let tree = bench.git(["write-tree"]);
    assert_eq!(tree, bench.git(["rev-parse", &format!("{}^{{tree}}", worktree.branch)]));
    let evidence = manager.evidence(&agent("agent-a")).await.unwrap();
    let subjects: Vec<_> = evidence.commits.listed.iter().map(|c| c.subject.as_str()).collect();
    assert_eq!(subjects, ["rename", "work of agent-a"]);
    assert!(evidence.dirty.is_empty());
}

#[tokio::test]
async fn a_checked_out_target_moves_with_its_files_and_keeps_others_dirty() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = work(&bench, &manager, "agent-a", &[("a.txt", "merged\n"), ("new", "n\n")]).await;
    bench.write("b.txt", "the person's\n");
    bench.write("notes", "untracked\n");
    bench.write("staged", "s\n");
    bench.git(["add", "staged"]);
    let status = bench.git(["status", "--porcelain"]);
    let outcome = manager.merge(&into_main(&worktree, Strategy::default()), None).await.unwrap();
    let MergeOutcome::Merged { to, stat, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(bench.rev("main"), to);
    assert_eq!(to, bench.rev(worktree.branch.as_str()));
    assert_eq!((stat.files, stat.insertions), (2, 2));
    assert_eq!((bench.read("a.txt"), bench.read("new")), ("merged\n".into(), "n\n".into()));
    assert_eq!(bench.git(["status", "--porcelain"]), status);
    assert_eq!(bench.git(["stash", "list"]), "");
    let outcome = manager.merge(&into_main(&worktree, Strategy::default()), None).await.unwrap();
    assert!(matches!(outcome, MergeOutcome::AlreadyMerged { .. }), "{outcome:?}");
    bench.fsck();
}

#[tokio::test]
async fn files_changed_in_the_target_refuse_the_merge_and_are_named() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let files = [("a.txt", "merged\n"), ("x.log", "?"), ("new/deep", "n\n"), ("other", "o\n")];
    let worktree = work(&bench, &manager, "agent-a", &files).await;
    git(&worktree.path, &["add", "-f", "x.log"]);
    finish(&manager, &worktree, "an ignored file").await;
    bench.write("a.txt", "the person's\n");
    bench.write("x.log", "an ignored file of the person's\n");
    bench.write("new", "a file where a directory comes\n");
    let before = bench.rev("main");
    let outcome = manager.merge(&into_main(&worktree, Strategy::default()), None).await.unwrap();
    let MergeOutcome::Refused { reason, files } = outcome else { panic!("{outcome:?}") };
    assert!(matches!(reason, LandingRefusal::Changed { .. }), "{reason}");
    let files: Vec<_> = files.iter().map(ToString::to_string).collect();
    assert_eq!(files, ["a.txt", "new", "x.log"]);
    assert_eq!(bench.rev("main"), before);
    assert_eq!(bench.read("a.txt"), "the person's\n");
    assert!(!bench.repo.join("other").exists());
}

#[tokio::test]
async fn a_target_in_the_middle_of_a_rebase_is_refused() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = work(&bench, &manager, "agent-a", &[("new", "n\n")]).await;
    bench.git(["checkout", "-q", "-b", "side"]);
    bench.write("a.txt", "side\n");
    bench.git(["commit", "-q", "-am", "side"]);
    bench.git(["checkout", "-q", "main"]);
    bench.write("a.txt", "main\n");
    bench.git(["commit", "-q", "-am", "main"]);
    assert!(!raw_git(&bench.repo, &["rebase", "side"]).status.success());
    let outcome = manager.merge(&into_main(&worktree, Strategy::default()), None).await.unwrap();
    let MergeOutcome::Refused { reason, .. } = outcome else { panic!("{outcome:?}") };
    let operation = Operation::Rebase;
    assert!(matches!(reason, LandingRefusal::InProgress { operation: o, .. } if o == operation));
}

#[tokio::test]
async fn conflicts_name_files_and_lines() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = work(&bench, &manager, "agent-a", &[("a.txt", "one\nTWO\nthree\n")]).await;
    bench.write("a.txt", "one\nzwei\nthree\n");
    bench.git(["commit", "-q", "-am", "main"]);
    let before = bench.rev("main");
    for strategy in [Strategy::default(), Strategy::Squash, Strategy::Rebase] {
        let outcome = manager.merge(&into_main(&worktree, strategy), None).await.unwrap();
        let MergeOutcome::Conflict { files } = outcome else { panic!("{outcome:?}") };
        assert_eq!(files[0].path.to_string(), "a.txt");
        assert_eq!(files[0].kinds, ["CONFLICT (contents)"]);
        assert_eq!(files[0].ranges, [LineRange { first: 2, last: 2 }]);
    }
    assert_eq!(bench.rev("main"), before);
    assert_eq!(bench.git(["status", "--porcelain"]), "");
}

#[tokio::test]
async fn conflicts_are_told_in_lines_of_the_branch_s_own_file() {
    let bench = Bench::new();
    let text = |change: &[(usize, &str)]| -> String {
        let line = |n| {
            change.iter().find(|(at, _)| *at == n).map_or(format!("line {n}\n"), |(_, t)| (*t).to_owned())
        };
        (1..=30).map(line).collect()
    };
    bench.write("long.txt", &text(&[]));
    bench.git(["add", "long.txt"]);
    bench.git(["commit", "-q", "-m", "long"]);
    let manager = bench.manager().await;
    let theirs = text(&[(10, "own ten\nand more\n"), (20, "")]);
    let worktree = work(&bench, &manager, "agent-a", &[("long.txt", &theirs)]).await;
    // Lines that the target alone added move nothing; a line that the branch took away has its gap named.
    bench.write("long.txt", &text(&[(2, "new\nnew\nnew\n"), (10, "main ten\n"), (20, "main twenty\n")]));
    bench.git(["commit", "-q", "-am", "main"]);
    let outcome = manager.merge(&into_main(&worktree, Strategy::default()), None).await.unwrap();
    let MergeOutcome::Conflict { files } = outcome else { panic!("{outcome:?}") };
    assert_eq!(files[0].ranges, [LineRange { first: 10, last: 11 }, LineRange { first: 21, last: 21 }]);
}

#[tokio::test]
async fn a_target_that_is_not_checked_out_moves_alone() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = work(&bench, &manager, "agent-a", &[("new", "n\n")]).await;
    bench.git(["checkout", "-q", "-b", "elsewhere"]);
    bench.git(["branch", "-f", "main", "main"]);
    let outcome = manager.merge(&into_main(&worktree, Strategy::MergeCommit), None).await.unwrap();
    assert!(matches!(outcome, MergeOutcome::Merged { .. }), "{outcome:?}");
    assert_eq!(bench.git(["log", "-1", "--format=%P", "main"]).split(' ').count(), 2);
    let subject = bench.git(["log", "-1", "--format=%s|%an", "main"]);
    assert_eq!(subject, format!("Merge branch '{}' into main|Ada", worktree.branch));
    assert!(!bench.repo.join("new").exists());
    assert_eq!(bench.git(["status", "--porcelain"]), "");
}

#[tokio::test]
async fn a_target_that_moved_during_the_check_is_not_overwritten() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = work(&bench, &manager, "agent-a", &[("new", "n\n")]).await;
    for branch in ["elsewhere", "main"] {
        // Once with the target checked out, once without.
        bench.git(["checkout", "-q", "-B", branch]);
        let repo = bench.repo.clone();
        let check = Box::new(move |_| -> std::pin::Pin<Box<dyn Future<Output = _> + Send>> {
            Box::pin(async move {
                let tree = git(&repo, &["rev-parse", "main^{tree}"]);
                let moved = git(&repo, &["commit-tree", &tree, "-p", "main", "-m", "person"]);
                git(&repo, &["update-ref", "refs/heads/main", &moved]);
                CheckOutcome::Passed
            })
        });
        let before = bench.rev("main");
        let request = into_main(&worktree, Strategy::MergeCommit);
        let outcome = manager.merge(&request, Some(check)).await.unwrap();
        let MergeOutcome::TargetMoved { expected, found } = outcome else { panic!("{outcome:?}") };
        assert_eq!((expected, found), (before, Some(bench.rev("main"))));
        assert_eq!(bench.git(["status", "--porcelain"]), "");
        assert!(!bench.repo.join("new").exists());
    }
    bench.fsck();
}

#[tokio::test]
async fn the_check_sees_the_merged_files_and_decides() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = work(&bench, &manager, "agent-a", &[("new", "n\n")]).await;
    bench.write("main only", "m\n");
    bench.git(["add", "."]);
    bench.git(["commit", "-q", "-m", "main"]);
    let before = bench.rev("main");
    let seen = Arc::new(Mutex::new(None));
    let saw = Arc::clone(&seen);
    let check =
        Box::new(move |path: std::path::PathBuf| -> std::pin::Pin<Box<dyn Future<Output = _> + Send>> {
            Box::pin(async move {
                assert!(path.join("new").exists() && path.join("main only").exists());
                *saw.lock().unwrap() = Some(path);
                CheckOutcome::Failed { report: "2 tests failed".to_owned() }
            })
        });
    let request = into_main(&worktree, Strategy::default());
    let outcome = manager.merge(&request, Some(check)).await.unwrap();
    assert!(matches!(outcome, MergeOutcome::CheckFailed { report } if report == "2 tests failed"));
    assert_eq!(bench.rev("main"), before);
    let scratch = seen.lock().unwrap().take().unwrap();
    assert!(!scratch.exists());
    assert_eq!(bench.git(["worktree", "list"]).lines().count(), 2);
}

#[tokio::test]
async fn a_squash_is_proved_by_its_tree() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = work(&bench, &manager, "agent-a", &[("new", "1\n")]).await;
    write(&worktree.path, "new", "2\n");
    finish(&manager, &worktree, "second").await;
    let main = BranchName::parse("main").unwrap();
    assert_eq!(manager.is_merged(&worktree.branch, &main).await.unwrap(), None);
    let outcome = manager.merge(&into_main(&worktree, Strategy::Squash), None).await.unwrap();
    assert!(matches!(outcome, MergeOutcome::Merged { .. }), "{outcome:?}");
    assert_eq!(bench.git(["log", "-1", "--format=%P", "main"]).split(' ').count(), 1);
    let body = bench.git(["log", "-1", "--format=%b", "main"]);
    assert_eq!(body, "* work of agent-a\n* second");
    bench.write("later", "l\n");
    bench.git(["add", "."]);
    bench.git(["commit", "-q", "-m", "later"]);
    let proof = manager.is_merged(&worktree.branch, &main).await.unwrap();
    assert_eq!(proof, Some(MergeProof::TreeEquality));
    bench.fsck();
}

#[tokio::test]
async fn a_rebase_makes_the_commits_again_with_their_authors() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = work(&bench, &manager, "agent-a", &[("one", "1\n")]).await;
    write(&worktree.path, "two", "2\n");
    finish(&manager, &worktree, "second").await;
    bench.write("a.txt", "main\n");
    bench.git(["commit", "-q", "-am", "main"]);
    bench.git(["config", "user.name", "Bob"]);
    let outcome = manager.merge(&into_main(&worktree, Strategy::Rebase), None).await.unwrap();
    assert!(matches!(outcome, MergeOutcome::Merged { .. }), "{outcome:?}");
    let log = bench.git(["log", "-3", "--format=%s|%an|%cn", "main"]);
    assert_eq!(log, "second|Ada|Bob\nwork of agent-a|Ada|Bob\nmain|Ada|Ada");
    assert_eq!(bench.read("two"), "2\n");
    let main = BranchName::parse("main").unwrap();
    let proof = manager.is_merged(&worktree.branch, &main).await.unwrap();
    assert_eq!(proof, Some(MergeProof::TreeEquality));
    bench.fsck();
}

#[tokio::test]
async fn a_lock_in_the_target_is_waited_for_and_never_removed() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = work(&bench, &manager, "agent-a", &[("new", "n\n")]).await;
    let lock = bench.repo.join(".git/index.lock");
    std::fs::write(&lock, "").unwrap();
    let before = bench.rev("main");
    let error = manager.merge(&into_main(&worktree, Strategy::default()), None).await.unwrap_err();
    assert!(error.to_string().contains("index.lock"), "{error}");
    assert!(lock.exists() && !bench.repo.join("new").exists());
    assert_eq!(bench.rev("main"), before);
}

#[tokio::test]
async fn files_with_a_filter_are_left_to_the_person() {
    let bench = Bench::new();
    bench.git(["config", "filter.mine.smudge", "cat"]);
    bench.write(".gitattributes", "*.bin filter=mine\n");
    bench.git(["add", "."]);
    bench.git(["commit", "-q", "-m", "attributes"]);
    let manager = bench.manager().await;
    let worktree = work(&bench, &manager, "agent-a", &[("x.bin", "b\n"), ("y", "y\n")]).await;
    let outcome = manager.merge(&into_main(&worktree, Strategy::default()), None).await.unwrap();
    let MergeOutcome::Refused { reason, files } = outcome else { panic!("{outcome:?}") };
    assert!(matches!(reason, LandingRefusal::Filtered { .. }), "{reason}");
    assert_eq!(files[0].to_string(), "x.bin");
}

#[tokio::test]
async fn a_merge_that_a_crash_interrupted_is_taken_back() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let worktree = work(&bench, &manager, "agent-a", &[("a.txt", "merged\n"), ("new", "n\n")]).await;
    bench.write("b.txt", "the person's\n");
    let (from, to) = (bench.rev("main"), bench.rev(worktree.branch.as_str()));
    let status = bench.git(["status", "--porcelain"]);
    // As it is after the files and before the ref.
    bench.git(["read-tree", "-m", "-u", from.as_str(), to.as_str()]);
    assert_eq!(bench.read("a.txt"), "merged\n");
    let note = format!(
        r#"{{"target":"main","from":"{from}","to":"{to}","by":{{"pid":1,"start_ticks":0,"boot":"another"}}}}"#
    );
    write(&bench.repo.join(".git/swarm/landing"), "x.json", &note);
    let report = manager.reconcile().await.unwrap();
    assert!(report.kept.is_empty(), "{report:?}");
    assert_eq!(bench.git(["status", "--porcelain"]), status);
    assert_eq!(bench.read("a.txt"), "one\ntwo\nthree\n");
    assert!(!bench.repo.join(".git/swarm/landing/x.json").exists());
    let outcome = manager.merge(&into_main(&worktree, Strategy::default()), None).await.unwrap();
    assert!(matches!(outcome, MergeOutcome::Merged { .. }), "{outcome:?}");
}
