//! The rows E of tests/cases/rows.txt, each on real files through the tools.

use super::*;

impl Place {
    /// Reads a file, edits it, and says what stands in it then.
    async fn edited(&self, name: &str, old: &str, new: &str, all: bool) -> (Vec<u8>, ToolOutput) {
        self.read(name).await;
        let output = self.edit(name, old, new, all).await;
        (fs::read(self.path(name)).unwrap(), output)
    }
}

/// Content, old, new, replace all, expected.
type Case<'a> = (&'a [u8], &'a str, &'a str, bool, &'a [u8]);

async fn edits(cases: &[Case<'_>]) {
    for (content, old, new, all, expected) in cases {
        let place = Place::new();
        place.put("f", content);
        let (got, output) = place.edited("f", old, new, *all).await;
        assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(expected), "{}", said(&output));
        assert!(!output.is_error, "{}", said(&output));
    }
}

/// Waits no longer than a search or a look at a file may take.
async fn soon<T>(call: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), call).await.expect("it waits for something")
}

#[tokio::test]
async fn e01_a_file_with_crlf_is_edited_with_plain_line_ends_and_keeps_its_own() {
    edits(&[
        (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny", false, b"x\r\ny\r\nc\r\n"),
        (b"a\r\nb\r\n", "a\r\nb", "x\r\ny\nz", false, b"x\r\ny\r\nz\r\n"),
        // Mixed: what is replaced says how, else the file.
        (b"a\r\nb\nc\n", "c", "d\ne", false, b"a\r\nb\nd\ne\n"),
        (b"a\r\nb\nc\n", "a\nb", "x\ny", false, b"x\r\ny\nc\n"),
        (b"a\n", "a\r\n", "b\r\n", false, b"b\n"),
    ])
    .await;
}

#[tokio::test]
async fn e02_replacing_all_is_as_tolerant_as_replacing_one() {
    edits(&[
        (b"a\r\nb\r\na\r\nb\r\n", "a\nb", "x\ny", true, b"x\r\ny\r\nx\r\ny\r\n"),
        (
            "\u{201c}a\u{201d} \u{201c}a\u{201d}\n".as_bytes(),
            "\"a\"",
            "\"b\"",
            true,
            "\u{201c}b\u{201d} \u{201c}b\u{201d}\n".as_bytes(),
        ),
        (
            b"\tif x:\n\t\ty\n  if x:\n    y\n",
            "if x:\n  y",
            "if x:\n  z",
            true,
            b"\tif x:\n\t\tz\n  if x:\n    z\n",
        ),
    ])
    .await;
}

#[tokio::test]
async fn e04_a_byte_order_mark_is_invisible_and_stays() {
    edits(&[
        (b"\xef\xbb\xbfa\r\nb\r\n", "a", "x", false, b"\xef\xbb\xbfx\r\nb\r\n"),
        (b"\xef\xbb\xbfa\r\nb\r\n", "a\nb\n", "x\n", false, b"\xef\xbb\xbfx\r\n"),
        (b"\xef\xbb\xbfa\r\nb\r\n", "b\n", "", false, b"\xef\xbb\xbfa\r\n"),
    ])
    .await;
    let place = Place::new();
    let path = place.put("w", b"\xef\xbb\xbfa\r\n");
    assert!(!said(&place.read("w").await).contains('\u{feff}'));
    place.call("Write", json!({"file_path": "w", "content": "b\n"})).await;
    assert_eq!(fs::read(path).unwrap(), b"\xef\xbb\xbfb\r\n");
}

#[tokio::test]
async fn e05_quotes_that_the_model_did_not_change_keep_their_bytes() {
    edits(&[
        (b"say \"hi\"\n", "\"hi\"", "\"ho\"", false, b"say \"ho\"\n"),
        (b"say \"hi\"\n", "\u{201c}hi\u{201d}", "\u{201c}ho\u{201d}", false, b"say \"ho\"\n"),
        // Curly ones elsewhere in the file are not touched, straight ones in the match neither.
        (
            "\u{201c}a\u{201d} \"b\"\n".as_bytes(),
            "\"b\"",
            "\"c\"",
            false,
            "\u{201c}a\u{201d} \"c\"\n".as_bytes(),
        ),
        (
            "it\u{2019}s \u{201c}a\u{201d} here\n".as_bytes(),
            "it's \"a\"",
            "it's \"b\"",
            false,
            "it\u{2019}s \u{201c}b\u{201d} here\n".as_bytes(),
        ),
    ])
    .await;
}

#[tokio::test]
async fn e07_a_hard_space_matches_a_plain_one_is_kept_and_told() {
    let place = Place::new();
    let path = place.put("f", "10\u{a0}km\n");
    let (got, output) = place.edited("f", "10 km", "12 km", false).await;
    assert_eq!(String::from_utf8(got).unwrap(), "12\u{a0}km\n");
    says(&output, false, "other quotes or spaces (U+00A0 for U+0020); they were kept");
    // An exact match goes before a tolerant one.
    fs::write(&path, "10\u{a0}km 10 km\n").unwrap();
    let (got, _) = place.edited("f", "10 km", "12 km", false).await;
    assert_eq!(String::from_utf8(got).unwrap(), "10\u{a0}km 12 km\n");
    // Two that differ from it in other ways: which is meant?
    let two = "10\u{a0}km\n10\u{202f}km\n";
    fs::write(&path, two).unwrap();
    let (got, output) = place.edited("f", "10 km", "12 km", false).await;
    says(&output, true, "2 times in f, at lines 1 (U+00A0 for U+0020), 2 (U+202F for U+0020)");
    assert_eq!(String::from_utf8(got).unwrap(), two);
}

#[tokio::test]
async fn e08_wide_punctuation_is_matched_exactly_and_else_hinted_at() {
    let place = Place::new();
    let wide = "\u{ff08}\u{4f60}\u{ff09}\n";
    let path = place.put("f", wide);
    let (got, output) = place.edited("f", "(\u{4f60})", "x", false).await;
    says(&output, true, "Line 1 and what follows differ from it only in white space, quotes or punctuation");
    says(&output, true, "the file has U+FF08 where old_string has U+0028");
    assert_eq!(String::from_utf8(got).unwrap(), wide);
    place.edit("f", "\u{ff08}\u{4f60}", "\u{ff08}\u{597d}", false).await;
    assert_eq!(fs::read_to_string(path).unwrap(), "\u{ff08}\u{597d}\u{ff09}\n");
}

#[tokio::test]
async fn e10_a_file_that_was_touched_or_written_with_the_same_bytes_is_not_changed() {
    let place = Place::new();
    let path = place.put("f", "1\nten\n");
    place.read("f").await;
    let later = SystemTime::now() + Duration::from_secs(60);
    fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
    says(&place.edit("f", "ten", "10", false).await, false, "was edited");
    // A formatter that writes a new file of the same content.
    let same = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, same).unwrap();
    says(&place.edit("f", "10", "ten", false).await, false, "was edited");
    assert_eq!(fs::read_to_string(&path).unwrap(), "1\nten\n");
}

