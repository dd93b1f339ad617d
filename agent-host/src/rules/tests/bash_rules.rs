//! The rows P of the case list that concern commands; no sandbox unless said.

use super::*;

#[test]
fn p01_p02_p04_p07_p08_a_prefix_allows_only_its_own_part() {
    let agent = agent(&["allow Bash(git status)", "allow Bash(git log:*)", "allow Bash(touch-nothing *)"]);
    agent.allows("git status");
    agent.allows("git log --oneline; git status");
    agent.asks("git status && touch x");
    agent.asks("git log; touch x");
    agent.asks("cat f | sh");
    agent.asks("ls\ntouch x");
    agent.asks("ls\r\ntouch x");
    agent.asks("ls & touch x");
}

#[test]
fn p05_eval_asks() {
    let agent = agent(&["allow Bash(echo:*)", "allow Bash(eval:*)"]);
    agent.asks(r#"eval "$(echo touch x)""#);
    agent.asks("eval 'touch x'");
}

#[test]
fn p10_bare_assignments_ask_also_in_the_sandbox() {
    for command in ["PATH=/tmp/evil", "PROMPT_COMMAND='touch x'", "export LD_PRELOAD=./x.so"] {
        agent(&[]).asks(command);
        agent(&[]).sandboxed().asks(command);
    }
    agent(&[]).sandboxed().allows("export NODE_ENV=test");
    agent(&[]).sandboxed().allows("GIT_PAGER=cat git log");
}

#[test]
fn p11_git_global_options_ask() {
    let agent = agent(&["allow Bash(git status*)", "allow Bash(git -C *)", "allow Bash(git -c *)"]);
    for command in [
        "git -p status",
        "git -c core.pager='touch x' log",
        "git -c core.fsmonitor=./x status",
        "git -C /other status",
        "git --git-dir=/other/.git status",
        "git --exec-path=/tmp status",
        "git --config-env=core.pager=X status",
    ] {
        agent.asks(command);
    }
}

#[test]
fn p13_p14_programs_that_run_others_ask_in_spite_of_a_wildcard_rule() {
    let rules =
        ["find", "rg", "sed", "awk", "tar", "xargs", "sort", "tee", "less", "man", "vim", "base64", "fd"];
    let rules: Vec<String> = rules.iter().map(|program| format!("allow Bash({program}:*)")).collect();
    let agent = agent(&rules.iter().map(String::as_str).collect::<Vec<_>>());
    for command in [
        r"find . -exec touch x \;",
        r"find . -execdir touch x \;",
        "find . -name x -delete",
        "find . -fprintf x %p",
        r"find . -ok touch x \;",
        "rg --pre 'sh -c x' a",
        "rg --pre=./x a",
        "rg --hostname-bin ./x a",
        "sed -n '1e touch x' f",
        "sed 'w x' f",
        "sed 's/a/b/w x' f",
        "sed 's/a/b/e' f",
        "sed -i s/a/b/ f",
        r#"awk 'BEGIN{system("touch x")}'"#,
        r#"awk '{print > "x"}' f"#,
        "tar --to-command=./x -xf a",
        "tar -cf a --checkpoint-action=exec=./x b",
        "tar -I ./x -xf a",
        "xargs -I{} sh -c '{}'",
        "sort -o x f",
        "sort --compress-program=./x f",
        "tee ../x",
        "less f",
        "man -P ./x ls",
        "vim -c '!touch x'",
        "base64 -o x f",
        "fd -x touch",
        "tar cf a.tar *",
    ] {
        agent.asks(command);
    }
    for command in
        ["find . -name x", "rg a src", "sed -n 1,3p f", "awk '{print $1}' f", "tar -tf a.tar", "sort f"]
    {
        agent.allows(command);
    }
}

#[test]
fn p16_a_denied_program_is_denied_however_it_is_spelt() {
    let agent = agent(&["deny Bash(rm:*)", "allow Bash"]);
    for command in [
        "r''m f",
        r#""rm" f"#,
        r"\rm f",
        r"$'\x72m' f",
        "/bin/rm f",
        "command rm f",
        "busybox rm f",
        "env rm f",
        "env A=1 rm f",
        "FOO=1 rm f",
        "true; rm f",
        "timeout 5 rm f",
        "sudo rm f",
        "sh -c 'rm f'",
        "bash -ec 'cd x; rm f'",
        "eval rm f",
        "xargs rm",
        "echo f | xargs -n1 rm",
        r"find . -exec rm {} \;",
        "nohup nice rm f",
        "exec rm f",
        "rm",
        "(rm f)",
        "! rm f",
        "time rm f",
        "time -p rm f",
        "timeout --kill 5 5 rm f",
        "timeout -sKILL 5 rm f",
        "nice -5 rm f",
        "stdbuf -oL rm f",
        "env -iu X rm f",
        "env -C / A=1 rm f",
        "setsid -w rm f",
        "flock x rm f",
        "flock x -c 'rm f'",
        "watch -n1 'rm f'",
        "script -qc 'rm f' /dev/null",
        "su -c 'rm f'",
        "sudo -u x -- rm f",
        "chroot . rm f",
        "parallel rm ::: a",
        "parallel -j2 'rm {}' ::: a",
        "unshare -r rm f",
        "ssh-agent rm f",
        "trap 'rm f' EXIT",
        "builtin command rm f",
        "npx -c 'rm f'",
        "npm exec -- rm f",
        "uv run rm f",
        "bundle exec rm f",
        "rustup run stable rm f",
        "git bisect run rm f",
        "git submodule foreach 'rm f'",
        "git rebase -x 'rm f' main",
        "fd -x rm",
        "busybox sh -c 'rm f'",
    ] {
        agent.denies(command);
    }
    // Read in two ways by two shells, so a person looks.
    for command in ["''\\rm f", "\"\"\\rm f", "\\ rm f", "time ! rm f", "command ! rm f", "env -iS 'rm f'"] {
        agent.asks(command);
    }
    agent.asks("{rm,f}");
    agent.asks("r\\\nm f");
    agent.asks("$X f");
    agent.asks("for f in *; do rm $f; done");
    agent.asks("echo $(rm f)");
    agent.allows("rmdir-like f");
}

#[test]
fn p17_other_executables_of_that_name_ask() {
    let agent = agent(&["allow Bash(git:*)", "allow Bash(ls*)"]);
    agent.allows("git status");
    for command in [
        "./git status",
        "/tmp/git status",
        "env git status",
        "PATH=. git status",
        "ls/../evil",
        "lsx/run",
        "'ls x'",
    ] {
        agent.asks(command);
    }
}

#[test]
fn p19_dashes_do_not_hide_a_subcommand() {
    let agent = agent(&["deny Bash(git push*)", "deny Bash(npm run deploy*)", "allow Bash"]);
    for command in ["git -- push", "git -C . push", "git --no-pager push", "git push", "npm run -- deploy"] {
        agent.denies(command);
    }
    agent.asks("git $X");
    agent.allows("git status");
}

#[test]
fn p20_redirections_are_checked_as_edits() {
    let agent = agent(&["allow Bash(echo *)", "allow Bash(: *)", "allow Bash(exec *)"]);
    for command in [
        "echo a > /etc/x",
        "echo a >| /etc/x",
        "echo a &> ../x",
        "echo a >> ~/.bashrc",
        ": > /f",
        "exec 3<>f",
        "cat <<E > x\na\nE",
        "echo a > link-out/x",
        "echo a > dangling",
        "echo a > $X",
        "echo a > .git/hooks/x",
        "echo a > .claude/settings.json",
        "> /etc/x",
        "echo a > $HOME/x",
    ] {
        agent.asks(command);
    }
    agent.allows("echo a > out.txt");
    agent.allows("echo a > /dev/null 2>&1");
    agent.mode(PermissionMode::Default).asks("echo a > out.txt");
}

#[test]
fn checked_matrix_of_the_reference() {
    let family = agent(&["allow Bash(touch *)"]);
    for command in ["touch a.txt", "touch a && touch b", "timeout 5 touch a"] {
        family.allows(command);
    }
    for command in ["FOO=1 touch a", "touch ../outside.txt", "touch $(echo a)", "touch a > ../out.txt"] {
        family.asks(command);
    }
    agent(&["allow Bash(touch:*)"]).allows("touch a.txt");
    agent(&["allow Bash(touch a.txt)"]).asks("touch a.txt && touch b.txt");
    agent(&["allow Bash(echo *)"]).asks("echo hi | tee x");
    let denied = agent(&["deny Bash(touch *)", "allow Bash"]);
    for command in
        ["/usr/bin/touch a", "FOO=1 touch a", "true; touch a", "echo a | xargs touch", "env touch a"]
    {
        denied.denies(command);
    }
}

#[test]
fn word_boundary_of_a_trailing_star() {
    let boundary = agent(&["allow Bash(mytool *)"]);
    boundary.allows("mytool");
    boundary.allows("mytool -la");
    boundary.asks("mytoolx");
    agent(&["allow Bash(mytool*)"]).allows("mytoolx");
    agent(&["allow Bash(x * main)"]).allows("x a b main");
    agent(&["allow Bash(x * main)"]).asks("x a b");
    agent(&["allow Bash(x \"a b\")"]).allows("x 'a b'");
    agent(&["allow Bash(x a b)"]).asks("x 'a b'");
}

#[test]
fn p31_reordered_flags_ask_and_do_not_bypass() {
    let agent = agent(&["allow Bash(mygit log -n 5 --oneline)"]);
    agent.allows("mygit log -n 5 --oneline");
    agent.asks("mygit log --oneline -n 5");
    agent.asks("mygit log -n 5 --oneline --output=x");
}

#[test]
fn p34_p35_rules_that_are_wrong_and_rules_that_only_look_so() {
    let error = |behavior, text: &str| {
        let errors = RuleSet::new([rule(behavior, text)]).unwrap_err();
        (errors[0].source.to_string(), errors[0].source.at())
    };
    let deny = RuleBehavior::Deny;
    assert_eq!(error(deny, "file:///etc/passwd").1, 4);
    assert_eq!(error(deny, "Read(file:///etc/passwd)").1, 9);
    assert_eq!(error(deny, "Bash(rm").0, "the bracket after `Bash` is not closed");
    assert_eq!(error(deny, "Bash()").0, "`Bash()` is empty; write `Bash` for every call");
    assert_eq!(error(deny, "Bash(x) y").1, 7);
    assert_eq!(error(deny, "").1, 0);
    assert_eq!(error(deny, "Read([)").1, 5);
    assert_eq!(error(RuleBehavior::Allow, "mcp__*").1, 5);
    assert_eq!(error(RuleBehavior::Allow, "*").1, 0);
    assert_eq!(error(deny, "WebFetch(example.com)").1, 9);
    for text in ["toString", "constructor", "__proto__", "hasOwnProperty"] {
        let agent = agent(&[&format!("deny {text}")]);
        assert!(agent.rules.removes_tool(text));
        assert_eq!(agent.answer(text, Subject::Name(String::new()), true).behavior, RuleBehavior::Deny);
    }
}

/// Every way to another user, in every mode that asks, whatever allows it.
#[test]
fn another_user_is_always_for_a_person() {
    let rules = ["allow Bash", "allow Bash(sudo *)", "allow Bash(sudo ls)", "allow Bash(env *)"];
    for agent in [agent(&rules), agent(&rules).sandboxed(), agent(&rules).mode(PermissionMode::Default)] {
        for command in [
            "sudo ls",
            "/usr/bin/sudo ls",
            "sudo -n -u x ls",
            "doas ls",
            "su -c ls",
            "su - x",
            "pkexec ls",
            "runuser -u x -- ls",
            "sudoedit f",
            "gosu x ls",
            "env A=1 sudo ls",
            "timeout 5 sudo ls",
            "xargs sudo ls",
            "echo x | xargs -n1 sudo tee f",
            "find . -exec sudo ls {} +",
            "sh -c 'sudo ls'",
            "bash -lc 'cd x && sudo ls'",
            "eval sudo ls",
            "nohup nice sudo ls &",
            "true && sudo ls",
            "ls | sudo tee f",
            "exec sudo ls",
            "script -c 'sudo ls' f",
            "git submodule foreach 'sudo ls'",
            "npm exec -- sudo ls",
            "parallel sudo ls ::: a",
        ] {
            agent.asks(command);
        }
    }
    // What names a program for git to run later is no smaller thing.
    let agent = agent(&["allow Bash(git *)"]).sandboxed();
    for command in ["git config alias.x '!sudo ls'", "git config --global Core.Pager ./x", "git config -e"] {
        agent.asks(command);
    }
    agent.allows("git config user.name me");
}

#[test]
fn p40_long_and_deep_commands_ask_quickly() {
    let agent = agent(&["allow Bash(echo *)"]).sandboxed();
    let commands = [
        format!("echo {}", "a".repeat(10_001)),
        format!("{}echo{}", "(".repeat(4_500), ")".repeat(4_500)),
        format!("{}echo", "$(".repeat(3_000)),
        "{ ".repeat(3_000),
        vec!["echo"; 1_000].join(" && "),
        "\"$(".repeat(2_000),
        "<<E ".repeat(2_000),
        "'".repeat(9_999),
        "! ".repeat(4_000),
        "$".repeat(9_000),
        "if ".repeat(3_000),
        "> ".repeat(4_000),
    ];
    for command in &commands {
        let started = std::time::Instant::now();
        agent.asks(command);
        let elapsed = started.elapsed();
        println!("{:>6} us for {}", elapsed.as_micros(), command.chars().take(12).collect::<String>());
        // Without optimisation and beside other tests it takes a multiple.
        let most = if cfg!(debug_assertions) { 500 } else { 50 };
        assert!(elapsed.as_millis() < most, "{elapsed:?}");
    }
}

#[test]
fn proposals() {
    let agent = agent(&[]);
    let proposed = |command: &str| agent.bash(command).proposed_rule.unwrap_or_else(|| "-".into());
    assert_eq!(proposed("pip install pytest-cov"), "Bash(pip install *)");
    assert_eq!(proposed("npm run build"), "Bash(npm run build *)");
    assert_eq!(proposed("cargo test -p x"), "Bash(cargo test *)");
    assert_eq!(proposed("mytool --x"), "Bash(mytool *)");
    assert_eq!(proposed("python x.py"), "Bash(python x.py)");
    assert_eq!(proposed("git push origin main"), "Bash(git push origin main)");
    assert_eq!(proposed("echo 'a  b' > /x"), "-");
    assert_eq!(proposed("rm a*"), r"Bash(rm a\*)");
    assert_eq!(proposed("touch a && cargo x"), "-");
    // What is proposed allows what was asked.
    for command in [
        "pip install x",
        "npm run build",
        "cargo test -p x",
        "mytool --x",
        "python x.py",
        "git push origin main",
        "x 'a b'",
    ] {
        let rule = agent.bash(command).proposed_rule.unwrap();
        super::agent(&[&format!("allow {rule}")]).allows(command);
    }
}
