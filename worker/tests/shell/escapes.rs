//! Ways out of tier 2, each tried by a real process.

use crate::support::{Fixture, Stranger, has};
use nix::libc;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Command;
use worker::sandbox::{Network, Tier, WriteScope};
use worker::shell::{CommandExit, ShellConfig};

/// The commands fail, all with a refusal.
async fn refused(fixture: &Fixture, commands: &[&str]) {
    for command in commands {
        let outcome = fixture.outcome(command).await;
        let text = &outcome.output.text;
        let is_refusal = ["ermission denied", "not permitted", "insufficient permission", "cross-device"]
            .iter()
            .any(|words| text.contains(words));
        assert!(outcome.exit != CommandExit::Code(0) && is_refusal, "{command}: {outcome:?}");
    }
}

/// The commands succeed.
async fn allowed(fixture: &Fixture, commands: &[&str]) {
    for command in commands {
        let outcome = fixture.outcome(command).await;
        assert_eq!(outcome.exit, CommandExit::Code(0), "{command}: {outcome:?}");
    }
}

/// A raw system call that says what the kernel answered.
fn syscall(number: libc::c_long, arguments: &str) -> String {
    format!("perl -e 'exit 0 if syscall({number}, {arguments}) >= 0; print \"$!\\n\"; exit 1'")
}

#[tokio::test]
async fn writes_stay_inside() {
    if !has(Tier::Landlock) {
        return;
    }
    let fixture = Fixture::on(Tier::Landlock, |_| {});
    std::fs::write(fixture.root().join("outside/file"), "kept").unwrap();
    std::os::unix::fs::symlink(fixture.root().join("outside"), fixture.tree().join("link")).unwrap();
    allowed(
        &fixture,
        &[
            "echo x >file && mkdir -p a/b && mv file a/b && ln a/b/file c && ln -s c d && rm c",
            "echo x >$TMPDIR/file && mv $TMPDIR/file . && mkfifo p",
            "echo x >/dev/null && head -c 4 /dev/urandom >/dev/null",
            "diff <(echo 1) <(echo 1)",
        ],
    )
    .await;
    refused(
        &fixture,
        &[
            "echo x >../outside/new",
            "echo x >link/new",
            "echo x >>../outside/file",
            "truncate -s 0 ../outside/file",
            "rm -f ../outside/file",
            "mv ../outside/file .",
            "ln ../outside/file linked",
            "mkdir ../new",
            "mv file ../outside",
            "echo x >/etc/swarm-test",
            "cat ../outside/file",
            "ls ../outside",
            "ls ../output",
        ],
    )
    .await;
    let kept = std::fs::read_to_string(fixture.root().join("outside/file")).unwrap();
    assert_eq!(kept, "kept");
}

#[tokio::test]
async fn a_read_only_shell_writes_its_temp_directory_alone() {
    if !has(Tier::Landlock) {
        return;
    }
    let fixture = Fixture::on(Tier::Landlock, |config| config.policy.write_scope = WriteScope::ReadOnly);
    std::fs::write(fixture.tree().join("file"), "text").unwrap();
    allowed(&fixture, &["cat file", "echo x >$TMPDIR/x", "cd / && cd -"]).await;
    refused(&fixture, &["echo x >file", "rm file", "mkdir d", "touch /dev/shm/swarm-test"]).await;
}

