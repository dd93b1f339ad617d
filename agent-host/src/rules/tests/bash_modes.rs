//! What mode, sandbox and kind of agent make of a command that no rule decides.

use super::*;

#[test]
fn p38_in_plan_mode_nothing_is_changed() {
    let rules = ["allow Edit", "allow Bash", "allow Bash(npm test*)", "allow mcp__x", "ask Bash(cat c)"];
    let open = agent(&rules).mode(PermissionMode::Plan);
    let mut confined = agent(&rules).mode(PermissionMode::Plan).sandboxed();
    confined.sandbox.is_read_only = true;
    for agent in [&open, &confined] {
        for path in
            ["src/lib.rs", "new", "/elsewhere", ".claude/settings.json", ".claude/plans", "link-out/x.md"]
        {
            assert_eq!(agent.path("Edit", path), RuleBehavior::Deny, "{path}");
            assert_eq!(agent.path("Write", path), RuleBehavior::Deny, "{path}");
        }
        for path in [".claude/plans/a/b.md", ".claude/plans/../x.md", "src/../.claude/plans/x.rs"] {
            assert_eq!(agent.path("Write", path), RuleBehavior::Deny, "{path}");
        }
        assert_eq!(agent.path("Write", ".claude/plans/first.md"), RuleBehavior::Allow);
        assert_eq!(agent.path("Read", "src/lib.rs"), RuleBehavior::Allow);
        let tool = |name: &str, reads| agent.answer(name, Subject::Name(String::new()), reads).behavior;
        assert_eq!(
            (tool("mcp__x__y", false), tool("TodoWrite", true)),
            (RuleBehavior::Deny, RuleBehavior::Allow)
        );
        for command in [
            "echo a > f",
            "cat f > src/lib.rs",
            "tee f",
            "touch f",
            "rm f",
            "sed -i s/a/b/ f",
            "cp a b",
            "git push",
            "git config user.name x",
            "PATH=. ls",
            "sh -c 'echo a > f'",
            "find . -exec touch {} +",
        ] {
            agent.denies(command);
        }
        for command in ["ls -la", "git status && git diff", "grep -rn x src | head", "cat src/lib.rs"] {
            agent.allows(command);
        }
        agent.asks("cat c");
    }
    for command in ["cat > f <<E\nE", "python -c 'open(\"x\",\"w\")'", "npm test", "make", "ls $(touch x)"] {
        open.denies(command);
    }
    // Where nothing can be written, what is understood may run and a person may be asked of the rest.
    confined.allows("python -c 'open(\"x\",\"w\")'");
    confined.allows("npm test");
    confined.asks("cat > f <<E\nE");
    let mut agent = agent(&["deny Bash(npm *)"]).mode(PermissionMode::Plan);
    agent.unattended = true;
    agent.denies("npm test");
    agent.denies("cargo build");
    agent.allows("ls");
}

#[test]
fn p37_p38_an_agent_without_worktree_cannot_write() {
    let mut agent = agent(&["allow Edit", "allow Bash"]);
    agent.isolation = Isolation::None;
    assert_eq!(agent.path("Edit", "src/lib.rs"), RuleBehavior::Deny);
    assert_eq!(agent.path("Read", "src/lib.rs"), RuleBehavior::Allow);
    agent.denies("touch x");
    agent.denies("python -c 'open(\"x\",\"w\")'");
    agent.denies("cat > f <<E\nE");
    agent.allows("cat src/lib.rs");
    agent.mode = PermissionMode::BypassPermissions;
    agent.denies("touch x");
    agent.mode = PermissionMode::AcceptEdits;
    agent.sandbox = SandboxState { is_read_only: true, ..ENFORCING };
    agent.allows("python -c 'print(1)'");
    assert_eq!(agent.path("Write", "x"), RuleBehavior::Deny);
}

#[test]
fn bypass_keeps_deny_rules_ask_rules_and_critical_paths() {
    let agent = agent(&["deny Bash(curl *)", "ask Bash(git push *)"]).mode(PermissionMode::BypassPermissions);
    agent.allows("sudo ls");
    agent.allows("git reset --hard");
    agent.denies("curl x");
    agent.asks("git push origin");
    agent.asks("rm -rf /");
    agent.asks("rm -rf .git");
    agent.asks("echo $(curl x)");
    super::agent(&[]).mode(PermissionMode::BypassPermissions).allows("echo $(date)");
}

#[test]
fn unattended_refuses_what_would_ask_and_says_why() {
    let mut agent = agent(&[]);
    agent.unattended = true;
    let answer = agent.bash("git push");
    assert_eq!(answer.behavior, RuleBehavior::Deny);
    assert_eq!(
        answer.by.because(),
        "it changes a repository that others use, and the task is unattended: nobody can be asked"
    );
}

#[test]
fn without_a_sandbox_only_rules_and_the_read_only_set_pass() {
    let agent = agent(&[]);
    agent.asks("cargo test");
    agent.asks("touch x");
    agent.allows("ls -la && git status | head -3");
    agent.allows("cd src && ls");
    agent.asks("cd .. && ls");
}

#[test]
fn the_sandbox_lets_clean_commands_pass_and_the_table_asks() {
    let agent = agent(&["deny Bash(curl *)", "ask Bash(cargo install *)"]).sandboxed();
    agent.allows("cargo test && touch x");
    agent.denies("curl x");
    agent.asks("cargo install x");
    for command in [
        "git push",
        "git reset --hard",
        "git clean -fdx",
        "git checkout .",
        "rm -rf .git",
        "rm -rf .",
        "rm -rf *",
        "rm -rf /",
        "rm -rf ~",
        "rm -rf ..",
        "rm -rf /etc",
        "cd src && rm -rf ../*",
        "sudo ls",
        "kill -9 -1",
        "pkill node",
        "npm publish",
        "cargo publish",
        "twine upload dist/*",
        "dd if=x of=/dev/sda",
        "mkfs.ext4 /dev/sda",
        "chmod -R 777 /",
        "docker run x",
        "tmux kill-server",
        "crontab -e",
        "systemctl stop x",
        "curl-like | sh",
        "echo x > .claude/settings.json",
        "rm .mcp.json",
        "sed -i s/a/b/ .git/config",
        "gh pr create",
        "ssh host",
        "find . -delete",
        "git worktree remove x",
        "git update-ref x y",
        "git gc",
        "git branch -D x",
        "git stash clear",
        "bash -c 'git push'",
        "echo a | xargs git push",
        "rm -rf $X",
    ] {
        agent.asks(command);
    }
    let mut off = agent;
    off.sandbox.auto_allow = false;
    off.asks("cargo test");
}
