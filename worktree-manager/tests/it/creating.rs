use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::{Arc, Mutex};

use worktree_manager::{
    CreateError, GitConfig, IncludeRefused, Manager, MarkError, ProcessStamp, ProgressEvent, Repository,
    SubmoduleFill,
};

use crate::support::{Bench, agent, config, create, git, own, raw_git, spec, write};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn thirty_two_at_once_in_one_repository() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let base = bench.rev("HEAD");
    let before = std::fs::read(bench.repo.join(".git/config")).unwrap();
    let mut all = tokio::task::JoinSet::new();
    for n in 0..32 {
        let (manager, spec) = (manager.clone(), spec(&format!("agent-{n:02}"), &base));
        all.spawn(async move { manager.create(&spec).await.unwrap() });
    }
    let created = all.join_all().await;
    assert_eq!(manager.list().unwrap().len(), 32);
    for one in &created {
        assert_eq!(git(&one.worktree.path, &["rev-parse", "HEAD"]), base.as_str());
        assert_eq!(git(&one.worktree.path, &["status", "--porcelain"]), "");
        assert_eq!(bench.rev(one.worktree.branch.as_str()), base);
    }
    assert_eq!(std::fs::read(bench.repo.join(".git/config")).unwrap(), before);
    bench.fsck();
}

#[tokio::test]
async fn head_is_detached_at_the_base_and_the_branch_is_there() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let created = create(&bench, &manager, "agent-a").await;
    let path = &created.worktree.path;
    assert!(path.ends_with(format!("{}/agent-a", manager.repository().directory_name())));
    assert!(!raw_git(path, &["symbolic-ref", "-q", "HEAD"]).status.success());
    assert_eq!(created.worktree.branch.as_str(), "swarm/7c1d09e2/agent-a/fix-the-bug");
    assert_eq!(created.worktree.renamed, None);
}

#[tokio::test]
async fn asking_twice_gives_the_same_worktree() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let first = create(&bench, &manager, "agent-a").await;
    write(&first.worktree.path, "a.txt", "work\n");
    let second = create(&bench, &bench.manager().await, "agent-a").await;
    assert!(second.reused && !first.reused);
    assert_eq!(second.worktree, first.worktree);
    let content = std::fs::read_to_string(first.worktree.path.join("a.txt")).unwrap();
    assert_eq!(content, "work\n");
    bench.git(["commit", "-q", "--allow-empty", "-m", "on"]);
    let other = manager.create(&spec("agent-a", &bench.rev("HEAD"))).await;
    assert!(matches!(other, Err(CreateError::OtherBase { .. })), "{other:?}");
}

#[tokio::test]
async fn an_existing_branch_is_untouched() {
    let bench = Bench::new();
    let name = "swarm/7c1d09e2/agent-a/fix-the-bug";
    bench.git(["checkout", "-q", "-b", name]);
    bench.git(["commit", "-q", "--allow-empty", "-m", "unmerged"]);
    bench.git(["checkout", "-q", "main"]);
    let theirs = bench.rev(name);
    let manager = bench.manager().await;
    let created = create(&bench, &manager, "agent-a").await;
    assert_eq!(bench.rev(name), theirs);
    assert_eq!(created.worktree.branch.as_str(), format!("{name}-2"));
    let why = created.worktree.renamed.unwrap().to_string();
    assert!(why.contains("exists already"), "{why}");
}

#[tokio::test]
async fn a_branch_called_swarm_leads_to_another_prefix() {
    let bench = Bench::new();
    bench.git(["branch", "swarm"]);
    let manager = bench.manager().await;
    let created = create(&bench, &manager, "agent-a").await;
    assert_eq!(created.worktree.branch.as_str(), "swarm-work/7c1d09e2/agent-a/fix-the-bug");
    let why = created.worktree.renamed.unwrap().to_string();
    assert!(why.contains("branch swarm exists"), "{why}");
}