#[tokio::test]
async fn credentials_cannot_be_read() {
    if !has(Tier::Landlock) {
        return;
    }
    let fixture = Fixture::on(Tier::Landlock, |config| {
        let home = config.policy.worktree.parent().unwrap().join("home");
        for (name, text) in [
            (".ssh/id_ed25519", "key"),
            (".aws/credentials", "key"),
            (".swarm/config.toml", "key"),
            (".cargo/credentials.toml", "key"),
            (".cargo/bin/tool", "tool"),
            (".gitconfig", "[user]\n\tname = N\n"),
        ] {
            let path = home.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        config.policy.system = worker::sandbox::SystemPaths::with_home(&home);
        config.environment.set("HOME", &home);
    });
    allowed(&fixture, &["cat ~/.cargo/bin/tool", "test $(git config user.name) = N"]).await;
    refused(
        &fixture,
        &[
            "cat ~/.ssh/id_ed25519",
            "ls ~/.ssh",
            "cat ~/.aws/credentials",
            "cat ~/.swarm/config.toml",
            "cat ~/.cargo/credentials.toml",
            "cat /etc/shadow",
        ],
    )
    .await;
}

#[tokio::test]
async fn sockets_are_refused() {
    if !has(Tier::Landlock) {
        return;
    }
    let fixture = Fixture::on(Tier::Landlock, |_| {});
    let name = format!("swarm-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let connect = format!(
        "perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0) or die $!; \
         connect(S, pack(\"S a*\", AF_UNIX, \"\\0{name}\")) or die $!'"
    );
    let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET];
    for family in families {
        refused(&fixture, &[&syscall(libc::SYS_socket, &format!("{family}, 1, 0"))]).await;
    }
    refused(&fixture, &[&connect, "exec 3<>/dev/tcp/127.0.0.1/1"]).await;
    for kind in ["SOCK_STREAM", "SOCK_SEQPACKET"] {
        let pair = format!("perl -MSocket -e 'socketpair(A, B, AF_UNIX, {kind}, 0) or die $!'");
        allowed(&fixture, &[&pair]).await;
    }
    refused(&fixture, &["perl -MSocket -e 'socketpair(A, B, AF_UNIX, SOCK_DGRAM, 0) or die $!'"]).await;

    let fixture = Fixture::on(Tier::Landlock, |config| config.policy.network = Network::On);
    allowed(&fixture, &[&syscall(libc::SYS_socket, "2, 1, 0"), &syscall(libc::SYS_socket, "16, 3, 0")]).await;
    refused(
        &fixture,
        &[&connect, &syscall(libc::SYS_socket, "17, 3, 0"), &syscall(libc::SYS_socket, "38, 5, 0")],
    )
    .await;
}

#[tokio::test]
async fn dangerous_calls_are_refused() {
    if !has(Tier::Landlock) {
        return;
    }
    let fixture = Fixture::on(Tier::Landlock, |_| {});
    for (number, arguments) in [
        (libc::SYS_io_uring_setup, "1, 0"),
        (libc::SYS_ptrace, "16, 1, 0, 0"),
        (libc::SYS_process_vm_readv, "1, 0, 0, 0, 0, 0"),
        (libc::SYS_unshare, "0x10000000"),
        (libc::SYS_unshare, "0x00020000"),
        (libc::SYS_clone, "0x10000011, 0, 0, 0, 0"),
        (libc::SYS_setns, "0, 0"),
        (libc::SYS_mount, "0, 0, 0, 0, 0"),
        (libc::SYS_fsopen, "0, 0"),
        (libc::SYS_chroot, "0"),
        (libc::SYS_keyctl, "0, 0, 0, 0, 0"),
        (libc::SYS_bpf, "0, 0, 0"),
        (libc::SYS_perf_event_open, "0, 0, 0, 0, 0"),
        (libc::SYS_userfaultfd, "1"),
        (libc::SYS_open_by_handle_at, "0, 0, 0"),
        (libc::SYS_init_module, "0, 0, 0"),
        (libc::SYS_reboot, "0, 0, 0, 0"),
        (libc::SYS_ioctl, "0, 0x5412, 0"),
    ] {
        refused(&fixture, &[&syscall(number, arguments)]).await;
    }
    refused(&fixture, &["unshare -Ur true", "unshare -n true"]).await;
    let text = fixture.render(&syscall(libc::SYS_clone3, "0, 0")).await;
    assert!(text.contains("Function not implemented"), "{text}");
    // A call by its x32 number: the filter's other door.
    #[cfg(target_arch = "x86_64")]
    {
        let x32 = syscall(0x4000_0000 + libc::SYS_getpid, "0");
        let text = fixture.render(&x32).await;
        assert!(text.contains("SIGSYS"), "{text}");
    }
    // Threads, processes and a namespace-less unshare go on.
    allowed(&fixture, &["true | cat & wait", &syscall(libc::SYS_unshare, "0x200")]).await;
}