#[tokio::test]
async fn e11_a_change_by_somebody_else_is_refused_where_it_is_met_and_told_elsewhere() {
    let place = Place::new();
    let path = place.put("f", "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n");
    place.read("f").await;
    place.put("f", "one\n2\n3\n4\n5\n6\n7\n8\n9\n10\n");
    let output = place.edit("f", "10", "TEN", false).await;
    says(
        &output,
        false,
        "In another place it was changed on disk since you read it:\n@@ line 1 @@\n-1\n+one",
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "one\n2\n3\n4\n5\n6\n7\n8\n9\nTEN\n");
    // On both sides of it, and far enough.
    place.put("f", "1\n2\n3\n4\n5\n6\n7\n8\n9\nten\n");
    says(&place.edit("f", "5\n", "five\n", false).await, false, "-one\n+1\n@@ line 10 @@\n-TEN\n+ten");
    let ours = fs::read_to_string(&path).unwrap();
    let theirs = ours.replace("9\n", "nine\n");
    fs::write(&path, &theirs).unwrap();
    for (old, words) in [("ten", "@@ line 9 @@\n-9\n+nine"), ("nine", "-9\n+nine"), ("9", "-9\n+nine")] {
        says(&place.edit("f", old, "x", false).await, true, words);
        assert_eq!(fs::read_to_string(&path).unwrap(), theirs, "{old}");
    }
    says(&place.call("Write", json!({"file_path": "f", "content": "x"})).await, true, "was changed on disk");
    assert_eq!(fs::read_to_string(&path).unwrap(), theirs);
    // One of several blocks in the changed place: none is made.
    let blocks =
        json!([{"old_string": "2\n", "new_string": "two\n"}, {"old_string": "ten", "new_string": "x"}]);
    says(&place.call("Edit", json!({"file_path": "f", "edits": blocks})).await, true, "was changed on disk");
    assert_eq!(fs::read_to_string(&path).unwrap(), theirs);
}

