use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    time::{Duration, SystemTime},
};

use query_engine::ports::{NoObserver, ToolContext};
use serde_json::json;
use swarm_protocol::{ResultBlock, record::ToolEffect};
use tokio_util::sync::CancellationToken;

use super::{disk::Basis, *};

mod notebooks;
mod reading;
mod rows;
mod search;

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

    /// The tools over a directory of it.
    fn within(self, name: &str) -> Self {
        let root = self.path(name);
        let files = Arc::new(Files::new(root.clone(), root, self.files.visible.clone()));
        Self { dir: self.dir, files }
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
async fn an_edit_that_does_not_fit_says_where_to_look() {
    let place = Place::new();
    place.put("f", "one\ntwo two\n\n    four\ncompute(total, rate)\n");
    says(&place.edit("f", "one", "1", false).await, true, "has not been read yet");
    place.read("f").await;
    let check = async |old: &str, words: &str| says(&place.edit("f", old, "x", false).await, true, words);
    check("two", "stands 2 times in f, at lines 2, 2").await;
    check("compute(total, sum)", "The most similar line is 5").await;
    check("zebra", "Nothing like it").await;
    check("", "old_string is empty").await;
    check("x", "equal").await;
    says(&place.edit("none", "a", "b", false).await, true, "does not exist");
    says(&place.edit("hidden.txt", "a", "b", false).await, true, "does not exist");
    let output = place.edit("f", "one", "1", false).await;
    assert_eq!(
        output.effect,
        ToolEffect::Edited { path: place.path("f").display().to_string(), added: 1, removed: 1 }
    );
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
    place.put("many", "y\n".repeat(5_000));
    says(&place.read("many").await, false, "[lines 1 to 2000 of 5000; go on with offset 2001]");
    let check = async |name: &str, words: &str| says(&place.read(name).await, true, words);
    check("hidden.txt", "does not exist").await;
    check("F.md", "There is f").await;
    place.put("bin", b"\x7fELF\0\0");
    check("bin", "binary").await;
    says(&place.call("Read", json!({"path": "f"})).await, true, "missing field `file_path`");
}

#[tokio::test]
async fn glob_gives_the_newest_first() {
    let place = Place::new();
    fs::create_dir(place.path(".git")).unwrap();
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
}

#[tokio::test]
async fn a_link_that_moves_after_the_gate_is_not_followed() {
    let place = Place::new();
    let inside = place.put("inside", "a\n");
    let outside = place.put("outside", "a\n");
    symlink(&inside, place.path("link")).unwrap();
    place.read("outside").await;
    place.files.pass(
        &"toolu_1".parse().unwrap(),
        &place.path("link"),
        DiskPaths.resolve(&place.path("link")),
    );
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
    place.files.pass(&id, &place.path("link"), DiskPaths.resolve(&place.path("link")));
    says(&grep("link").await, false, "link/f.txt");
    for tool in ["Grep", "Glob"] {
        fs::remove_file(place.path("link")).unwrap();
        symlink("inside", place.path("link")).unwrap();
        place.files.pass(&id, &place.path("link"), DiskPaths.resolve(&place.path("link")));
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
    let real = disk::real_path(&place.path("real/f"));
    let cancel = CancellationToken::new();
    let open = Basis { former: Some(b"open\n"), cancel: &cancel };
    let missing = Basis { former: None, cancel: &cancel };
    fs::rename(place.path("real"), place.path("moved")).unwrap();
    symlink("outside", place.path("real")).unwrap();
    assert!(disk::read_whole(&real).is_err());
    assert!(disk::write_whole(&real, b"x", open).is_err());
    assert!(disk::write_whole(&place.path("real/new/f"), b"x", missing).is_err());
    fs::remove_file(place.path("real")).unwrap();
    fs::rename(place.path("moved"), place.path("real")).unwrap();
    assert_eq!(disk::read_whole(&real).unwrap(), b"open\n");
    fs::remove_file(&real).unwrap();
    symlink(&secret, &real).unwrap();
    assert!(disk::read_whole(&real).is_err());
    assert!(disk::write_whole(&real, b"x", open).is_err());
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret\n");
    assert!(!place.path("outside/new").exists());
}

#[tokio::test]
async fn a_write_that_fails_or_comes_too_late_leaves_the_file_as_it_was() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let place = Place::new();
    let path = place.put("f", "former\n");
    let cancel = CancellationToken::new();
    let write = |former: Option<&str>, text: &str| {
        let basis = Basis { former: former.map(str::as_bytes), cancel: &cancel };
        disk::write_whole(&disk::real_path(&path), text.as_bytes(), basis).map_err(|error| error.to_string())
    };
    let holds = |text: &str| assert_eq!(fs::read_to_string(&path).unwrap(), text);
    // Somebody else wrote, made or removed it since it was looked at; in both ways of writing.
    for name in [None, Some("second")] {
        if let Some(name) = name {
            fs::hard_link(&path, place.path(name)).unwrap();
        }
        assert!(write(Some("other\n"), "x").unwrap_err().contains("changed on disk meanwhile"));
        assert!(write(None, "x").unwrap_err().contains("changed on disk meanwhile"));
        holds("former\n");
    }
    assert_eq!(write(Some("former\n"), "longer than it was\n"), Ok(()));
    assert_eq!(fs::read_to_string(place.path("second")).unwrap(), "longer than it was\n");
    assert_eq!(write(Some("longer than it was\n"), "short\n"), Ok(()));
    holds("short\n");
    // The disk is full in the middle of it.
    let (soft, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
    // Whoever handles the signal is not killed by it.
    let kind = tokio::signal::unix::SignalKind::from_raw(nix::sys::signal::Signal::SIGXFSZ as i32);
    let _handled = tokio::signal::unix::signal(kind).unwrap();
    setrlimit(Resource::RLIMIT_FSIZE, 4_096, hard).unwrap();
    let failed = write(Some("short\n"), &"x".repeat(10_000));
    setrlimit(Resource::RLIMIT_FSIZE, soft, hard).unwrap();
    assert!(failed.is_err_and(|why| !why.contains("damaged")));
    holds("short\n");
    cancel.cancel();
    assert!(write(Some("short\n"), "x").unwrap_err().contains("cancelled"));
    holds("short\n");
}

#[tokio::test]
async fn a_file_that_may_not_be_written_is_left() {
    let place = Place::new();
    let path = place.put("f", "former\n");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    place.read("f").await;
    says(&place.edit("f", "former", "now", false).await, true, "it is read-only (mode 0444)");
    assert_eq!(fs::read_to_string(&path).unwrap(), "former\n");
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
