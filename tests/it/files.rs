//! The file tools in a worker that runs: what a model gets when it reads, edits and searches the files that users have.

use integration_tests::{Reply, TestRepo};
use serde_json::{Value, json};

use crate::{
    rig::{PIXEL, Rig, Task, agent, bash, call, prompt},
    streaming::Told,
};

/// A worker on a repository with these files, which makes these calls one after another.
async fn told(files: &[(&str, &[u8])], calls: impl IntoIterator<Item = (&'static str, Value)>) -> Told {
    let repo = TestRepo::new();
    for (path, content) in files {
        repo.write(path, content);
    }
    repo.commit("files to work on");
    let replies = calls.into_iter().map(call).chain([Reply::say("Done.")]);
    let told = Told::in_rig(Rig::of(repo, "").await, replies).await;
    told.assert_completed();
    told
}

fn read(path: &str) -> (&'static str, Value) {
    ("Read", json!({"file_path": path}))
}

fn edit(path: &str, old: &str, new: &str) -> (&'static str, Value) {
    ("Edit", json!({"file_path": path, "old_string": old, "new_string": new}))
}

fn grep(more: Value) -> (&'static str, Value) {
    ("Grep", more)
}

#[track_caller]
fn says(result: &(String, bool), is_error: bool, words: &str) {
    assert!(result.0.contains(words), "{words:?} is not in {:?}", result.0);
    assert_eq!(result.1, is_error, "{}", result.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn e01_e04_line_ends_and_a_byte_order_mark_survive_a_worker() {
    let told = told(
        &[("f.txt", b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n"), ("w.txt", b"a\r\nb\r\n")],
        [
            read("f.txt"),
            edit("f.txt", "one\ntwo", "1\n2"),
            read("w.txt"),
            ("Write", json!({"file_path": "w.txt", "content": "x\ny\n"})),
        ],
    )
    .await;
    assert_eq!(told.file("f.txt").as_deref(), Some("\u{feff}1\r\n2\r\nthree\r\n"));
    assert_eq!(told.file("w.txt").as_deref(), Some("x\r\ny\r\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn e05_e07_typography_of_a_file_survives_a_model_that_types_plainly() {
    let told = told(
        &[("f.md", "It\u{2019}s \u{201c}ten\u{201d}\u{a0}km.\n".as_bytes())],
        [read("f.md"), edit("f.md", "It's \"ten\" km", "It's \"two\" km")],
    )
    .await;
    assert_eq!(told.file("f.md").as_deref(), Some("It\u{2019}s \u{201c}two\u{201d}\u{a0}km.\n"));
    says(
        &told.results()[1],
        false,
        "U+2019 for U+0027, U+201C for U+0022, U+201D for U+0022, U+00A0 for U+0020",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn e10_e11_what_a_command_changed_meanwhile_is_compared_by_content() {
    let told = told(
        &[("f.txt", b"1\n2\n3\n4\n5\n6\n7\n8\n9\nten\n")],
        [
            read("f.txt"),
            bash("touch f.txt"),
            edit("f.txt", "ten", "10"),
            bash("sed -i 's/^1$/one/' f.txt"),
            edit("f.txt", "10", "TEN"),
            bash("sed -i 's/^9$/nine/' f.txt"),
            edit("f.txt", "TEN", "lost"),
        ],
    )
    .await;
    let results = told.results();
    says(&results[2], false, "was edited");
    says(
        &results[4],
        false,
        "In another place it was changed on disk since you read it:\n@@ line 1 @@\n-1\n+one",
    );
    says(&results[6], true, "@@ line 9 @@\n-9\n+nine");
    assert_eq!(told.file("f.txt").as_deref(), Some("one\n2\n3\n4\n5\n6\n7\n8\nnine\nTEN\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn e16_e17_long_lines_reach_the_model_in_pieces() {
    let line = format!("{}NEEDLE{}", "x".repeat(150_000), "y".repeat(49_994));
    let told = told(
        &[("min.js", line.as_bytes())],
        [
            read("min.js"),
            ("Read", json!({"file_path": "min.js", "offset": 1, "limit": 1, "column": 149_999})),
            grep(json!({"pattern": "NEEDLE", "output_mode": "content"})),
        ],
    )
    .await;
    let results = told.results();
    says(
        &results[0],
        false,
        "[line 1 has 200000 characters, 1 to 2000 are shown; go on with offset 1, limit 1, column 2001]",
    );
    says(&results[1], false, "     1\txxNEEDLEyy");
    says(&results[2], false, "xxNEEDLEyy");
    assert!(results[0].0.len() < 3_000 && results[2].0.len() < 1_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn e20_e22_logs_with_a_nul_and_named_pipes_hold_no_worker_up() {
    let told = told(
        &[("plain.txt", b"zebra\n")],
        [
            bash("mkfifo pipe; { yes filler | head -c 2000000; printf '\\0\\nzebra\\n'; } > big.log"),
            grep(json!({"pattern": "zebra"})),
            grep(json!({"pattern": "zebra", "text": true, "output_mode": "content"})),
            read("pipe"),
            grep(json!({"pattern": "zebra", "path": "pipe"})),
            bash("rm pipe big.log"),
        ],
    )
    .await;
    let results = told.results();
    says(&results[1], false, "plain.txt\n\n[big.log: binary after byte 2000000");
    says(&results[2], false, "big.log:285716:zebra");
    says(&results[3], true, "is a named pipe");
    says(&results[4], true, "is a named pipe");
}

#[tokio::test(flavor = "multi_thread")]
async fn e13_e14_e23_links_modes_and_white_space_survive_a_worker() {
    let told = told(
        &[("Makefile", b"all:\n\tcc x\n"), ("run.sh", b"#!/bin/sh\necho a")],
        [
            bash("chmod 755 run.sh; ln -s run.sh link; ln Makefile twin"),
            read("link"),
            edit("link", "echo a\n", "echo b\n"),
            read("Makefile"),
            edit("Makefile", "    cc x", "    cc -O2 x"),
            bash("cat twin; stat -c %a run.sh; readlink link"),
        ],
    )
    .await;
    says(&told.results()[5], false, "all:\n\tcc -O2 x\n755\nrun.sh");
    assert_eq!(told.file("run.sh").as_deref(), Some("#!/bin/sh\necho b"));
    assert_eq!(told.file("link").as_deref(), Some("run.sh"));
}

#[tokio::test(flavor = "multi_thread")]
async fn pictures_and_cells_of_notebooks_reach_the_model_and_one_cell_is_changed() {
    let notebook = format!(
        "{{\n \"cells\": [\n  {{\n   \"cell_type\": \"code\",\n   \"execution_count\": 1,\n   \"id\": \"c1\",\n   \"metadata\": {{}},\n   \"outputs\": [{{\"output_type\": \"display_data\", \"metadata\": {{}}, \"data\": {{\"image/png\": \"{PIXEL}\"}}}}],\n   \"source\": [\"draw()\"]\n  }}\n ],\n \"metadata\": {{\"x\": 1.10}},\n \"nbformat\": 4,\n \"nbformat_minor\": 5\n}}\n"
    );
    let told = told(
        &[("n.ipynb", notebook.as_bytes())],
        [
            bash(&format!("echo {PIXEL} | base64 -d > p.png")),
            read("p.png"),
            read("n.ipynb"),
            ("NotebookEdit", json!({"notebook_path": "n.ipynb", "cell_id": "c1", "new_source": "draw(2)"})),
        ],
    )
    .await;
    says(&told.results()[1], false, "[p.png: PNG, 1 x 1 pixels]");
    says(&told.results()[2], false, "[cell 1, code, id c1]\ndraw()\n[output of cell 1]");
    let last = told.requests().pop().expect("it asked").json.to_string();
    assert_eq!(
        last.matches(PIXEL).count() - last.matches(&format!("echo {PIXEL}")).count(),
        2,
        "both pictures"
    );
    let after = told.file("n.ipynb").expect("it was changed");
    assert!(after.ends_with("\"outputs\": [],\n   \"source\": [\n    \"draw(2)\"\n   ]\n  }\n ],\n \"metadata\": {\"x\": 1.10},\n \"nbformat\": 4,\n \"nbformat_minor\": 5\n}\n"), "{after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_deny_rule_hides_is_found_by_no_tool() {
    let told = told(
        &[
            (".claude/settings.json", br#"{"permissions": {"deny": ["Read(./secrets/**)"]}}"#),
            ("secrets/key.txt", b"zebra\n"),
            ("open.txt", b"zebra\n"),
        ],
        [
            grep(json!({"pattern": "zebra"})),
            ("Glob", json!({"pattern": "**/*.txt"})),
            grep(json!({"pattern": "zebra", "path": "secrets"})),
            read("secrets/key.txt"),
            bash("ln -s secrets way"),
            grep(json!({"pattern": "zebra", "path": "way"})),
        ],
    )
    .await;
    let results = told.results();
    assert_eq!(results[0], ("open.txt\n".to_owned(), false));
    assert_eq!(results[1], ("open.txt\n".to_owned(), false));
    for refused in [2, 3, 5] {
        assert!(results[refused].1 && !results[refused].0.contains("zebra"), "{:?}", results[refused]);
    }
}

/// A worker that names a text which is only nearly in the file.
fn nearly(rig: &Rig) {
    rig.coordinator(Reply::call("Agent", agent("w")));
    rig.model.agent(
        &prompt("w"),
        [
            call(read("f.rs")),
            call(edit("f.rs", "let total = compute(prices, amount);", "let total = 0;")),
            Reply::say("Done."),
        ],
    );
}

async fn changed(rig: &Rig, task: &Task) -> (Option<String>, (String, bool)) {
    rig.done(task).await;
    let worker = rig.worker(task, "w").await;
    let last = rig.model.requests_of(&prompt("w")).pop().expect("it asked");
    let result = last.tool_results().last().map(|(_, text, is_error)| (text.to_owned(), is_error));
    let file = worker["branch"].as_str().and_then(|_| rig.at(&worker, "f.rs"));
    (file, result.expect("it has results"))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_of_what_is_only_alike_is_a_persons_to_allow_and_an_error_without_one() {
    let repo = || {
        let repo = TestRepo::new();
        repo.write("f.rs", "let total = compute(price, amount);\n");
        repo.commit("a file");
        repo
    };
    let rig = Rig::of(repo(), "").await;
    nearly(&rig);
    let task = rig.submit().await;
    let request = rig.permission_request(&task).await;
    let input = &request["request"]["input"];
    assert_eq!(input["old_string"], "let total = compute(prices, amount);");
    assert_eq!(input["stands_in_the_file"], "let total = compute(price, amount);");
    rig.answer(&request, &json!({"decision": "allow"})).await;
    let (file, result) = changed(&rig, &task).await;
    says(&result, false, "A person agreed to replace what stands in line 1 (98 % alike)");
    assert_eq!(file.as_deref(), Some("let total = 0;\n"));

    let rig = Rig::of(repo(), "").await;
    nearly(&rig);
    let task = rig.submit_with(json!({"unattended": true})).await;
    let (file, result) = changed(&rig, &task).await;
    says(
        &result,
        true,
        "Nearest is what stands in line 1 (98 % alike):\nlet total = compute(price, amount);",
    );
    assert_eq!(file, None, "nothing was changed");
}
