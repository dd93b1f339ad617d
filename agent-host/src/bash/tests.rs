use expect_test::{Expect, expect};

use super::{parse::parse, *};

fn check(command: &str, expected: Expect) {
    let text = match parse(command) {
        Parsed::TooComplex(reason) => format!("too complex: {reason}"),
        Parsed::Simple(commands) => commands.iter().map(show).collect::<Vec<_>>().join("\n"),
    };
    expected.assert_eq(&text);
}

fn show(command: &PlainCommand) -> String {
    let mut out = match command.after {
        Connector::Start => String::new(),
        other => format!("{other:?} "),
    };
    for assignment in &command.assignments {
        out += &format!("{}={} ", assignment.name, word(&assignment.value));
    }
    out += &command.argv.iter().map(word).collect::<Vec<_>>().join(" ");
    for redirect in &command.redirects {
        out += &format!(" {:?}:{}", redirect.op, word(&redirect.target));
    }
    if command.background {
        out += " &";
    }
    out
}

fn word(word: &Word) -> String {
    let text: String = word
        .pieces()
        .iter()
        .map(|piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Unknown => "<?>".into(),
        })
        .collect();
    format!("[{text}]{}{}", if word.glob { "*" } else { "" }, if word.tilde { "~" } else { "" })
}

#[test]
fn words() {
    check("r''m \"a b\" c\\ d $'\\x41\\n' e\"f\"g", expect!["[rm] [a b] [c d] [A\n] [efg]"]);
    check("echo \"a\\\"b\\$c\\d\" '$x'", expect![[r#"[echo] [a"b$c\d] [$x]"#]]);
    check("echo $A \"$B c\" ${D}e", expect!["[echo] [<?>] [<?> c] [<?>e]"]);
    check("ls *.rs ~/x a[0-9] \"*\" '~'", expect!["[ls] [*.rs]* [~/x]~ [a[0-9]]* [*] [~]"]);
    check("git show HEAD^:a @{u} HEAD@{1}", expect!["[git] [show] [HEAD^:a] [@{u}] [HEAD@{1}]"]);
    check("find . -exec x {} \\;", expect!["[find] [.] [-exec] [x] [{}] [;]"]);
    check("a \\\n b", expect!["[a] [b]"]);
    check("echo \"\" ''", expect!["[echo] [] []"]);
}

#[test]
fn characters_beyond_ascii() {
    check("grep \"naïve 漢字\" 'é' ü", expect!["[grep] [naïve 漢字] [é] [ü]"]);
    check("é=1 x", expect!["[é=1] [x]"]);
    check("echo a漢b", expect!["[echo] [a漢b]"]);
    for command in ["{\u{10ffff}..3}", "{1..\u{10ffff}}", "{\u{20000}", "$é", "\"$é\"", "${é}"] {
        assert!(matches!(parse(command), Parsed::TooComplex(_)), "{command}");
    }
}

#[test]
fn lists() {
    check(
        "a && b || c; d | e & f",
        expect![[r#"
        [a]
        And [b]
        Or [c]
        Next [d]
        Pipe [e] &
        Next [f]"#]],
    );
    check(
        "a\nb # c\n# d\n\ne",
        expect![[r#"
        [a]
        Next [b]
        Next [e]"#]],
    );
    check(
        "(a; b) && { c; }",
        expect![[r#"
        [a]
        Next [b]
        And [c]"#]],
    );
    check(
        "a &&\nb",
        expect![[r#"
        [a]
        And [b]"#]],
    );
    check("! a", expect!["[a]"]);
    check("", expect![""]);
}

#[test]
fn assignments_and_redirections() {
    check("A=1 B=\"$C\" x", expect!["A=[1] B=[<?>] [x]"]);
    check("A=1", expect!["A=[1] "]);
    check("A=1 B=2", expect!["A=[1] B=[2] "]);
    check("export A=b C", expect!["A=[b] [export] [A=b] [C]"]);
    check("x > f 2>&1 < g", expect!["[x] Write:[f] Duplicate:[1] Read:[g]"]);
    check("echo a > f b c", expect!["[echo] [a] [b] [c] Write:[f]"]);
    check("> f x y", expect!["[x] [y] Write:[f]"]);
    check(
        "a && b >> f",
        expect![[r#"
        [a]
        And [b] Write:[f]"#]],
    );
    check("x &> f", expect!["[x] Write:[f]"]);
    check("x >& f", expect!["[x] Write:[f]"]);
    check("x >| f", expect!["[x] Write:[f]"]);
}

#[test]
fn what_is_too_complex() {
    for command in [
        "a $(b)",
        "a `b`",
        "a \"$(b)\"",
        "a <(b)",
        "a <<E\nE",
        "a <<< b",
        "a $((1))",
        "[[ a ]]",
        "[ a ]",
        "f() { a; }",
        "if a; then b; fi",
        "for a in b; do c; done",
        "while a; do b; done",
        "case a in b) c;; esac",
        "{a,b}",
        "a {1..3}",
        "a b{c,d}",
        "a ${b:-c}",
        "a ${!b}",
        "$a",
        "\"$a\" b",
        "${a}b",
        "*/ls",
        "~/x",
        "a\r\nb",
        "a\u{a0}b",
        "a \u{202e}",
        "declare a=1",
        "a=(1)",
        "a+=1",
        "$'\\q'",
        "$\"a\"",
        "a '",
        "a \"",
        "a )",
        "a &&",
        "a ;; b",
        "exec 3<>f",
        "a @(b|c)",
        "a $",
        "coproc a",
        "r\\\nm a",
        "a b\\\nc",
        "touch\\ x\\\u{b}",
    ] {
        assert!(matches!(parse(command), Parsed::TooComplex(_)), "`{command}`: {:?}", parse(command));
    }
    check("echo \"$(x)\"", expect!["too complex: a command substitution (at character 6)"]);
}

#[test]
fn layers_of_wrappers() {
    let shown = |text: &str| {
        let Parsed::Simple(commands) = parse(text) else { panic!("{text}") };
        match layers(&commands[0]) {
            Ok(layers) => layers
                .iter()
                .skip(1)
                .map(|l| format!("{:?} {}", l.kind, show(&l.command)))
                .collect::<Vec<_>>()
                .join("; "),
            Err(reason) => reason.what,
        }
    };
    assert_eq!(shown("timeout -k 1 5 nice -n 3 a b"), "Stripped [nice] [-n] [3] [a] [b]; Stripped [a] [b]");
    assert_eq!(shown("env -i A=1 a"), "Inner A=[1] [a]");
    assert_eq!(shown("xargs a"), "Stripped [a] [<?>]");
    assert_eq!(shown("xargs -n 1 a"), "Inner [a] [<?>]");
    assert_eq!(shown("bash -euo pipefail -c 'a | b'"), "Inner [a]; Inner Pipe [b]");
    assert_eq!(shown("bash x.sh"), "");
    assert_eq!(shown("sh -c \"$X\""), "a script that is put together by expansion");
    assert_eq!(shown("sh -c 'a $(b)'"), "a command substitution in an inner script");
    assert_eq!(shown("find . -exec a {} + -ok b \\;"), "Inner [a] [<?>]; Inner [b]");
    assert_eq!(shown("command -v a"), "");
    assert_eq!(shown("env -S 'a b'"), "`env -S`, which splits a string into a command");
    assert_eq!(shown("sudo sudo sudo sudo sudo sudo sudo a"), "a command wrapped too often");
}