#[tokio::test]
async fn e13_a_link_stays_a_link_and_its_target_keeps_its_mode() {
    let place = Place::new();
    let target = place.put("real", "a\n");
    fs::set_permissions(&target, fs::Permissions::from_mode(0o750)).unwrap();
    symlink("real", place.path("link")).unwrap();
    let before = fs::metadata(&target).unwrap().ino();
    place.edited("link", "a", "b", false).await;
    assert_ne!(fs::metadata(&target).unwrap().ino(), before, "replaced in one step, never half written");
    place.call("Write", json!({"file_path": "link", "content": "c\n"})).await;
    assert!(place.path("link").symlink_metadata().unwrap().is_symlink());
    assert_eq!(fs::read_to_string(&target).unwrap(), "c\n");
    assert_eq!(fs::metadata(&target).unwrap().mode() & 0o7777, 0o750);
    let names: Vec<_> =
        fs::read_dir(place.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "nothing else is left: {names:?}");
}

#[tokio::test]
async fn e14_a_file_with_several_names_is_written_in_place() {
    let place = Place::new();
    let path = place.put("real", "long content\n");
    fs::hard_link(&path, place.path("twin")).unwrap();
    place.edited("real", "long content", "c", false).await;
    assert_eq!(fs::read_to_string(place.path("twin")).unwrap(), "c\n");
    assert_eq!(fs::metadata(&path).unwrap().nlink(), 2);
}

#[tokio::test]
async fn e16_a_line_of_two_hundred_thousand_characters_is_read_by_columns() {
    let place = Place::new();
    let line: String = ('a'..='z').cycle().take(199_990).chain(['\u{e9}'; 10]).collect();
    place.put("long", format!("short\n{line}\nend\n"));
    let output = place.read("long").await;
    says(
        &output,
        false,
        "[line 2 has 200000 characters, 1 to 2000 are shown; go on with offset 2, limit 1, column 2001]",
    );
    says(&output, false, "     3\tend");
    assert!(said(&output).len() < 5_000);
    // As the placeholder says, to the end.
    let mut whole = said(&output).lines().nth(1).unwrap()["     2\t".len()..][..2_000].to_owned();
    for n_pages in 0.. {
        assert!(n_pages < 20, "pages that go on for ever");
        let column = whole.chars().count() + 1;
        let page =
            place.call("Read", json!({"file_path": "long", "offset": 2, "limit": 1, "column": column})).await;
        let text = &said(&page)["     2\t".len()..];
        whole.push_str(text.split(" [line").next().unwrap());
        if text.contains("ends here") {
            break;
        }
    }
    assert!(whole == line, "the pages together are the line");
}

#[tokio::test]
async fn e17_one_match_in_a_very_long_line_is_cut_around_it() {
    let place = Place::new();
    place.put("min.js", format!("{}NEEDLE{}", "x".repeat(50_000), "\u{e9}".repeat(50_000)));
    let output = place.call("Grep", json!({"pattern": "NEEDLE", "output_mode": "content"})).await;
    says(&output, false, "xxNEEDLE\u{e9}\u{e9}");
    says(&output, false, "[columns 49901 to 50300 of 100006; Read shows more with `column`]");
    assert!(said(&output).len() < 900, "{}", said(&output).len());
}

#[tokio::test]
async fn e19_a_search_over_lines_looks_whether_a_file_is_binary_before_it_takes_it_whole() {
    let place = Place::new();
    // More than a search over lines may hold, sparse on the disk.
    for n in 0..3 {
        let path = place.put(&format!("icons/{n}.png"), b"\x89PNG\0\0 LOGO\n LOGO\n");
        fs::File::options().append(true).open(path).unwrap().set_len(256 * 1024 * 1024).unwrap();
    }
    place.put("icons/readme.txt", "LOGO\nLOGO\n");
    let input = json!({"pattern": "LOGO\\n", "multiline": true, "path": "icons"});
    let output = soon(place.call("Grep", input)).await;
    assert_eq!(said(&output), "icons/readme.txt\n");
}

#[tokio::test]
async fn e20_a_nul_far_inside_a_log_is_told_and_the_rest_can_be_searched() {
    let place = Place::new();
    let mut log = b"LATE early\n".to_vec();
    log.extend(b"filler line\n".repeat(200_000));
    log.extend(b"\0\nLATE again\n");
    place.put("big.log", log);
    let grep = async |input: Value| place.call("Grep", input).await;
    says(
        &grep(json!({"pattern": "LATE", "output_mode": "content"})).await,
        false,
        "LATE early\nbig.log: [binary after byte",
    );
    says(
        &grep(json!({"pattern": "LATE", "output_mode": "count"})).await,
        false,
        "big.log:1 [binary after byte",
    );
    // Not one match before it, which is no reason to keep silent.
    let hidden = grep(json!({"pattern": "again"})).await;
    says(&hidden, false, "No match for `again`.");
    says(&hidden, false, "big.log: binary after byte");
    says(
        &grep(json!({"pattern": "again", "output_mode": "content", "text": true})).await,
        false,
        "LATE again",
    );
    says(
        &place.call("Read", json!({"file_path": "big.log", "offset": 200_001})).await,
        false,
        "200002\t\u{2400}\n200003\tLATE again",
    );
}