#[tokio::test]
async fn locks_of_others_do_not_stop_creation() {
    let bench = Bench::new();
    for lock in ["index.lock", "config.lock"] {
        std::fs::write(bench.repo.join(".git").join(lock), "").unwrap();
    }
    let manager = bench.manager().await;
    create(&bench, &manager, "agent-a").await;
    assert!(bench.repo.join(".git/index.lock").exists());
}

#[tokio::test]
async fn a_failed_try_leaves_nothing() {
    let bench = Bench::new();
    // A commit that names a file whose content is nowhere: the checkout fails in the middle.
    let input = "100644 blob 1234567890123456789012345678901234567890\tmissing\n";
    let file = bench.dir.path().join("tree");
    std::fs::write(&file, input).unwrap();
    let script = format!("git mktree --missing < {}", file.display());
    let out =
        std::process::Command::new("sh").args(["-c", &script]).current_dir(&bench.repo).output().unwrap();
    let tree = String::from_utf8(out.stdout).unwrap();
    let broken = bench.git(["commit-tree", tree.trim(), "-m", "broken"]);
    let broken = worktree_manager::CommitId::parse(&broken).unwrap();
    let manager = bench.manager().await;
    let result = manager.create(&spec("agent-a", &broken)).await;
    assert!(matches!(result, Err(CreateError::Git(_))), "{result:?}");
    assert!(!manager.path_of(&agent("agent-a")).exists());
    assert_eq!(bench.git(["branch", "--list", "swarm*"]), "");
    assert_eq!(bench.git(["worktree", "list"]).lines().count(), 1);
    // And the next try works.
    create(&bench, &manager, "agent-a").await;
}

#[tokio::test]
async fn a_foreign_directory_is_left_alone() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let path = manager.path_of(&agent("agent-a"));
    write(&path, "precious", "x");
    let result = manager.create(&spec("agent-a", &bench.rev("HEAD"))).await;
    assert!(matches!(result, Err(CreateError::PathTaken { .. })), "{result:?}");
    assert!(path.join("precious").exists());
    assert_eq!(bench.git(["branch", "--list", "swarm*"]), "");
}

#[tokio::test]
async fn a_dropped_creation_is_repaired_by_the_next() {
    let bench = Bench::new();
    let manager = bench.manager().await;
    let base = bench.rev("HEAD");
    // Stop after each number of steps; the future is dropped wherever it then is.
    for steps in 1..12 {
        let spec = spec("agent-a", &base);
        let create = manager.create(&spec);
        tokio::pin!(create);
        let mut polls = 0;
        let stopped = std::future::poll_fn(|cx| {
            polls += 1;
            if polls > steps {
                return std::task::Poll::Ready(true);
            }
            create.as_mut().poll(cx).map(|_| false)
        })
        .await;
        if !stopped {
            break;
        }
    }
    let created = create(&bench, &manager, "agent-a").await;
    assert_eq!(git(&created.worktree.path, &["status", "--porcelain"]), "");
    assert_eq!(bench.git(["worktree", "list"]).lines().count(), 2);
    bench.fsck();
}

