//! Grep and Glob over trees.

use super::*;

#[tokio::test]
async fn rules_of_ignore_files_hold_inside_of_a_repository_and_end_at_its_root() {
    let outer = Place::new();
    outer.put(".gitignore", "*\n");
    outer.put("tree/.gitignore", "/made\n*.log\n");
    outer.put("tree/.git", "gitdir: elsewhere\n");
    for name in ["a.rs", "made/b.rs", "deep/c.log", "deep/d.rs", "deep/.hidden"] {
        outer.put(&format!("tree/{name}"), "zebra\n");
    }
    let place = outer.within("tree");
    let mut found: Vec<String> =
        said(&place.call("Grep", json!({"pattern": "zebra"})).await).lines().map(str::to_owned).collect();
    found.sort();
    assert_eq!(found, ["a.rs", "deep/.hidden", "deep/d.rs"]);
    assert_eq!(said(&place.call("Glob", json!({"pattern": "made/*"})).await), "No file matches `made/*`.");
    let deep = place.call("Grep", json!({"pattern": "zebra", "path": "deep", "output_mode": "count"})).await;
    assert_eq!(said(&deep), "deep/.hidden:1\ndeep/d.rs:1\n");
    let named = place.call("Grep", json!({"pattern": "zebra", "path": "deep/c.log"})).await;
    assert_eq!(said(&named), "deep/c.log\n");
}

#[tokio::test]
async fn a_search_on_several_threads_always_gives_the_same_pages() {
    let place = Place::new();
    for n in 0..300 {
        place.put(&format!("d{}/f{n:03}.txt", n % 7), format!("zebra {n}\nother\nzebra {n} again\n"));
    }
    let grep = async |offset: usize| {
        let input = json!({"pattern": "zebra", "output_mode": "content", "head_limit": 37, "offset": offset});
        place.call("Grep", input).await
    };
    let mut expected: Vec<String> = (0..300)
        .flat_map(|n| {
            let name = format!("d{}/f{n:03}.txt", n % 7);
            [format!("{name}:1:zebra {n}"), format!("{name}:3:zebra {n} again")]
        })
        .collect();
    // Stable, so that the lines of a file stay in order.
    expected.sort_by_key(|line| line.split(':').next().unwrap().to_owned());
    let mut got: Vec<String> = Vec::new();
    while got.len() < 600 {
        let page = grep(got.len()).await;
        let lines = said(&page).lines().filter(|line| !line.starts_with('['));
        let before = got.len();
        got.extend(lines.map(str::to_owned));
        assert!(got.len() > before, "{}", said(&page));
        let is_last = got.len() == 600;
        assert_eq!(said(&page).contains(&format!("go on with offset {}", got.len())), !is_last);
    }
    assert_eq!(got, expected);
    says(&grep(600).await, false, "There are only 600 lines; offset 600 is past them.");
}

#[tokio::test]
async fn pages_with_context_lose_no_line() {
    let place = Place::new();
    for name in ["a.txt", "b.txt"] {
        let text: String = (0..600)
            .map(|n| if n % 6 == 0 { format!("needle {n}\n") } else { format!("straw {n}\n") })
            .collect();
        place.put(name, text);
    }
    let page = async |offset: u64, limit: u64| {
        let input = json!({"pattern": "needle", "output_mode": "content", "-C": 1, "head_limit": limit, "offset": offset});
        said(&place.call("Grep", input).await).to_owned()
    };
    let lines = |page: &str| -> Vec<String> {
        page.lines().filter(|line| *line != "--" && !line.starts_with('[')).map(str::to_owned).collect()
    };
    let whole = lines(&page(0, 10_000).await);
    // The first and the last match of a file have one neighbour less, or as many.
    assert_eq!(whole.iter().filter(|line| line.contains("needle")).count(), 200);
    let mut got: Vec<String> = Vec::new();
    while got.len() < whole.len() {
        let page = page(got.len() as u64, 70).await;
        got.extend(lines(&page));
        let is_last = got.len() == whole.len();
        assert_eq!(page.contains(&format!("go on with offset {}", got.len())), !is_last, "{page}");
    }
    assert_eq!(got, whole);
}

