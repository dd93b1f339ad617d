use std::os::unix::ffi::OsStrExt;

use worktree_manager::{BaseError, Head, OpenError, Repository, Unsupported, Watched};

use crate::support::{Bench, config, create, git, raw_git, write};

#[tokio::test]
async fn the_base_is_the_commit_under_the_persons_feet() {
    let bench = Bench::new();
    let linked = bench.dir.path().join("linked tree");
    git(&bench.repo, &["worktree", "add", "-q", "-b", "side", linked.to_str().unwrap()]);
    write(&linked, "c.txt", "c\n");
    git(&linked, &["add", "."]);
    git(&linked, &["commit", "-q", "-m", "side work"]);
    std::fs::create_dir(linked.join("deep")).unwrap();
    let repository = Repository::open_with(&linked.join("deep"), config()).await.unwrap();
    assert!(repository.is_linked());
    assert_eq!(repository.root(), linked.canonicalize().unwrap());
    let main = bench.repository().await;
    assert_eq!(repository.directory_name(), main.directory_name());
    let base = repository.resolve_base("HEAD").await.unwrap();
    assert_eq!(base.commit, bench.rev("side"));
    assert_ne!(base.commit, bench.rev("main"));

    git(&linked, &["checkout", "-q", "--detach", "main"]);
    let head = repository.head().await.unwrap();
    assert_eq!(head, Head::Detached { commit: bench.rev("main") });
    assert!(repository.default_target().await.unwrap().is_none());
}

#[tokio::test]
async fn an_unborn_head_is_refused_with_two_ways_out() {
    let dir = tempfile::tempdir().unwrap();
    git(dir.path(), &["init", "-q", "-b", "main"]);
    let repository = Repository::open_with(dir.path(), config()).await.unwrap();
    let head = repository.head().await.unwrap();
    assert_eq!(head, Head::Unborn { branch: "main".to_owned() });
    let error = repository.resolve_base("HEAD").await.unwrap_err();
    assert!(matches!(error, BaseError::Unborn { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("git commit --allow-empty") && text.contains("in place"), "{text}");
}

#[tokio::test]
async fn an_unknown_base_names_branches_like_it() {
    let bench = Bench::new();
    bench.git(["branch", "feature/login"]);
    let repository = bench.repository().await;
    let error = repository.resolve_base("feature/logni").await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("feature/login (") && text.contains("days old"), "{text}");
    let error = repository.resolve_base("main:a.txt").await.unwrap_err();
    assert!(matches!(error, BaseError::NotACommit { .. }), "{error}");
}

#[tokio::test]
async fn kinds_that_are_not_supported_are_refused_with_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let check = async |name: &str, init: &[&str], settings: &[&[&str]], expected: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir(&path).unwrap();
        git(&path, init);
        for setting in settings {
            git(&path, setting);
        }
        let error = Repository::open_with(&path, config()).await.unwrap_err();
        assert!(matches!(error, OpenError::Unsupported(_)), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
    };
    check("bare", &["init", "-q", "--bare"], &[], "bare repository").await;
    check("sha256", &["init", "-q", "--object-format=sha256"], &[], "SHA-1 clone").await;
    check("reftable", &["init", "-q", "--ref-format=reftable"], &[], "refs migrate").await;
    let promisor: &[&[&str]] = &[&["config", "remote.origin.promisor", "true"]];
    check("partial", &["init", "-q"], promisor, "--refetch").await;
    let error = Repository::open_with(dir.path(), config()).await.unwrap_err();
    assert!(matches!(error, OpenError::NotARepository { .. }), "{error:?}");
    let unsupported = Unsupported::Bare { path: "/x".into() };
    assert!(unsupported.to_string().contains("git worktree add"));
}