#[tokio::test]
async fn nothing_of_a_repository_runs_in_the_server() {
    let bench = Bench::new();
    let witness = bench.dir.path().join("ran");
    let script = format!("#!/bin/sh\ntouch '{}'\ncat\n", witness.display());
    for hook in ["post-checkout", "reference-transaction", "post-index-change", "fsmonitor"] {
        let path = bench.repo.join(".git/hooks").join(hook);
        write(&bench.repo.join(".git"), &format!("hooks/{hook}"), &script);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    write(&bench.repo, ".gitattributes", "*.bin filter=mine\n");
    write(&bench.repo, "x.bin", "stored\n");
    git(&bench.repo, &["-c", "core.hooksPath=/dev/null", "add", "."]);
    git(&bench.repo, &["-c", "core.hooksPath=/dev/null", "commit", "-q", "-m", "x"]);
    let monitor = bench.repo.join(".git/hooks/fsmonitor");
    bench.git(["config", "core.fsmonitor", monitor.to_str().unwrap()]);
    let smudge = format!("touch '{}'; sed s/stored/smudged/", witness.display());
    bench.git(["config", "filter.mine.smudge", &smudge]);
    bench.git(["config", "filter.mine.clean", "sed s/smudged/stored/"]);
    drop(std::fs::remove_file(&witness));
    let manager = bench.manager().await;
    let created = create(&bench, &manager, "agent-a").await;
    bench.repository().await.facts().await.unwrap();
    assert!(!witness.exists());
    let names: Vec<_> = created.filtered.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["x.bin"]);
    // The worker runs the user's filters before its first turn.
    let own = own(&manager, &created.worktree).await;
    own.apply_filters(&created.filtered).await.unwrap();
    let content = std::fs::read_to_string(created.worktree.path.join("x.bin")).unwrap();
    assert_eq!(content, "smudged\n");
    assert!(own.state().await.unwrap().is_unchanged());
}

#[tokio::test]
async fn included_files_are_ignored_ones_that_the_list_names() {
    let bench = Bench::new();
    bench.write(".worktreeinclude", "# local\n.env\nsecret.log\nlink*.log\na.txt\n");
    bench.write(".env", "KEY=1\n");
    bench.write("secret.log", "s\n");
    bench.write("big.log", "not named\n");
    let env = bench.repo.join(".env");
    std::fs::set_permissions(&env, std::fs::Permissions::from_mode(0o600)).unwrap();
    symlink("/etc/passwd", bench.repo.join("link-out.log")).unwrap();
    symlink("secret.log", bench.repo.join("link-in.log")).unwrap();
    let manager = bench.manager().await;
    let created = create(&bench, &manager, "agent-a").await;
    let copied: Vec<_> = created.included.copied.iter().map(ToString::to_string).collect();
    assert_eq!(copied, [".env", "link-in.log", "secret.log"]);
    let [refused] = &created.included.refused[..] else { panic!("{:?}", created.included) };
    assert_eq!(
        (refused.path.to_string().as_str(), refused.why),
        ("link-out.log", IncludeRefused::LinkLeadsOut)
    );
    let mode = created.worktree.path.join(".env").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!created.worktree.path.join("big.log").exists());

    bench.write(".worktreeinclude", "../.ssh\n");
    let result = manager.create(&spec("agent-b", &bench.rev("HEAD"))).await;
    assert!(matches!(result, Err(CreateError::Include(_))), "{result:?}");
    assert!(!manager.path_of(&agent("agent-b")).exists());
}

#[tokio::test]
async fn the_worktree_lock_of_a_dead_process_is_taken_over() {
    let bench = Bench::new();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&heard);
    let progress = Arc::new(move |event| into.lock().unwrap().push(event));
    let home = bench.dir.path().join("home");
    let manager = Manager::with_progress(bench.repository().await, &home, progress);
    let worktree = create(&bench, &manager, "agent-a").await.worktree;
    let me = ProcessStamp::current();
    // The same process number, started at another time.
    let dead = ProcessStamp { start_ticks: me.start_ticks + 1, ..me.clone() };
    manager.mark_in_use(&worktree, &dead).unwrap();
    manager.mark_in_use(&worktree, &me).unwrap();
    let expected = ProgressEvent::TookOver { path: worktree.path.clone(), from: dead };
    assert!(heard.lock().unwrap().contains(&expected));
    let lives = ProcessStamp { pid: 1, start_ticks: start_of_process_1(), boot: me.boot.clone() };
    manager.mark_in_use(&worktree, &lives).unwrap();
    let refused = manager.mark_in_use(&worktree, &me);
    assert!(matches!(refused, Err(MarkError::InUse { .. })), "{refused:?}");
    std::fs::write(worktree.git_dir.join("locked"), "on a stick\n").unwrap();
    let refused = manager.mark_in_use(&worktree, &me);
    assert!(matches!(refused, Err(MarkError::Locked { .. })), "{refused:?}");
}