#[tokio::test]
async fn what_is_not_searched_or_is_written_otherwise_is_not_called_no_match() {
    let place = Place::new();
    place.put("binary", b"\0needle\n");
    let wide: Vec<u8> = "\u{feff}a\nneedle\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    place.put("wide", wide);
    place.put("latin", b"un caf\xe9 cr\xe8me\n");
    let grep = async |pattern: &str, path: &str, multiline: bool| {
        place
            .call(
                "Grep",
                json!({"pattern": pattern, "path": path, "output_mode": "content", "multiline": multiline}),
            )
            .await
    };
    for multiline in [false, true] {
        says(&grep("needle", "binary", multiline).await, false, "set `text` to do so");
        says(&grep("needle", "wide", multiline).await, false, "needle");
        says(&grep("café", "latin", multiline).await, false, "un café crème");
        says(&grep("café", ".", multiline).await, false, "latin:1:un café crème");
        says(&grep("thé", "latin", multiline).await, false, "No match");
    }
}

#[tokio::test]
async fn rules_that_are_no_plain_files_are_not_waited_for() {
    let place = Place::new();
    place.put(".git/HEAD", "ref: refs/heads/main\n");
    for name in ["pipe", "endless", "large", "linked", "worktree", "exclude"] {
        place.put(&format!("{name}/f.txt"), "needle\n");
    }
    let pipe = |name: &str| nix::unistd::mkfifo(&place.path(name), nix::sys::stat::Mode::S_IRWXU).unwrap();
    pipe("pipe/.ignore");
    symlink("/dev/zero", place.path("endless/.gitignore")).unwrap();
    place.put("large/.gitignore", vec![b'x'; 5 << 20]);
    place.put("rules", "*.log\n");
    symlink("../rules", place.path("linked/.gitignore")).unwrap();
    place.put("linked/f.log", "needle\n");
    place.put("worktree/.git", format!("gitdir: {}\n", place.path("worktree/own").display()));
    fs::create_dir(place.path("worktree/own")).unwrap();
    pipe("worktree/own/commondir");
    fs::create_dir_all(place.path("exclude/.git/info")).unwrap();
    pipe("exclude/.git/info/exclude");
    let found = place.call("Grep", json!({"pattern": "needle"})).await;
    let (first, rest) = said(&found).split_once('\n').unwrap();
    assert_eq!(first, "linked/f.txt");
    for name in ["pipe: not searched, because its .ignore", "endless: ", "large: ", "worktree: ", "exclude: "]
    {
        assert!(rest.contains(name), "{rest}");
    }
    let found = place.call("Glob", json!({"pattern": "*.txt"})).await;
    says(&found, false, "linked/f.txt\n");
    says(&found, false, "[endless: not searched, because its .gitignore is no plain file");
    // From within, where rules of what is around it are read first.
    says(
        &place.call("Glob", json!({"pattern": "*.txt", "path": "pipe"})).await,
        true,
        "its .ignore is no plain",
    );
}

#[tokio::test]
async fn what_a_rule_hides_is_in_no_search_by_any_name() {
    let place = Place::new();
    place.put("a/hidden.txt", "zebra\n");
    place.put("a/open.txt", "zebra\n");
    symlink("hidden.txt", place.path("a/alias")).unwrap();
    symlink("a", place.path("b")).unwrap();
    for path in [".", "a", "b"] {
        let found = place.call("Grep", json!({"pattern": "zebra", "path": path, "text": true})).await;
        assert!(!said(&found).contains("hidden") && !said(&found).contains("alias"), "{}", said(&found));
        says(&found, false, "open.txt");
        let listed = place.call("Glob", json!({"pattern": "*", "path": path})).await;
        assert!(!said(&listed).contains("hidden"), "{}", said(&listed));
    }
    for path in ["a/hidden.txt", "a/alias", "b/hidden.txt"] {
        says(&place.call("Grep", json!({"pattern": "zebra", "path": path})).await, true, "does not exist");
        says(&place.read(path).await, true, "does not exist");
    }
}

#[tokio::test]
async fn context_is_shown_around_matches_and_groups_are_parted() {
    let place = Place::new();
    place.put("f", "1\n2\nhit\n4\n5\n6\n7\nhit\n9\n");
    let check = async |extra: Value, expected: &str| {
        let mut input = json!({"pattern": "hit", "output_mode": "content"});
        input.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        assert_eq!(said(&place.call("Grep", input).await), expected);
    };
    check(json!({"-A": 1}), "f:3:hit\nf-4-4\n--\nf:8:hit\nf-9-9\n").await;
    check(json!({"-B": 1, "-n": false}), "f-2\nf:hit\n--\nf-7\nf:hit\n").await;
    check(json!({"-C": "1", "-A": 0}), "f-2-2\nf:3:hit\n--\nf-7-7\nf:8:hit\n").await;
    check(json!({"-C": 2}), "f-1-1\nf-2-2\nf:3:hit\nf-4-4\nf-5-5\nf-6-6\nf-7-7\nf:8:hit\nf-9-9\n").await;
}
