//! Which test keeps which row of `tests/cases/rows.txt`: `CASES.md` is made of the names of the tests, so a row is
//! never called kept by a test that is not there. `UPDATE_EXPECT=1` writes it anew.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use expect_test::expect_file;

/// A row's number, `S01` or `case_14`.
type Id = String;

/// Rows in their order, under headings.
enum Line {
    Heading(String),
    Row { id: Id, title: String },
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it stands in the workspace").to_owned()
}

/// Lines of a list, comments aside.
fn lines_of(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim_end).filter(|line| !line.is_empty() && !line.starts_with("# "))
}

fn first_word(line: &str) -> (Id, String) {
    let (id, rest) = line.split_once(' ').unwrap_or_else(|| panic!("no words after the number: {line}"));
    (id.to_owned(), rest.to_owned())
}

fn rows(text: &str) -> Vec<Line> {
    lines_of(text)
        .map(|line| match line.strip_prefix("## ") {
            Some(heading) => Line::Heading(heading.to_owned()),
            None => {
                let (id, title) = first_word(line);
                Line::Row { id, title }
            }
        })
        .collect()
}

/// The rows that a test's name starts with: `l01_l02_…` keeps two, `case_14_…` one.
fn ids_of(name: &str) -> Vec<Id> {
    let words: Vec<&str> = name.split('_').collect();
    if let ["case", number, _, ..] = words[..]
        && number.len() == 2
        && number.bytes().all(|byte| byte.is_ascii_digit())
    {
        return vec![format!("case_{number}")];
    }
    let is_id = |word: &&&str| matches!(word.as_bytes(), [b'a'..=b'z', tens, ones] if tens.is_ascii_digit() && ones.is_ascii_digit());
    words.iter().take_while(is_id).map(|word| word.to_uppercase()).collect()
}

/// Names of the tests of a Rust file. An ignored one is none, for it does not run.
fn tests_of(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    let (mut is_test, mut is_ignored) = (false, false);
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if line.starts_with("#[ignore") {
            is_ignored = true;
        } else if is_test && let Some((_, rest)) = line.split_once("fn ") {
            let name = rest.split('(').next().unwrap_or(rest);
            if !is_ignored && !line.starts_with("//") {
                names.push(name.to_owned());
            }
            (is_test, is_ignored) = (false, false);
        }
    }
    names
}

/// The tests of the workspace that keep a row, with their files.
fn kept(root: &Path) -> BTreeMap<Id, BTreeSet<(String, String)>> {
    let mut kept: BTreeMap<Id, BTreeSet<(String, String)>> = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the workspace") {
            let entry = entry.expect("an entry");
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let kind = entry.file_type().expect("a kind");
            if kind.is_dir() && !name.starts_with('.') && name != "target" && name != "node_modules" {
                folders.push(path);
            } else if kind.is_file() && name.ends_with(".rs") {
                let file = path.strip_prefix(root).expect("it is within").to_string_lossy().into_owned();
                for test in tests_of(&fs::read_to_string(&path).expect("a source file")) {
                    for id in ids_of(&test) {
                        kept.entry(id).or_default().insert((file.clone(), test.clone()));
                    }
                }
            }
        }
    }
    kept
}

#[test]
fn every_row_has_a_test_or_says_what_it_needs() {
    let root = workspace();
    let read = |name: &str| fs::read_to_string(root.join("tests/cases").join(name)).expect("a list");
    let (lines, left_out) = (rows(&read("rows.txt")), read("left_out.txt"));
    let mut left_out: BTreeMap<Id, String> = lines_of(&left_out).map(first_word).collect();
    let kept = kept(&root);

    let mut table = "# Cases and their tests\n\nMade of the names of the tests by `tests/it/cases.rs`; `UPDATE_EXPECT=1 cargo nextest run -p integration-tests \
         every_row_has_a_test` writes it anew.\n"
        .to_owned();
    let mut bare = Vec::new();
    let mut letters = BTreeSet::new();
    let mut known = BTreeSet::new();
    for line in &lines {
        let (id, title) = match line {
            Line::Heading(heading) => {
                write!(table, "\n## {heading}\n\n| row | what must hold | tests |\n| --- | --- | --- |\n")
                    .expect("a string takes all");
                continue;
            }
            Line::Row { id, title } => (id, title),
        };
        letters.extend(id.chars().next().filter(char::is_ascii_uppercase));
        known.insert(id.clone());
        let tests = kept.get(id).into_iter().flatten();
        let mut cells: Vec<String> = tests.map(|(file, test)| format!("`{test}` ({file})")).collect();
        match left_out.remove(id) {
            Some(_) if !cells.is_empty() => panic!("{id} has a test, and left_out.txt says that it has none"),
            Some(needs) => cells.push(format!("left out: {needs}")),
            None if cells.is_empty() => bare.push(id),
            None => {}
        }
        writeln!(table, "| {id} | {title} | {} |", cells.join("<br>")).expect("a string takes all");
    }
    assert!(bare.is_empty(), "neither a test nor a line in tests/cases/left_out.txt: {bare:?}");
    // The rows of other letters, and of later chapters, have no list yet.
    let is_of_the_list = |id: &&Id| id.starts_with(|letter| letters.contains(&letter));
    let strangers: Vec<_> = kept.keys().filter(is_of_the_list).filter(|id| !known.contains(*id)).collect();
    assert!(strangers.is_empty(), "tests are named after what is no row: {strangers:?}");
    assert!(left_out.is_empty(), "left_out.txt names what is no row: {left_out:?}");
    expect_file![root.join("tests/CASES.md")].assert_eq(&table);
}

#[test]
fn names_of_tests_are_found_where_they_are_tests() {
    // No numbers here: this file is searched as well.
    let source = "
        #[test]
        fn one() {}
        fn helper() {}
        #[tokio::test(start_paused = true)]
        async fn two() {}
        #[test]
        #[ignore = \"slow\"]
        fn ignored() {}
        // #[test]
        // fn commented() {}
        #[test]
        #[should_panic]
        fn three() {}
    ";
    assert_eq!(tests_of(source), ["one", "two", "three"]);
}

#[test]
fn numbers_stand_at_the_start_of_a_name() {
    let check = |name: &str, expected: &[&str]| assert_eq!(ids_of(name), expected, "{name}");
    check("s01_a_cut_stream", &["S01"]);
    check("l01_l02_equal_calls", &["L01", "L02"]);
    check("case_14_paths", &["case_14"]);
    check("case_of_its_own", &[]);
    check("case_1_short", &[]);
    check("a_wait_of_s01", &[]);
    check("sha256_of_nothing", &[]);
}
