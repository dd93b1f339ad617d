//! Rules on paths, hosts, agents and MCP tools.

use RuleBehavior::{Allow, Ask, Deny};

use super::*;

#[test]
fn edits_inside_pass_and_protected_paths_ask() {
    let agent = agent(&[]);
    assert_eq!(agent.path("Edit", "src/lib.rs"), Allow);
    assert_eq!(agent.path("Write", "/w/new/file"), Allow);
    for path in [
        ".git/config",
        ".claude/settings.json",
        "swarm.toml",
        ".mcp.json",
        ".vscode/x",
        "sub/.husky/x",
        ".GIT/x",
    ] {
        assert_eq!(agent.path("Edit", path), Ask, "{path}");
    }
    assert_eq!(agent.path("Read", ".claude/settings.json"), Allow);
    assert_eq!(agent.path("Edit", "/elsewhere/x"), Ask);
    assert_eq!(agent.path("Edit", "../x"), Ask);
    assert_eq!(agent.path("Read", "/elsewhere/x"), Ask);
    assert_eq!(super::agent(&[]).mode(PermissionMode::Default).path("Edit", "src/lib.rs"), Ask);
}

#[test]
fn p22_p23_links_that_lead_out_are_refused() {
    let agent = agent(&["allow Edit(./**)", "allow Read(./**)"]);
    assert_eq!(agent.path("Read", "link-out/etc/passwd"), Deny);
    assert_eq!(agent.path("Write", "link-out/tmp/x"), Deny);
    assert_eq!(agent.path("Write", "dangling"), Deny);
    assert_eq!(agent.path("Write", "alias/lib.rs"), Allow);
    assert_eq!(
        super::agent(&["allow Edit(./**)", "allow Edit(//outside/**)"]).path("Write", "dangling"),
        Deny
    );
    assert_eq!(super::agent(&["deny Edit(src/**)"]).path("Write", "alias/lib.rs"), Deny);
}

#[test]
fn p26_p28_case_composition_and_trailing_slash() {
    let agent = agent(&["deny Read(.env)", "deny Read(~/.aws/)", "deny Read(caf\u{e9})"]);
    for path in [
        ".env",
        ".ENV",
        ".Env",
        "sub/.env",
        "/home/u/.aws/credentials",
        "/home/u/.aws",
        "cafe\u{301}",
        "CAFE\u{301}",
    ] {
        assert_eq!(agent.path("Read", path), Deny, "{path}");
        assert_eq!(agent.path("Grep", path), Deny, "{path}");
        assert_eq!(agent.path("Edit", path), Deny, "{path}");
    }
    assert_eq!(agent.path("Read", ".env.example"), Allow);
    agent.denies("cat ~/.aws/credentials");
}

#[test]
fn anchors() {
    assert_eq!(agent(&["deny Read(//etc/**)"]).path("Read", "/etc/passwd"), Deny);
    assert_eq!(agent(&["deny Read(/secret)"]).path("Read", "/p/secret"), Deny);
    assert_eq!(agent(&["deny Read(/secret)"]).path("Read", "secret"), Deny);
    assert_eq!(agent(&["deny Read(/secret)"]).path("Read", "sub/secret"), Allow);
    assert_eq!(agent(&["deny Read(secret/**)"]).path("Read", "sub/secret/x"), Deny);
    assert_eq!(agent(&["deny Read(secret/**)"]).path("Glob", "secret"), Deny);
    assert_eq!(agent(&["allow Read(//opt/x/**)"]).path("Read", "/opt/x/y"), Allow);
    assert_eq!(agent(&["allow Read(../docs/**)"]).path("Read", "/docs/y"), Allow);
    assert_eq!(agent(&["allow Read(~/.zshrc)"]).path("Read", "/home/u/.zshrc"), Allow);
    // An allow rule is taken narrowly, by case and by depth.
    let allow = agent(&["allow Edit(src/**)"]).mode(PermissionMode::Default);
    assert_eq!(allow.path("Edit", "src/a/b.rs"), Allow);
    assert_eq!(allow.path("Edit", "sub/src/a.rs"), Ask);
    assert_eq!(allow.path("Edit", "SRC/a.rs"), Ask);
    assert_eq!(agent(&["allow Edit"]).path("Edit", "/elsewhere/x"), Ask);
}

#[test]
fn deny_beats_ask_beats_allow() {
    let rules = ["allow Edit(src/**)", "ask Edit(src/a/**)", "deny Edit(src/a/b)"];
    let agent = agent(&rules);
    assert_eq!(agent.path("Edit", "src/x"), Allow);
    assert_eq!(agent.path("Edit", "src/a/x"), Ask);
    assert_eq!(agent.path("NotebookEdit", "src/a/b"), Deny);
    assert_eq!(super::agent(&["ask Read", "deny Read(x)"]).path("Read", "x"), Deny);
    assert_eq!(super::agent(&["ask Read", "allow Read(x)"]).path("Read", "x"), Ask);
}

#[test]
fn hosts_agents_and_mcp_tools() {
    let agent = agent(&[
        "allow WebFetch(domain:example.com)",
        "allow WebFetch(domain:*.docs.rs)",
        "deny Agent(Explore)",
        "allow mcp__github__get_*",
        "deny mcp__evil",
        "ask Tool(mode:*fast*)",
    ]);
    let host = |host: &str| agent.answer("WebFetch", Subject::Host(host.into()), true).behavior;
    assert_eq!(host("example.com"), Allow);
    assert_eq!(host("EXAMPLE.com."), Allow);
    assert_eq!(host("sub.example.com"), Ask);
    assert_eq!(host("a.docs.rs"), Allow);
    assert_eq!(host("evildocs.rs"), Ask);
    let proposed = |host: &str| agent.answer("WebFetch", Subject::Host(host.into()), true).proposed_rule;
    assert_eq!(proposed("Docs.example.net").as_deref(), Some("WebFetch(domain:docs.example.net)"));
    assert_eq!(proposed("[2606:4700::1]"), None, "no rule can name it");
    let name = |tool: &str, name: &str| agent.answer(tool, Subject::Name(name.into()), true).behavior;
    assert_eq!(name("Agent", "Explore"), Deny);
    assert_eq!(name("Subagent", "Explore"), Deny);
    assert_eq!(name("Agent", "Plan"), Allow);
    let mcp = |tool: &str| agent.answer(tool, Subject::Name(String::new()), false).behavior;
    assert_eq!(mcp("mcp__github__get_issue"), Allow);
    assert_eq!(mcp("mcp__github__create"), Ask);
    assert_eq!(mcp("mcp__evil__x"), Deny);
    assert_eq!(mcp("mcp__evilx__x"), Ask);
}
