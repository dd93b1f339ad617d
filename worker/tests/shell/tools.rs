//! Ordinary work of a developer, in the sandbox as a worker has it. A tool that is not installed is named and
//! passed over.

use crate::escapes::linked_worktree;
use crate::support::{Fixture, strongest_tier};
use worker::sandbox::{SystemPaths, named_tool_chains, tool_chains};
use worker::shell::{CommandExit, CommandRequest};

/// A worktree of a repository, with the tool chains on the `PATH` readable, as the agent sets it up.
fn worktree() -> Fixture {
    Fixture::on(strongest_tier(), |config| {
        linked_worktree(config);
        let home = std::path::PathBuf::from(std::env::var_os("HOME").unwrap());
        config.policy.system = SystemPaths::with_home(&home);
        let path = std::env::var_os("PATH").unwrap();
        config.policy.system.readable.extend(tool_chains(&path, &home));
        let named = |name: &str| std::env::var(name).ok().map(|place| &*place.leak());
        config.policy.system.readable.extend(named_tool_chains(named, &home));
        config.policy.home = Some(home);
        let git_dir = config.git_dir.clone().unwrap();
        config.policy.protected =
            ["commondir", "config.worktree", "gitdir"].map(|name| git_dir.join(name)).to_vec();
        config.policy.protected.push(config.policy.worktree.join(".git"));
    })
}

fn is_installed(program: &str) -> bool {
    let found =
        std::env::split_paths(&std::env::var_os("PATH").unwrap()).any(|dir| dir.join(program).is_file());
    if !found {
        println!("SKIPPED: {program} is not installed");
    }
    found
}

/// Each command succeeds, and the last one prints `expected`.
async fn works(fixture: &Fixture, commands: &[&str], expected: &str) {
    let mut last = String::new();
    for command in commands {
        let outcome = fixture.request(CommandRequest::new(*command)).await;
        assert_eq!(outcome.exit, CommandExit::Code(0), "{command}: {}", outcome.output.text);
        last = outcome.output.text;
    }
    assert!(last.contains(expected), "{last}");
}

#[tokio::test]
async fn cargo_builds_and_tests_a_crate() {
    if !is_installed("cargo") {
        return;
    }
    let fixture = worktree();
    works(
        &fixture,
        &[
            "cargo new --offline --vcs none --lib sample",
            "cd sample && printf '[profile.dev]\\ndebug = false\\n' >>Cargo.toml && cargo build --offline",
            "cargo test --offline 2>&1",
        ],
        "1 passed",
    )
    .await;
}

#[tokio::test]
async fn npm_installs_a_local_package_and_runs_tests() {
    if !is_installed("npm") {
        return;
    }
    let fixture = worktree();
    let package = r#"{"name": "dep", "version": "1.0.0", "main": "index.js"}"#;
    let root = r#"{"name": "root", "version": "1.0.0", "dependencies": {"dep": "file:dep"},
                   "scripts": {"test": "node -e \"require('dep')()\""}}"#;
    let tree = fixture.tree();
    std::fs::create_dir(tree.join("dep")).unwrap();
    std::fs::write(tree.join("dep/package.json"), package).unwrap();
    std::fs::write(tree.join("dep/index.js"), "module.exports = () => console.log('dep', 'works');\n")
        .unwrap();
    std::fs::write(tree.join("package.json"), root).unwrap();
    works(&fixture, &["npm install --offline 2>&1", "npm test 2>&1"], "dep works").await;
}

#[tokio::test]
async fn python_makes_an_environment_and_runs_tests() {
    if !is_installed("python3") {
        return;
    }
    let fixture = worktree();
    let test = "import unittest, multiprocessing\n\
                def twice(n): return 2 * n\n\
                class T(unittest.TestCase):\n    def test_pool(self):\n        with multiprocessing.Pool(2) as pool: \
                self.assertEqual(pool.map(twice, [1, 2]), [2, 4])\n";
    std::fs::write(fixture.tree().join("test_it.py"), test).unwrap();
    works(&fixture, &["python3 -m venv --without-pip .venv", "./.venv/bin/python -m unittest 2>&1"], "OK")
        .await;
}

#[tokio::test]
async fn make_runs_jobs_beside_each_other() {
    if !is_installed("make") {
        return;
    }
    let fixture = worktree();
    let rules = "all: a b\na b:\n\techo $@ >$@\n.PHONY: all\n";
    std::fs::write(fixture.tree().join("Makefile"), rules).unwrap();
    works(&fixture, &["make -j4", "cat a b"], "a\nb").await;
}

#[tokio::test]
async fn git_commits_stashes_and_rebases() {
    let fixture = worktree();
    works(
        &fixture,
        &[
            "echo two >>file && git commit -qam second && echo three >>file && git commit -qam third",
            "echo dirty >>file && saved=$(git stash create) && git checkout -q -- file && git stash apply -q $saved && \
             git diff --stat && git checkout -q -- file",
            "GIT_SEQUENCE_EDITOR='sed -i 2s/pick/fixup/' git rebase -q -i HEAD~2",
            "git log --format=%s && git status --short && git show HEAD:file",
        ],
        "second\nfirst\none\ntwo\nthree",
    )
    .await;
}

#[tokio::test]
async fn a_server_binds_a_port_on_loopback_and_is_asked() {
    if !is_installed("python3") || strongest_tier() != worker::sandbox::Tier::Namespaces {
        return;
    }
    let fixture = worktree();
    // Both families, a port of a fixed number, and a socket in the file system.
    let test = "import http.server, socket, threading, urllib.request\n\
                server = http.server.HTTPServer(('127.0.0.1', 8080), http.server.SimpleHTTPRequestHandler)\n\
                threading.Thread(target=server.serve_forever, daemon=True).start()\n\
                print(urllib.request.urlopen('http://localhost:8080/file').read())\n\
                six = socket.create_server(('::1', 8080), family=socket.AF_INET6)\n\
                socket.create_connection(('::1', 8080)).close()\n\
                unix = socket.socket(socket.AF_UNIX); unix.bind('s'); unix.listen()\n\
                socket.socket(socket.AF_UNIX).connect('s')\nprint('all', 'answered')\n";
    std::fs::write(fixture.tree().join("serve.py"), test).unwrap();
    works(&fixture, &["python3 serve.py 2>&1"], "all answered").await;
    // The port is its own: a second command at the same time has another loopback.
    let (one, other) = tokio::join!(fixture.render("rm s && python3 serve.py 2>&1"), async {
        fixture.render("python3 -c 'import socket; socket.create_server((\"127.0.0.1\", 8080))'").await
    });
    assert!(one.contains("all answered"), "{one}");
    assert_eq!(other, "exit code 0: ");
}

#[tokio::test]
async fn terminals_caches_and_the_temp_directory_are_there() {
    if strongest_tier() != worker::sandbox::Tier::Namespaces {
        return;
    }
    let fixture = worktree();
    works(
        &fixture,
        &[
            "python3 -c 'import pty; pty.spawn([\"tty\"])' | grep /dev/pts",
            "mkdir -p ~/.cache/x && echo kept >~/.cache/x/file && echo kept >/tmp/file && test -e $TMPDIR/file",
            "cat ~/.cache/x/file /tmp/file; test $HOME = $(cd && pwd -P) && whoami && date >/dev/null",
        ],
        "kept\nkept",
    )
    .await;
}