#[tokio::test]
async fn facts_tell_distance_and_dirty_files() {
    let bench = Bench::new();
    let clone = bench.dir.path().join("clone");
    git(bench.dir.path(), &["clone", "-q", bench.repo.to_str().unwrap(), "clone"]);
    git(&clone, &["-c", "user.name=a", "-c", "user.email=b", "commit", "-q", "--allow-empty", "-m", "x"]);
    bench.write("n.txt", "n\n");
    bench.git(["add", "."]);
    bench.git(["commit", "-q", "-m", "upstream"]);
    git(&clone, &["fetch", "-q"]);
    write(&clone, "a.txt", "changed\n");
    write(&clone, "odd \n name", "new\n");
    let repository = Repository::open_with(&clone, config()).await.unwrap();
    let facts = repository.facts().await.unwrap();
    let distance = facts.to_origin.unwrap();
    assert_eq!((distance.to.as_str(), distance.ahead, distance.behind), ("origin/main", 1, 1));
    let dirty: Vec<_> = facts.dirty.iter().map(|e| e.path.to_string()).collect();
    assert_eq!(dirty, ["a.txt", "odd \\n name"]);
    assert!(!facts.sparse);
}

#[tokio::test]
async fn changes_of_shared_places_are_noticed_with_old_and_new_value() {
    let bench = Bench::new();
    let repository = bench.repository().await;
    let before = worktree_manager::Fingerprint::take(&repository).await.unwrap();
    let json = serde_json::to_string(&before).unwrap();
    bench.git(["config", "core.hooksPath", "elsewhere"]);
    bench.git(["config", "remote.origin.url", "https://me:secret@example.org/x"]);
    bench.write("a.txt", "overwritten\n");
    write(&bench.repo.join(".git"), "hooks/pre-commit", "#!/bin/sh\n");
    let after = worktree_manager::Fingerprint::take(&repository).await.unwrap();
    let before: worktree_manager::Fingerprint = serde_json::from_str(&json).unwrap();
    let changes = before.diff(&after);
    let of = |what: &Watched| changes.iter().find(|c| c.what == *what).unwrap();
    let hooks = of(&Watched::Config("core.hookspath".to_owned()));
    assert_eq!((hooks.old.clone(), hooks.new.as_deref()), (None, Some("elsewhere")));
    assert!(of(&Watched::File("a.txt".to_owned())).old.is_none());
    assert!(!format!("{changes:?}").contains("secret@"));
    assert_eq!(after.diff(&after), []);
    assert_eq!(bench.read("a.txt"), "overwritten\n");
}

#[tokio::test]
async fn paths_of_any_bytes_work() {
    for name in [
        &b"with space"[..],
        b"it's \"quoted\"",
        b"line\nbreak",
        "\u{6f22}\u{5b57} e\u{301}".as_bytes(),
        b"colon:and#hash",
        b"not \xff utf-8",
    ] {
        let bench = Bench::named(name);
        let odd = bench.repo.join(std::ffi::OsStr::from_bytes(b"f\xfe\n.txt"));
        std::fs::write(odd, "odd\n").unwrap();
        bench.git(["add", "."]);
        bench.git(["commit", "-q", "-m", "odd"]);
        let manager = bench.manager().await;
        let created = create(&bench, &manager, "agent-odd").await;
        let path = created.worktree.path.clone();
        std::fs::write(path.join(std::ffi::OsStr::from_bytes(b"new\xfd\t")), "x").unwrap();
        let mut own = crate::support::own(&manager, &created.worktree).await;
        crate::support::write(&path, "a.txt", "by a command\n");
        crate::support::command_ok(&own, &["commit", "-q", "-am", "command"]);
        own.snapshot().await.unwrap();
        let request = worktree_manager::CommitRequest::new("end");
        let _committed = own.commit_all(&request).await.unwrap();
        own.advance_branch().await.unwrap();
        assert!(own.state().await.unwrap().dirty.is_empty());
        drop(own);
        let evidence = manager.evidence(&created.worktree.agent).await.unwrap();
        assert_eq!((evidence.commits.count, evidence.stat.files), (2, 2), "{name:?}");
        let out = raw_git(&bench.repo, &["status", "--porcelain"]);
        assert!(out.stdout.is_empty());
        bench.fsck();
    }
}
