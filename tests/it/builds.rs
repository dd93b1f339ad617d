//! Real work in the sandbox: a worker, driven by the script, builds, breaks, mends and tests a crate and an npm package
//! with the tool chains of this machine.

use std::{fs, process::Command};

use integration_tests::{ModelServer, Reply, SwarmHome, TestRepo};
use serde_json::json;

use crate::rig::{Rig, agent, bash, call, prompt};

/// The repository: both packages have a test that the first try of the worker breaks.
fn repository() -> TestRepo {
    TestRepo::with_files(&[
        (".gitignore", "target\nnode_modules\n"),
        (
            "shapes/Cargo.toml",
            "[package]\nname = \"shapes\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[dependencies]\nunits = { path = \"../units\" }\n",
        ),
        (
            "shapes/src/lib.rs",
            "pub fn area(side: u64) -> u64 {\n    side * units::SQUARE\n}\n\n#[cfg(test)]\nmod tests {\n    #[test]\n    \
             fn a_square() {\n        assert_eq!(super::area(3), 9);\n    }\n}\n",
        ),
        ("units/Cargo.toml", "[package]\nname = \"units\"\nversion = \"0.1.0\"\nedition = \"2024\"\n"),
        ("units/src/lib.rs", "pub const SQUARE: u64 = 1;\n"),
        (
            "site/package.json",
            "{\"name\": \"site\", \"version\": \"1.0.0\", \"type\": \"module\", \"dependencies\": {\"words\": \"file:../words\"},\n \
             \"scripts\": {\"test\": \"node --test\"}}\n",
        ),
        (
            "site/title.test.js",
            "import { test } from 'node:test';\nimport assert from 'node:assert';\nimport { title } from './title.js';\n\
             test('a title', () => assert.equal(title('a page'), 'A PAGE'));\n",
        ),
        ("site/title.js", "export const title = (text) => text;\n"),
        (
            "words/package.json",
            "{\"name\": \"words\", \"version\": \"1.0.0\", \"type\": \"module\", \"main\": \"index.js\"}\n",
        ),
        ("words/index.js", "export const loud = (text) => text.toUpperCase();\n"),
    ])
}

/// Where rustup keeps its tool chains, when `cargo` is one of its proxies.
fn rustup_home() -> Option<String> {
    let output = Command::new("rustup").args(["show", "home"]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_builds_and_tests_a_crate_and_an_npm_package() {
    let model = ModelServer::start();
    let mut home = SwarmHome::new(&model);
    if let Some(rustup) = rustup_home() {
        home.set("RUSTUP_HOME", rustup);
    }
    let rig = Rig::made(model, home, repository(), "").await;
    rig.coordinator(Reply::call("Agent", agent("builder")));
    let long = |command: &str| call(("Bash", json!({"command": command, "timeout": 300_000})));
    let edit = |path: &str, old: &str, new: &str| {
        call(("Edit", json!({"file_path": path, "old_string": old, "new_string": new})))
    };
    let read = |path: &str| call(("Read", json!({"file_path": path})));
    rig.model.agent(
        &prompt("builder"),
        [
            long("cd shapes && cargo test --offline 2>&1"),
            read("shapes/src/lib.rs"),
            edit("shapes/src/lib.rs", "side * units", "side * side * units"),
            long("cargo test --offline 2>&1"),
            long("cd ../site && npm install --offline --no-audit --no-fund 2>&1 && npm test 2>&1"),
            read("site/title.js"),
            edit(
                "site/title.js",
                "export const title = (text) => text;",
                "import { loud } from 'words';\nexport const title = (text) => loud(text);",
            ),
            long("npm test 2>&1"),
            call(bash("cd .. && git add -A && git commit -qm 'both pass' && git status --short && git log --format=%s -1")),
            Reply::say("All tests pass."),
        ],
    );
    let task = rig.submit().await;
    let done = rig.done(&task).await;
    let last = rig.model.requests_of(&prompt("builder")).pop().expect("it asked");
    let results: Vec<(&str, bool)> = last.tool_results().map(|(_, text, failed)| (text, failed)).collect();
    let expect = |at: usize, failed: bool, text: &str| {
        assert!(results[at].1 == failed && results[at].0.contains(text), "{at}: {text}\n{results:#?}");
    };
    expect(0, true, "a_square ... FAILED");
    expect(3, false, "1 passed; 0 failed");
    expect(4, true, "A PAGE");
    expect(7, false, "pass 1");
    expect(8, false, "both pass");
    assert_eq!(done["verdict"], "complete", "what it says is borne out by its commands: {done:#}");
    let worker = rig.worker(&task, "builder").await;
    assert_eq!(worker["sandbox_tier"], rig.api().get("/info").await["sandbox_tier"], "{worker:#}");
    assert!(
        rig.at(&worker, "site/package-lock.json").is_some() && rig.at(&worker, "site/node_modules").is_none()
    );
    // Nothing was built where the person works.
    for made in ["shapes/target", "site/node_modules", "shapes/Cargo.lock"] {
        assert!(!fs::exists(rig.repo.path().join(made)).expect("it can be looked at"), "{made}");
    }
}