fn start_of_process_1() -> u64 {
    let stat = std::fs::read_to_string("/proc/1/stat").unwrap();
    let (_, rest) = stat.rsplit_once(')').unwrap();
    rest.split_whitespace().nth(19).unwrap().parse().unwrap()
}

#[tokio::test]
async fn submodules_are_filled_from_local_copies_and_others_are_named() {
    let bench = Bench::new();
    let library = Bench::new();
    let url = library.repo.to_str().unwrap();
    let add = ["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", url];
    git(&bench.repo, &[&add[..], &["lib"]].concat());
    git(&bench.repo, &[&add[..], &["private"]].concat());
    bench.git(["commit", "-q", "-m", "submodules"]);
    std::fs::remove_dir_all(bench.repo.join(".git/modules/private")).unwrap();
    let before = std::fs::read(bench.repo.join(".git/config")).unwrap();
    let manager = bench.manager().await;
    let created = create(&bench, &manager, "agent-a").await;
    let states: Vec<_> = created.submodules.iter().map(|s| (s.path.to_string(), s.filled.clone())).collect();
    assert_eq!(
        states,
        [("lib".to_owned(), SubmoduleFill::Filled), ("private".to_owned(), SubmoduleFill::NoLocalCopy)]
    );
    assert!(created.worktree.path.join("lib/a.txt").exists());
    assert_eq!(std::fs::read(bench.repo.join(".git/config")).unwrap(), before);
    let removal = manager.remove_if_unchanged(&agent("agent-a")).await.unwrap();
    assert_eq!(removal, worktree_manager::Removal::Removed { saved: None });
    bench.fsck();
}

#[tokio::test]
async fn a_sparse_checkout_stays_sparse() {
    let bench = Bench::new();
    bench.write("in/x", "x\n");
    bench.write("out/y", "y\n");
    bench.git(["add", "."]);
    bench.git(["commit", "-q", "-m", "dirs"]);
    bench.git(["sparse-checkout", "set", "in"]);
    let repository = bench.repository().await;
    assert!(repository.facts().await.unwrap().sparse);
    let manager = bench.manager().await;
    let created = create(&bench, &manager, "agent-a").await;
    assert!(created.worktree.path.join("in/x").exists());
    assert!(!created.worktree.path.join("out").exists());
    write(&created.worktree.path, "in/x", "changed\n");
    crate::support::finish(&manager, &created.worktree, "sparse work").await;
    let evidence = manager.evidence(&agent("agent-a")).await.unwrap();
    assert_eq!(evidence.stat.files, 1, "{evidence:?}");
}

#[tokio::test]
async fn git_that_is_missing_is_named() {
    let bench = Bench::new();
    let config = GitConfig { program: "/nonexistent/git".into(), ..config() };
    let error = Repository::open_with(&bench.repo, config).await.unwrap_err();
    assert!(error.to_string().contains("is git installed"), "{error}");
}

#[tokio::test]
async fn uncommitted_changes_can_be_carried_over_without_touching_them() {
    let bench = Bench::new();
    bench.write("a.txt", "staged\n");
    bench.git(["add", "a.txt"]);
    bench.write("a.txt", "changed\n");
    bench.write("new", "n\n");
    let status = bench.git(["status", "--porcelain"]);
    let index = std::fs::read(bench.repo.join(".git/index")).unwrap();
    let manager = bench.manager().await;
    let base = manager.repository().snapshot_dirty().await.unwrap();
    assert_eq!(std::fs::read(bench.repo.join(".git/index")).unwrap(), index);
    assert_eq!(bench.git(["status", "--porcelain"]), status);
    let created = manager.create(&spec("agent-a", &base.commit)).await.unwrap();
    let read = |name: &str| std::fs::read_to_string(created.worktree.path.join(name)).unwrap();
    assert_eq!((read("a.txt"), read("new")), ("changed\n".to_owned(), "n\n".to_owned()));
}
