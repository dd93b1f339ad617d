use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    time::{Duration, SystemTime},
};

use query_engine::ports::{NoObserver, ToolContext};
use serde_json::json;
use swarm_protocol::{ResultBlock, record::ToolEffect};
use tokio_util::sync::CancellationToken;

use super::*;

/// A directory with the file tools over it.
struct Place {
    dir: tempfile::TempDir,
    files: Arc<Files>,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let visible: Visible = Arc::new(|path| !path.ends_with("hidden.txt"));
        let files = Arc::new(Files::new(root.clone(), root, visible));
        Self { dir, files }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn put(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    async fn call(&self, name: &str, input: Value) -> ToolOutput {
        let tools = [read_only(&self.files), editing(&self.files)].concat();
        let tool = tools.iter().find(|tool| tool.name() == name).unwrap();
        let context = ToolContext {
            tool_use_id: "toolu_1".parse().unwrap(),
            cancel: CancellationToken::new(),
            observer: Arc::new(NoObserver),
        };
        tool.call(input, context).await
    }

    async fn read(&self, name: &str) -> ToolOutput {
        self.call("Read", json!({"file_path": name})).await
    }

    async fn edit(&self, name: &str, old: &str, new: &str, all: bool) -> ToolOutput {
        let input = json!({"file_path": name, "old_string": old, "new_string": new, "replace_all": all});
        self.call("Edit", input).await
    }
}

fn said(output: &ToolOutput) -> &str {
    output.content[0].as_text().expect("words, not a picture")
}

#[track_caller]
fn says(output: &ToolOutput, is_error: bool, words: &str) {
    assert!(said(output).contains(words), "{words:?} is not in {:?}", said(output));
    assert_eq!(output.is_error, is_error, "{}", said(output));
}

#[tokio::test]
async fn edits_keep_the_bytes_nobody_named() {
    // E01, E02, E04, E05, E23: content, old, new, replace all, expected.
    type Case = (&'static [u8], &'static str, &'static str, bool, &'static [u8]);
    let cases: &[Case] = &[
        (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny", false, b"x\r\ny\r\nc\r\n"),
        (b"a\r\nb\r\na\r\nb\r\n", "a\nb", "x\ny", true, b"x\r\ny\r\nx\r\ny\r\n"),
        (b"\xef\xbb\xbfa\r\nb\r\n", "a", "x", false, b"\xef\xbb\xbfx\r\nb\r\n"),
        (b"\xef\xbb\xbfa\r\nb\r\n", "b\n", "", false, b"\xef\xbb\xbfa\r\n"),
        (b"a\r\nb\nc\n", "c", "d\ne", false, b"a\r\nb\nd\ne\n"),
        (b"a\r\nb\nc\n", "a\nb", "x\ny", false, b"x\r\ny\nc\n"),
        (b"say \"hi\"\n", "\"hi\"", "\"ho\"", false, b"say \"ho\"\n"),
        (b"all:\n\tgcc x\n", "\tgcc x", "\tgcc -O2 x", false, b"all:\n\tgcc -O2 x\n"),
        (b"no end", "end", "tail", false, b"no tail"),
        (b"a\n", "a\r\n", "b\r\n", false, b"b\n"),
        (
            "\u{ff08}\u{4f60}\u{ff09}\n".as_bytes(),
            "\u{4f60}",
            "\u{597d}",
            false,
            "\u{ff08}\u{597d}\u{ff09}\n".as_bytes(),
        ),
    ];
    for (content, old, new, all, expected) in cases {
        let place = Place::new();
        let path = place.put("f", content);
        place.read("f").await;
        let output = place.edit("f", old, new, *all).await;
        let got = fs::read(&path).unwrap();
        assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(expected), "{}", said(&output));
    }
}

#[tokio::test]
async fn an_edit_that_does_not_fit_says_where_to_look() {
    let place = Place::new();
    place.put("f", "one\ntwo two\n\u{201c}three\u{201d}\n    four\ncalculate(total, rate)\n");
    says(&place.edit("f", "one", "1", false).await, true, "has not been read yet");
    place.read("f").await;
    let check = async |old: &str, words: &str| says(&place.edit("f", old, "x", false).await, true, words);
    check("two", "stands 2 times in f, at lines 2, 2").await;
    check("\"three\"", "Line 3 and what follows differ from it only in white space or quotes").await;
    check("\"three\"", "the file has U+201C where old_string has U+0022").await;
    check("\tfour", "Line 4").await;
    check("calculate(total, rates)", "The most similar line is 5").await;
    check("zebra", "Nothing like it").await;
    check("", "old_string is empty").await;
    check("x", "equal").await;
    says(&place.edit("none", "a", "b", false).await, true, "does not exist");
    says(&place.edit("hidden.txt", "a", "b", false).await, true, "does not exist");
    place.put("latin", b"caf\xe9\n");
    says(&place.read("latin").await, false, "not UTF-8");
    says(&place.edit("latin", "caf", "x", false).await, true, "not UTF-8");
    let output = place.edit("f", "one", "1", false).await;
    assert_eq!(
        output.effect,
        ToolEffect::Edited { path: place.path("f").display().to_string(), added: 1, removed: 1 }
    );
}

#[tokio::test]
async fn only_contents_tell_that_a_file_changed() {
    // E10: touched, not changed.
    let place = Place::new();
    let path = place.put("f", "1\n2\n3\n4\n5\n6\n7\n8\n9\nten\n");
    place.read("f").await;
    let later = SystemTime::now() + Duration::from_secs(60);
    fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
    says(&place.edit("f", "ten", "10", false).await, false, "was edited");
    // E11: changed elsewhere is applied and said; changed there is refused with the difference.
    place.put("f", "one\n2\n3\n4\n5\n6\n7\n8\n9\n10\n");
    let output = place.edit("f", "10", "TEN", false).await;
    says(&output, false, "in another place:\n@@ line 1 @@\n-1\n+one");
    place.put("f", "one\n2\n3\n4\n5\n6\n7\n8\nnine\nTEN\n");
    says(&place.edit("f", "TEN", "x", false).await, true, "-9\n+nine");
    assert!(fs::read_to_string(&path).unwrap().contains("TEN"));
    says(&place.call("Write", json!({"file_path": "f", "content": "x"})).await, true, "was changed on disk");
}

#[tokio::test]
async fn links_and_modes_survive() {
    let place = Place::new();
    // E13
    let target = place.put("real", "a\n");
    fs::set_permissions(&target, fs::Permissions::from_mode(0o755)).unwrap();
    symlink(&target, place.path("link")).unwrap();
    place.read("link").await;
    says(&place.edit("link", "a", "b", false).await, false, "was edited");
    assert!(place.path("link").symlink_metadata().unwrap().is_symlink());
    assert_eq!(fs::read_to_string(&target).unwrap(), "b\n");
    assert_eq!(fs::metadata(&target).unwrap().mode() & 0o7777, 0o755);
    // E14
    fs::hard_link(&target, place.path("twin")).unwrap();
    place.edit("real", "b", "c", false).await;
    assert_eq!(fs::read_to_string(place.path("twin")).unwrap(), "c\n");
    assert_eq!(fs::metadata(&target).unwrap().nlink(), 2);
}

#[tokio::test]
async fn write_makes_files_and_keeps_their_style() {
    let place = Place::new();
    let write = async |name: &str, content: &str| {
        place.call("Write", json!({"file_path": name, "content": content})).await
    };
    let output = write("a/b/c.txt", "x\ny\n").await;
    says(&output, false, "was made (2 lines)");
    assert!(matches!(output.effect, ToolEffect::Edited { added: 2, removed: 0, .. }));
    assert_ne!(fs::metadata(place.path("a/b/c.txt")).unwrap().mode() & 0o044, 0, "not a private file");
    let crlf = place.put("crlf", b"\xef\xbb\xbfa\r\nb\r\n");
    says(&write("crlf", "x\n").await, true, "has not been read yet");
    place.read("crlf").await;
    says(&write("crlf", "x\ny\n").await, false, "stay");
    assert_eq!(fs::read(&crlf).unwrap(), b"\xef\xbb\xbfx\r\ny\r\n");
    says(&write("crlf", "z\n").await, false, "overwritten");
    says(&write("a", "z\n").await, true, "is a directory");
}

#[tokio::test]
async fn read_pages_and_refuses_politely() {
    let place = Place::new();
    place.put("f", "a\nb\nc\nd\n");
    assert_eq!(said(&place.read("f").await), "     1\ta\n     2\tb\n     3\tc\n     4\td\n");
    let page = place.call("Read", json!({"file_path": "f", "offset": "2", "limit": 2})).await;
    assert_eq!(said(&page), "     2\tb\n     3\tc\n\n[lines 2 to 3 of 4; go on with offset 4]");
    says(&place.call("Read", json!({"file_path": "f", "offset": 9})).await, true, "has 4 lines");
    place.put("empty", "");
    says(&place.read("empty").await, false, "empty");
    // E16
    place.put("long", "x".repeat(200_000));
    let output = place.read("long").await;
    says(&output, false, "line 1 has 200000 characters");
    assert!(said(&output).len() < 5_000);
    place.put("many", "y\n".repeat(5_000));
    says(&place.read("many").await, false, "[lines 1 to 2000 of 5000; go on with offset 2001]");
    // E22
    nix::unistd::mkfifo(&place.path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let check = async |name: &str, words: &str| {
        let read = tokio::time::timeout(Duration::from_secs(5), place.read(name)).await.unwrap();
        says(&read, true, words);
    };
    check("pipe", "is a named pipe").await;
    check("/dev/zero", "is a device").await;
    check("/proc/kmsg", "of the kernel").await;
    check(".", "is a directory").await;
    check("hidden.txt", "does not exist").await;
    check("F.md", "There is f").await;
    place.put("bin", b"\x7fELF\0\0");
    check("bin", "binary").await;
    place.put("p.png", b"\x89PNG\r\n\x1a\n\0\0");
    assert!(matches!(place.read("p.png").await.content[0], ResultBlock::Image { .. }));
    says(&place.call("Read", json!({"path": "f"})).await, true, "missing field `file_path`");
}

#[tokio::test]
async fn glob_gives_the_newest_first() {
    let place = Place::new();
    place.put(".gitignore", "target/\n");
    for (name, age) in
        [("old.rs", 100), ("src/new.rs", 1), ("src/deep/mid.rs", 50), ("target/x.rs", 0), ("a.py", 5)]
    {
        let path = place.put(name, "");
        let time = SystemTime::now() - Duration::from_secs(age);
        fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    }
    let check = async |pattern: &str, expected: &str| {
        assert_eq!(said(&place.call("Glob", json!({"pattern": pattern})).await), expected, "{pattern}");
    };
    check("*.rs", "src/new.rs\nsrc/deep/mid.rs\nold.rs\n").await;
    check("src/*.rs", "src/new.rs\n").await;
    check("**/*.{py,rs}", "src/new.rs\na.py\nsrc/deep/mid.rs\nold.rs\n").await;
    check(
        &format!("{}/src/**/*.rs", place.path("").display().to_string().trim_end_matches('/')),
        "src/new.rs\nsrc/deep/mid.rs\n",
    )
    .await;
    check("*.zig", "No file matches `*.zig`.").await;
    says(&place.call("Glob", json!({"pattern": "a{b"})).await, true, "no path pattern");
    for n in 0..120 {
        place.put(&format!("many/{n}.txt"), "");
    }
    says(&place.call("Glob", json!({"pattern": "many/*"})).await, false, "[the newest 100 of 120 files");
}

#[tokio::test]
async fn grep_finds_within_bounds() {
    let place = Place::new();
    place.put("a.rs", "fn one() {}\nlet x = 1;\nfn two() {}\n");
    place.put("b.txt", "one\n");
    place.put("hidden.txt", "one\n");
    let grep = async |input: Value| place.call("Grep", input).await;
    let check = async |input: Value, expected: &str| assert_eq!(said(&grep(input).await), expected);
    check(json!({"pattern": "one", "output_mode": "content"}), "a.rs:1:fn one() {}\nb.txt:1:one\n").await;
    check(json!({"pattern": "ONE", "-i": true, "type": "rust"}), "a.rs\n").await;
    check(json!({"pattern": "fn", "output_mode": "count"}), "a.rs:2\n").await;
    check(
        json!({"pattern": "let", "output_mode": "content", "-C": 1, "-n": false}),
        "a.rs-fn one() {}\na.rs:let x = 1;\na.rs-fn two() {}\n",
    )
    .await;
    check(json!({"pattern": "one", "glob": "!*.rs"}), "b.txt\n").await;
    check(json!({"pattern": "zebra"}), "No match for `zebra`.").await;
    check(
        json!({"pattern": "1;\\nfn", "multiline": true, "output_mode": "content"}),
        "a.rs:2:let x = 1;\na.rs:3:fn two() {}\n",
    )
    .await;
    check(
        json!({"pattern": "fn|let", "output_mode": "content", "head_limit": 1, "offset": 1}),
        "a.rs:2:let x = 1;\n[1 lines shown; there are more: go on with offset 2, or narrow the search]",
    )
    .await;
    says(&grep(json!({"pattern": "("})).await, true, "not a regular expression");
    says(&grep(json!({"pattern": "x", "path": "none"})).await, true, "does not exist");
    says(&grep(json!({"pattern": "one", "path": "hidden.txt"})).await, true, "does not exist");
    // E17
    place.put("min.js", format!("{}NEEDLE{}", "x".repeat(50_000), "y".repeat(50_000)));
    let output = grep(json!({"pattern": "NEEDLE", "output_mode": "content"})).await;
    says(&output, false, "xxNEEDLEyy");
    assert!(said(&output).len() < 600);
    // E19, E20, E22
    place.put("p.png", b"\x89PNG\0\0 LOGO\n LOGO\n");
    says(&grep(json!({"pattern": "LOGO\\n", "multiline": true})).await, false, "No match");
    let mut log = b"LATE early\n".to_vec();
    log.extend(b"filler line\n".repeat(200_000));
    log.extend(b"\0\nLATE again\n");
    place.put("big.log", log);
    says(&grep(json!({"pattern": "LATE", "output_mode": "content"})).await, false, "binary after byte");
    says(
        &grep(json!({"pattern": "again", "output_mode": "content", "text": true})).await,
        false,
        "LATE again",
    );
    nix::unistd::mkfifo(&place.path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let search = tokio::time::timeout(Duration::from_secs(5), grep(json!({"pattern": "x", "path": "pipe"})));
    says(&search.await.unwrap(), true, "named pipe");
}

#[tokio::test]
async fn a_link_that_moves_after_the_gate_is_not_followed() {
    let place = Place::new();
    let inside = place.put("inside", "a\n");
    let outside = place.put("outside", "a\n");
    symlink(&inside, place.path("link")).unwrap();
    place.read("outside").await;
    place.files.pass(&"toolu_1".parse().unwrap(), &place.path("link"));
    fs::remove_file(place.path("link")).unwrap();
    symlink(&outside, place.path("link")).unwrap();
    says(&place.edit("link", "a", "b", false).await, true, "leads to another place");
    assert_eq!(fs::read_to_string(&outside).unwrap(), "a\n");
}

#[tokio::test]
async fn a_search_stays_where_the_gate_saw_its_root() {
    let place = Place::new();
    place.put("inside/f.txt", "zebra\n");
    place.put("outside/g.txt", "zebra\n");
    symlink("inside", place.path("link")).unwrap();
    let grep = |path: &str| place.call("Grep", json!({"pattern": "zebra", "path": path}));
    let glob = |path: &str| place.call("Glob", json!({"pattern": "*.txt", "path": path}));
    // Shown as the model wrote it.
    says(&grep("link").await, false, "link/f.txt");
    says(&grep("link/f.txt").await, false, "link/f.txt");
    says(&glob("link").await, false, "link/f.txt");
    let id = "toolu_1".parse().unwrap();
    place.files.pass(&id, &place.path("link"));
    says(&grep("link").await, false, "link/f.txt");
    for tool in ["Grep", "Glob"] {
        fs::remove_file(place.path("link")).unwrap();
        symlink("inside", place.path("link")).unwrap();
        place.files.pass(&id, &place.path("link"));
        fs::remove_file(place.path("link")).unwrap();
        symlink("outside", place.path("link")).unwrap();
        let output = if tool == "Grep" { grep("link").await } else { glob("link").await };
        says(&output, true, "leads to another place");
    }
}

#[test]
fn a_link_that_came_after_the_check_is_followed_by_neither_reading_nor_writing() {
    let place = Place::new();
    let secret = place.put("outside/f", "secret\n");
    place.put("real/f", "open\n");
    let real = text::real_path(&place.path("real/f"));
    fs::rename(place.path("real"), place.path("moved")).unwrap();
    symlink("outside", place.path("real")).unwrap();
    assert!(text::read_whole(&real).is_err());
    assert!(text::write_whole(&real, b"x").is_err());
    assert!(text::write_whole(&place.path("real/new/f"), b"x").is_err());
    fs::remove_file(place.path("real")).unwrap();
    fs::rename(place.path("moved"), place.path("real")).unwrap();
    assert_eq!(text::read_whole(&real).unwrap(), b"open\n");
    fs::remove_file(&real).unwrap();
    symlink(&secret, &real).unwrap();
    assert!(text::read_whole(&real).is_err());
    assert!(text::write_whole(&real, b"x").is_err());
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret\n");
    assert!(!place.path("outside/new").exists());
}

#[test]
fn paths_are_made_absolute_without_looking() {
    let check = |text, expected: &str| {
        assert_eq!(absolute(text, Path::new("/w/t"), Path::new("/home/u")), Path::new(expected));
    };
    check("a/../b/./c", "/w/t/b/c");
    check("/x/../../y", "/y");
    check("~/z", "/home/u/z");
    check("~x", "/w/t/~x");
}