#[tokio::test]
async fn e22_nothing_that_could_block_is_opened() {
    let place = Place::new();
    nix::unistd::mkfifo(&place.path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(place.path("socket")).unwrap();
    place.put("plain", "x\n");
    symlink("/dev/zero", place.path("zero")).unwrap();
    symlink("pipe", place.path("way")).unwrap();
    for (name, words) in [
        ("pipe", "is a named pipe, not a file; it was not opened"),
        ("way", "is a named pipe"),
        ("socket", "is a socket"),
        ("/dev/zero", "is a device"),
        ("zero", "is a device"),
        ("/proc/kmsg", "of the kernel"),
        ("/proc/self/status", "of the kernel"),
        (".", "is a directory. List it with Glob"),
    ] {
        says(&soon(place.read(name)).await, true, words);
        says(&soon(place.edit(name, "a", "b", false)).await, true, words);
        says(&soon(place.call("Write", json!({"file_path": name, "content": "x"}))).await, true, words);
        if name != "." {
            let search = json!({"pattern": "x", "path": name});
            says(&soon(place.call("Grep", search)).await, true, words);
        }
    }
    for input in [json!({"pattern": "x"}), json!({"pattern": "x", "text": true, "multiline": true})] {
        assert_eq!(said(&soon(place.call("Grep", input)).await), "plain\n");
    }
    soon(place.call("Glob", json!({"pattern": "*"}))).await;
}

#[tokio::test]
async fn e23_white_space_is_matched_exactly_first_and_tolerated_where_it_is_clear() {
    edits(&[
        (b"all:\n\tgcc x\n", "\tgcc x", "\tgcc -O2 x", false, b"all:\n\tgcc -O2 x\n"),
        (
            b"all:\n\tgcc x\n",
            "    gcc x",
            "    gcc -O2 x\n    strip x",
            false,
            b"all:\n\tgcc -O2 x\n\tstrip x\n",
        ),
        (b"a  \nb\t\nc\n", "a\nb\nc", "a\nb\nd", false, b"a  \nb\t\nd\n"),
        // The exact one of two, though both would match.
        (b"  x\n\tx\n", "\tx\n", "\ty\n", false, b"  x\n\ty\n"),
        (b"no end", "end", "tail", false, b"no tail"),
        (b"a\nno end", "no end\n", "tail\n", false, b"a\ntail"),
        (b"a\n", "a", "b", false, b"b\n"),
    ])
    .await;
    let place = Place::new();
    let twice = "  x\n\t\tx\n";
    place.put("f", twice);
    let (got, output) = place.edited("f", "    x\n", "    y\n", false).await;
    says(&output, true, "old_string stands, but for white space, 2 times in f, at lines 1, 2");
    assert_eq!(String::from_utf8(got).unwrap(), twice);
    place.put("g", "\tx\n");
    let (_, output) = place.edited("g", "  x", "  y", false).await;
    says(&output, false, "Its indentation was not as you named it");
}

#[tokio::test]
async fn other_encodings_are_read_and_stay() {
    let place = Place::new();
    let wide: Vec<u8> = "\u{feff}caf\u{e9}\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let wide_after: Vec<u8> =
        "\u{feff}th\u{e9}\u{4f60}\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    for (name, before, words, new, after) in [
        (
            "latin",
            b"caf\xe9 \xfcber\n".to_vec(),
            "not UTF-8 but, it seems, windows-1252",
            "th\u{e9}",
            b"th\xe9 \xfcber\n".to_vec(),
        ),
        ("wide", wide, "UTF-16 (little endian)", "th\u{e9}\u{4f60}", wide_after),
        (
            "broken",
            b"caf\xc3\xa9 \xc3\xbc\xc3\xbc \xff\n".to_vec(),
            "UTF-8 with 1 bytes that are not",
            "th\u{e9}",
            b"th\xc3\xa9 \xc3\xbc\xc3\xbc \xff\n".to_vec(),
        ),
    ] {
        let path = place.put(name, before);
        let shown = place.read(name).await;
        says(&shown, false, "     1\tcaf\u{e9}");
        says(&shown, false, words);
        says(&place.edit(name, "caf\u{e9}", new, false).await, false, "was edited");
        assert_eq!(fs::read(path).unwrap(), after, "{name}");
    }
    says(
        &place.edit("latin", "th\u{e9}", "\u{4f60}", false).await,
        true,
        "no place for the character \u{4f60} (U+4F60)",
    );
    let write = place.call("Write", json!({"file_path": "latin", "content": "\u{e9}\u{4f60}"})).await;
    says(&write, true, "U+4F60");
    place.call("Write", json!({"file_path": "latin", "content": "\u{e9}\n"})).await;
    assert_eq!(fs::read(place.path("latin")).unwrap(), b"\xe9\n");
}

