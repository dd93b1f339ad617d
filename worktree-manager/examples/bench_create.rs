//! Compares making worktrees with plain `git worktree add`, ways to check out, and two ways to merge
//! on objects. Run: `cargo run --release -p worktree-manager --example bench_create [FILES…]`.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use worktree_manager::{
    AgentId, BranchName, BranchPrefix, CreateSpec, GitConfig, Manager, MergeRequest, Repository, SessionTag,
    Strategy,
};

const ROUNDS: usize = 5;

type Failure = Box<dyn std::error::Error>;

fn git(dir: &Path, args: &[&str]) -> Result<String, Failure> {
    let out = Command::new("git")
        .current_dir(dir)
        .args(["-c", "user.name=a", "-c", "user.email=a@b"])
        .args(args)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()?;
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned().into());
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn timed(mut f: impl FnMut(usize) -> Result<(), Failure>) -> Result<Duration, Failure> {
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let begin = Instant::now();
        f(round)?;
        times.push(begin.elapsed());
    }
    Ok(median(times))
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let sizes: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![1_000, 10_000] } else { sizes };
    for files in sizes {
        let dir = tempfile::tempdir()?;
        let repo = dir.path().join("repo");
        std::fs::create_dir(&repo)?;
        git(&repo, &["init", "-q", "-b", "main"])?;
        for n in 0..files {
            let sub = repo.join(format!("d{:03}", n / 100));
            std::fs::create_dir_all(&sub)?;
            std::fs::write(sub.join(format!("f{n}.txt")), format!("{n}\n").repeat(200))?;
        }
        git(&repo, &["add", "."])?;
        git(&repo, &["commit", "-q", "-m", "first"])?;
        println!("{files} files, median of {ROUNDS}:");
        let at = |name: &str, n: usize| dir.path().join(format!("{name}{n}")).display().to_string();

        let plain = timed(|n| {
            git(&repo, &["worktree", "add", "-q", "-b", &format!("p{n}"), &at("plain", n)]).map(drop)
        })?;
        println!("  git worktree add                     {plain:>10.1?}");
        for (name, args) in [
            ("reset --hard, 1 worker", &["-c", "checkout.workers=1", "reset", "-q", "--hard"][..]),
            ("reset --hard, a worker a processor", &["-c", "checkout.workers=0", "reset", "-q", "--hard"]),
            ("read-tree -m -u, 1 worker", &["-c", "checkout.workers=1", "read-tree", "-m", "-u", "HEAD"]),
            (
                "read-tree -m -u, a worker a processor",
                &["-c", "checkout.workers=0", "read-tree", "-m", "-u", "HEAD"],
            ),
        ] {
            let label: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
            for n in 0..ROUNDS {
                git(&repo, &["worktree", "add", "-q", "--no-checkout", "--detach", &at(&label, n)])?;
            }
            let took = timed(|n| git(Path::new(&at(&label, n)), args).map(drop))?;
            println!("    checkout by {name:<38} {took:>10.1?}");
        }

        let repository = Repository::open_with(&repo, GitConfig::default()).await?;
        let base = repository.resolve_base("HEAD").await?.commit;
        let manager = Manager::new(repository, &dir.path().join("home"));
        let spec = |agent: &str| -> Result<CreateSpec, Failure> {
            Ok(CreateSpec {
                agent: AgentId::parse(agent)?,
                session: SessionTag::parse("00000001")?,
                description: "bench".to_owned(),
                prefix: BranchPrefix::default(),
                base: base.clone(),
            })
        };
        let mut times = Vec::new();
        for n in 0..ROUNDS {
            let spec = spec(&format!("one-{n}"))?;
            let begin = Instant::now();
            manager.create(&spec).await?;
            times.push(begin.elapsed());
        }
        println!("  Manager::create                      {:>10.1?}", median(times));
        let begin = Instant::now();
        let mut all = tokio::task::JoinSet::new();
        for n in 0..8 {
            let (manager, spec) = (manager.clone(), spec(&format!("many-{n}"))?);
            all.spawn(async move { manager.create(&spec).await.map(drop) });
        }
        for result in all.join_all().await {
            result?;
        }
        println!("  Manager::create, 8 at once, each     {:>10.1?}", begin.elapsed() / 8);

        // Two branches that change different files.
        git(&repo, &["checkout", "-q", "-b", "theirs"])?;
        std::fs::write(repo.join("d000/f1.txt"), "theirs\n")?;
        git(&repo, &["commit", "-q", "-am", "theirs"])?;
        git(&repo, &["checkout", "-q", "main"])?;
        std::fs::write(repo.join("d000/f2.txt"), "ours\n")?;
        git(&repo, &["commit", "-q", "-am", "ours"])?;
        let by_git = timed(|_| git(&repo, &["merge-tree", "--write-tree", "main", "theirs"]).map(drop))?;
        println!("  trial by git merge-tree              {by_git:>10.1?}");
        let by_libgit2 = timed(|_| {
            let repo = git2::Repository::open(&repo)?;
            let tree = |name: &str| repo.revparse_single(name)?.peel_to_tree();
            let (a, b) = (repo.revparse_single("main")?.id(), repo.revparse_single("theirs")?.id());
            let base = repo.find_commit(repo.merge_base(a, b)?)?.tree()?;
            let mut index = repo.merge_trees(&base, &tree("main")?, &tree("theirs")?, None)?;
            index.write_tree_to(&repo)?;
            Ok(())
        })?;
        println!("  trial by libgit2 merge_trees         {by_libgit2:>10.1?}");
        let request = MergeRequest {
            branch: BranchName::parse("theirs")?,
            into: BranchName::parse("main")?,
            strategy: Strategy::default(),
            message: None,
        };
        let begin = Instant::now();
        let _merged = manager.merge(&request, None).await?;
        println!("  Manager::merge into a checkout       {:>10.1?}\n", begin.elapsed());
    }
    Ok(())
}