#[tokio::test]
async fn processes_outside_are_out_of_reach() {
    if !has(Tier::Landlock) {
        return;
    }
    let fixture = Fixture::on(Tier::Landlock, |_| {});
    let stranger = Stranger::new();
    let pid = stranger.pid();
    refused(&fixture, &[&format!("kill -9 {pid}"), "kill -9 $PPID", &format!("cat /proc/{pid}/environ")])
        .await;
    allowed(&fixture, &["sleep 1000 & kill $!; wait $! || true"]).await;
    assert!(stranger.is_alive());
}

#[tokio::test]
async fn a_command_gets_three_descriptors_and_no_core() {
    let fixture = Fixture::on(Tier::Landlock, |_| {});
    assert_eq!(
        fixture.render("echo /proc/self/fd/*; ulimit -c").await,
        "exit code 0: /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 /proc/self/fd/3\n0"
    );
    let fixture = Fixture::on(Tier::Landlock, |config| {
        config.policy.limits.open_files = Some(64);
        config.policy.limits.address_space_bytes = Some(1 << 30);
    });
    assert_eq!(fixture.render("ulimit -n; ulimit -v").await, "exit code 0: 64\n1048576");
}

pub(crate) fn git(dir: &std::path::Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=N", "-c", "user.email=e@x", "-c", "init.defaultBranch=main"])
        .args(arguments)
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .unwrap();
    assert!(output.status.success(), "git {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A linked worktree whose commands may write its own git directory and a quarantine for objects.
pub(crate) fn linked_worktree(config: &mut ShellConfig) {
    let root = config.policy.worktree.parent().unwrap().to_owned();
    let main = root.join("main");
    std::fs::create_dir(&main).unwrap();
    std::fs::write(main.join("file"), "one\n").unwrap();
    git(&main, &["init", "-q"]);
    git(&main, &["add", "."]);
    git(&main, &["commit", "-qm", "first"]);
    let tree = config.policy.worktree.to_str().unwrap();
    git(&main, &["worktree", "add", "-q", "--detach", tree]);
    let common = main.join(".git");
    let own = common.join("worktrees/tree");
    let quarantine = own.join("quarantine");
    std::fs::create_dir(&quarantine).unwrap();
    config
        .environment
        .set("GIT_OBJECT_DIRECTORY", &quarantine)
        .set("GIT_ALTERNATE_OBJECT_DIRECTORIES", common.join("objects"))
        .set("GIT_CONFIG_GLOBAL", "/dev/null")
        .set("GIT_AUTHOR_NAME", "N")
        .set("GIT_AUTHOR_EMAIL", "e@x")
        .set("GIT_COMMITTER_NAME", "N")
        .set("GIT_COMMITTER_EMAIL", "e@x");
    config.policy.readable.push(common);
    config.policy.writable.push(own.clone());
    config.git_dir = Some(own);
}

#[tokio::test]
async fn git_commits_into_its_quarantine_and_nowhere_else() {
    let fixture = Fixture::on(Tier::Landlock, linked_worktree);
    let main = fixture.root().join("main");
    let before = git(&main, &["count-objects"]);
    let text = fixture
        .render("echo two >>file && git add file && git commit -qm second && echo x >new && git stash -qu 2>&1; git status --short; git log --format=%s")
        .await;
    assert!(text.ends_with("second\nfirst"), "{text}");
    assert_eq!(git(&main, &["count-objects"]), before);
    assert_eq!(git(&main, &["log", "--format=%s", "main"]), "first");
    let quarantine = main.join(".git/worktrees/tree/quarantine");
    assert!(quarantine.read_dir().unwrap().count() >= 3);
    if !has(Tier::Landlock) {
        return;
    }
    refused(
        &fixture,
        &[
            "git branch stolen",
            "git update-ref refs/heads/main HEAD",
            "git config core.hooksPath x",
            "echo x >$(git rev-parse --git-common-dir)/hooks/post-commit",
            "rm -rf $(git rev-parse --git-common-dir)/objects",
            "echo x | GIT_OBJECT_DIRECTORY=$GIT_ALTERNATE_OBJECT_DIRECTORIES git hash-object -w --stdin",
        ],
    )
    .await;
    assert_eq!(git(&main, &["cat-file", "-p", "main:file"]), "one");
}