#[tokio::test]
async fn several_blocks_are_made_all_or_none() {
    let place = Place::new();
    let path = place.put("f", "one\r\ntwo\r\nthree\r\ntwo\r\nfour\r\n");
    place.read("f").await;
    let edits = async |blocks: Value| place.call("Edit", json!({"file_path": "f", "edits": blocks})).await;
    let block = |old: &str, new: &str| json!({"old_string": old, "new_string": new});
    let before = fs::read(&path).unwrap();
    for (blocks, words) in [
        (
            json!([block("one", "1"), block("two", "2")]),
            "edits[1]: old_string stands 2 times in f, at lines 2, 4",
        ),
        (json!([block("one", "1"), block("zebra", "2")]), "edits[1]: old_string was not found"),
        (json!([block("one", "zebra"), block("zebra", "2")]), "It stands in the new_string of edits[0]"),
        (
            json!([block("one\ntwo", "1"), block("two\nthree", "2")]),
            "edits[0] and edits[1] overlap at line 2",
        ),
        (json!([block("one", "one")]), "equal"),
        (json!([]), "needs `old_string` and `new_string`, or `edits`"),
    ] {
        says(&edits(blocks).await, true, words);
        assert_eq!(fs::read(&path).unwrap(), before);
    }
    let both =
        json!({"file_path": "f", "old_string": "one", "new_string": "1", "edits": [block("four", "4")]});
    says(&place.call("Edit", both).await, true, "not both");
    let blocks = json!([block("four", "4"), {"old_string": "two", "new_string": "2\n2", "replace_all": "true"}, block("one", "1")]);
    let output = edits(blocks).await;
    says(&output, false, "was edited in 4 places");
    assert_eq!(fs::read_to_string(&path).unwrap(), "1\r\n2\r\n2\r\nthree\r\n2\r\n2\r\n4\r\n");
    assert!(matches!(output.effect, ToolEffect::Edited { added: 6, removed: 4, .. }), "{:?}", output.effect);
    // As a string, which some models write.
    let text = json!([block("three", "3")]).to_string();
    says(&place.call("Edit", json!({"file_path": "f", "edits": text})).await, false, "was edited");
}

#[tokio::test]
async fn what_is_only_alike_is_changed_when_a_person_agreed_and_never_without() {
    let place = Place::new();
    let before = "fn f() {\n    let total = compute(price, amount);\n}\n";
    let path = place.put("f.rs", before);
    place.read("f.rs").await;
    let input = json!({"file_path": "f.rs", "old_string": "let total = compute(prices, amount);", "new_string": "let total = 0;"});
    let refused = place.call("Edit", input.clone()).await;
    says(
        &refused,
        true,
        "Nearest is what stands in line 2 (98 % alike):\n    let total = compute(price, amount);",
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), before);
    let doubt = edit::doubt(&place.files, &input).unwrap();
    assert_eq!(doubt.texts, ["    let total = compute(price, amount);"]);
    assert!(
        doubt.sentence.contains("line 2 (98 % alike) is like it and would be replaced"),
        "{}",
        doubt.sentence
    );
    let id = "toolu_1".parse().unwrap();
    place.files.agree(&id, vec!["something else".to_owned()]);
    says(&place.call("Edit", input.clone()).await, true, "Nearest is");
    place.files.agree(&id, doubt.texts);
    says(&place.call("Edit", input.clone()).await, false, "A person agreed to replace what stands in line 2");
    assert_eq!(fs::read_to_string(&path).unwrap(), "fn f() {\n    let total = 0;\n}\n");
    for clear in ["let total = 0;", "nothing like it at all"] {
        let input = json!({"file_path": "f.rs", "old_string": clear, "new_string": "x"});
        assert!(edit::doubt(&place.files, &input).is_none(), "{clear}");
    }
}
