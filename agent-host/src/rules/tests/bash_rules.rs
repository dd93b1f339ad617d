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
fn p22_a_link_out_of_the_worktree_is_followed() {
    agent(&["allow Bash(cat *)"]).asks("cat link-out/etc/passwd");
    agent(&[]).asks("cat link-out/etc/passwd");
    agent(&[]).asks("cat /etc/passwd");
    agent(&[]).allows("cat alias/lib.rs");
}

#[test]
fn p29_p32_denied_files_and_recursive_readers() {
    let rules = ["deny Read(./.env)"];
    let open = agent(&rules);
    for command in [
        "cat .env",
        "cat ./.env",
        "head -1 < .env",
        "cp .env /tmp/y",
        "cd src && cat ../.env",
        "grep KEY .env",
        "sort .ENV",
    ] {
        open.denies(command);
    }
    open.asks("source .env");
    open.asks("cat .e*");
    open.asks("grep -r KEY .");
    open.asks("rg KEY");
    open.asks("cp -r . y");
    open.asks("find . -name x -exec grep KEY {} +");
    open.asks("ls | xargs cat");
    let deep = agent(&["deny Read(secret/**)", "deny Read(*.pem)"]);
    for command in [
        "grep -r KEY .",
        "rg KEY",
        "cp -r . y",
        "rg KEY docs/..",
        "diff -r . y",
        "tar cf x.tar .",
        "grep -d recurse KEY .",
    ] {
        deep.asks(command);
    }
    for command in ["grep -r KEY src", "rg KEY docs", "cd src && rg KEY", "cp -r src y"] {
        assert_eq!(
            deep.bash(command).behavior,
            if command.starts_with("cp") { RuleBehavior::Ask } else { RuleBehavior::Allow },
            "{command}"
        );
    }
    open.allows("grep -r foo src");
    open.allows("cd docs && grep x *.md");
    open.allows("cat *");
    // The sandbox hides the file, so nothing asks.
    let sandboxed = agent(&rules).sandboxed();
    sandboxed.allows("grep -r KEY .");
    sandboxed.denies("cat .env");
    let bypass = agent(&rules).mode(PermissionMode::BypassPermissions);
    bypass.allows("grep -r foo src");
    bypass.allows("cd docs && grep x *.md");
    bypass.denies("cat .env");
}

#[test]
fn git_prints_no_denied_file() {
    let rules = ["deny Read(.env)", "deny Read(/sub/key)", "allow Bash"];
    // Whatever a sandbox hides stands in commits all the same.
    let mut sandboxed = agent(&rules).sandboxed();
    sandboxed.sandbox.hides_denied = false;
    for agent in [agent(&rules), sandboxed, agent(&rules).mode(PermissionMode::BypassPermissions)] {
        for command in [
            "git show HEAD:.env",
            "git show HEAD:./.env",
            "git --no-pager show main:sub/.ENV",
            "git show :.env",
            "git show :0:.env",
            "git show HEAD -- .env",
            "git show HEAD~2:sub/key",
            "cd docs && git show HEAD:sub/key",
            "git diff --no-index /dev/null .env",
            "git diff --no-index -- /dev/null .env",
            "git diff HEAD .env",
            "git diff HEAD~1:.env HEAD:.env",
            "git cat-file -p HEAD:.env",
            "git cat-file blob HEAD:.env",
            "git grep KEY .env",
            "git grep KEY HEAD -- .env",
            "git grep -e KEY -- ':(icase).ENV'",
            "git grep -f .env",
            "git grep -f.env x",
            "git blame .env",
            "git blame HEAD -- .env",
            "git blame --contents=.env a",
            "git log -p -- .env",
            "git log -L 1,9:.env",
            "git log -L1,9:.env",
            "git log -p -- :/sub/key",
            "git -C sub diff --no-index /dev/null key",
            "git -C /w -C sub blame key",
            "git archive HEAD .env",
            "git hash-object -w .env",
            "/usr/bin/git show HEAD:.env",
            "nice git show HEAD:.env | head",
        ] {
            agent.denies(command);
        }
        for command in [
            "git show HEAD:$F",
            "git show $X",
            "git show HEAD -- '.e*'",
            "git log -p -- ':(glob)**/.env*'",
            "git -C $D blame x",
            "git cat-file -p 4b825dc6",
            "git cat-file --batch",
            "git grep KEY",
        ] {
            agent.asks(command);
        }
    }
    let agent = agent(&rules);
    for command in [
        "git status",
        "git show HEAD",
        "git show HEAD:key",
        "git show HEAD:src/lib.rs",
        "git log --format=%H:%s main..x -- src",
        "git diff HEAD~1",
        "git grep .env src",
        "git grep -e .env src",
        "git cat-file -t 4b825dc6",
        "git commit -m .env",
        "git add .env",
        "echo HEAD:.env",
    ] {
        agent.allows(command);
    }
    super::agent(&[]).allows("git cat-file -p 4b825dc6");
    super::agent(&["deny Edit(x)"]).allows("git cat-file -p 4b825dc6");
}

#[test]
fn paths_that_cannot_be_told_ask_where_a_rule_speaks_of_paths() {
    let rules = ["deny Read(./.env)", "deny Edit(src/gen/**)", "allow Bash"];
    let open = agent(&rules);
    for command in [
        "cat $F",
        "cd $D && cat x",
        ". ./x && cat .env",
        "command cd src && cat x",
        "echo a > $F",
        "touch $F",
    ] {
        open.asks(command);
    }
    let sandboxed = agent(&rules).sandboxed();
    sandboxed.allows("cat $F");
    sandboxed.asks("touch $F");
    sandboxed.denies("touch src/gen/x");
    sandboxed.denies("cd src && sed -i s/a/b/ gen/x");
    assert!(open.rules.denies_read(Path::new("/w/sub/.env"), Path::new("/home/u"), Path::new("/w")));
    assert!(!open.rules.denies_read(Path::new("/w/sub/env"), Path::new("/home/u"), Path::new("/w")));
    assert!(open.rules.has_read_denials() && !agent(&["deny Edit(x)"]).rules.has_read_denials());
}

#[test]
fn the_read_only_set_stays_in_the_worktree() {
    let agent = agent(&[]);
    for command in [
        "git diff --no-index /etc/passwd x",
        "git diff /etc/passwd x",
        "git diff ../a ../b",
        "git grep x ~/y",
        "git log $X",
        "find / -name x",
        "rg x /etc",
        "cat ../x",
        "head -n1 /etc/passwd",
        "grep -f /etc/shadow x",
        "wc --files0-from=/etc/x",
        "cat < /etc/passwd",
        "ls ~",
        "cat ~root/x",
        "diff x /etc/passwd",
        "printf -v PATH x",
        "cd / && cat x",
        "cd $X && cat x",
        "cat $X",
        "cd -; cat x",
        "cat link-out/x",
        "cd link-out && cat etc/passwd",
    ] {
        agent.asks(command);
    }
    for command in [
        "git diff main..HEAD",
        "git log main...x -- src/a",
        "printf '%s' a",
        "cat ./src/../src/lib.rs",
        "grep -rn x src | head -3",
    ] {
        agent.allows(command);
    }
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
fn p38_in_plan_mode_nothing_is_changed() {
    let rules = ["allow Edit", "allow Bash", "allow Bash(npm test*)", "allow mcp__x", "ask Bash(cat c)"];
    let open = agent(&rules).mode(PermissionMode::Plan);
    let mut confined = agent(&rules).mode(PermissionMode::Plan).sandboxed();
    confined.sandbox.is_read_only = true;
    for agent in [&open, &confined] {
        for path in
            ["src/lib.rs", "new", "/elsewhere", ".claude/settings.json", ".claude/plans", "link-out/x.md"]
        {
            assert_eq!(agent.path("Edit", path), RuleBehavior::Deny, "{path}");
            assert_eq!(agent.path("Write", path), RuleBehavior::Deny, "{path}");
        }
        for path in [".claude/plans/a/b.md", ".claude/plans/../x.md", "src/../.claude/plans/x.rs"] {
            assert_eq!(agent.path("Write", path), RuleBehavior::Deny, "{path}");
        }
        assert_eq!(agent.path("Write", ".claude/plans/first.md"), RuleBehavior::Allow);
        assert_eq!(agent.path("Read", "src/lib.rs"), RuleBehavior::Allow);
        let tool = |name: &str, reads| agent.answer(name, Subject::Name(String::new()), reads).behavior;
        assert_eq!(
            (tool("mcp__x__y", false), tool("TodoWrite", true)),
            (RuleBehavior::Deny, RuleBehavior::Allow)
        );
        for command in [
            "echo a > f",
            "cat f > src/lib.rs",
            "tee f",
            "touch f",
            "rm f",
            "sed -i s/a/b/ f",
            "cp a b",
            "git push",
            "git config user.name x",
            "PATH=. ls",
            "sh -c 'echo a > f'",
            "find . -exec touch {} +",
        ] {
            agent.denies(command);
        }
        for command in ["ls -la", "git status && git diff", "grep -rn x src | head", "cat src/lib.rs"] {
            agent.allows(command);
        }
        agent.asks("cat c");
    }
    for command in ["cat > f <<E\nE", "python -c 'open(\"x\",\"w\")'", "npm test", "make", "ls $(touch x)"] {
        open.denies(command);
    }
    // Where nothing can be written, what is understood may run and a person may be asked of the rest.
    confined.allows("python -c 'open(\"x\",\"w\")'");
    confined.allows("npm test");
    confined.asks("cat > f <<E\nE");
    let mut agent = agent(&["deny Bash(npm *)"]).mode(PermissionMode::Plan);
    agent.unattended = true;
    agent.denies("npm test");
    agent.denies("cargo build");
    agent.allows("ls");
}

#[test]
fn p37_p38_an_agent_without_worktree_cannot_write() {
    let mut agent = agent(&["allow Edit", "allow Bash"]);
    agent.isolation = Isolation::None;
    assert_eq!(agent.path("Edit", "src/lib.rs"), RuleBehavior::Deny);
    assert_eq!(agent.path("Read", "src/lib.rs"), RuleBehavior::Allow);
    agent.denies("touch x");
    agent.denies("python -c 'open(\"x\",\"w\")'");
    agent.denies("cat > f <<E\nE");
    agent.allows("cat src/lib.rs");
    agent.mode = PermissionMode::BypassPermissions;
    agent.denies("touch x");
    agent.mode = PermissionMode::AcceptEdits;
    agent.sandbox = SandboxState { is_read_only: true, ..ENFORCING };
    agent.allows("python -c 'print(1)'");
    assert_eq!(agent.path("Write", "x"), RuleBehavior::Deny);
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
fn p41_options_of_read_only_programs() {
    let agent = agent(&[]);
    for command in [
        "RIPGREP_CONFIG_PATH=x rg a",
        "git diff --ext-diff",
        "git log --output=x",
        "git grep -Ovim a",
        "sort -o x f",
        "uniq a b",
        "date -s x",
        "tree -o x",
        "file -C",
        "git branch -D x",
        "git config core.pager x",
        "git stash",
        "find . -delete",
    ] {
        agent.asks(command);
    }
    for command in [
        "rg a",
        "git diff",
        "git log -5",
        "sort f | uniq -c",
        "date +%s",
        "git branch -a",
        "git config --get user.name",
    ] {
        agent.allows(command);
    }
}

#[test]
fn without_a_sandbox_only_rules_and_the_read_only_set_pass() {
    let agent = agent(&[]);
    agent.asks("cargo test");
    agent.asks("touch x");
    agent.allows("ls -la && git status | head -3");
    agent.allows("cd src && ls");
    agent.asks("cd .. && ls");
}

#[test]
fn the_sandbox_lets_clean_commands_pass_and_the_table_asks() {
    let agent = agent(&["deny Bash(curl *)", "ask Bash(cargo install *)"]).sandboxed();
    agent.allows("cargo test && touch x");
    agent.denies("curl x");
    agent.asks("cargo install x");
    for command in [
        "git push",
        "git reset --hard",
        "git clean -fdx",
        "git checkout .",
        "rm -rf .git",
        "rm -rf .",
        "rm -rf *",
        "rm -rf /",
        "rm -rf ~",
        "rm -rf ..",
        "rm -rf /etc",
        "cd src && rm -rf ../*",
        "sudo ls",
        "kill -9 -1",
        "pkill node",
        "npm publish",
        "cargo publish",
        "twine upload dist/*",
        "dd if=x of=/dev/sda",
        "mkfs.ext4 /dev/sda",
        "chmod -R 777 /",
        "docker run x",
        "tmux kill-server",
        "crontab -e",
        "systemctl stop x",
        "curl-like | sh",
        "echo x > .claude/settings.json",
        "rm .mcp.json",
        "sed -i s/a/b/ .git/config",
        "gh pr create",
        "ssh host",
        "find . -delete",
        "git worktree remove x",
        "git update-ref x y",
        "git gc",
        "git branch -D x",
        "git stash clear",
        "bash -c 'git push'",
        "echo a | xargs git push",
        "rm -rf $X",
    ] {
        agent.asks(command);
    }
    let mut off = agent;
    off.sandbox.auto_allow = false;
    off.asks("cargo test");
}

#[test]
fn bypass_keeps_deny_rules_ask_rules_and_critical_paths() {
    let agent = agent(&["deny Bash(curl *)", "ask Bash(git push *)"]).mode(PermissionMode::BypassPermissions);
    agent.allows("sudo ls");
    agent.allows("git reset --hard");
    agent.denies("curl x");
    agent.asks("git push origin");
    agent.asks("rm -rf /");
    agent.asks("rm -rf .git");
    agent.asks("echo $(curl x)");
    super::agent(&[]).mode(PermissionMode::BypassPermissions).allows("echo $(date)");
}

#[test]
fn unattended_refuses_what_would_ask_and_says_why() {
    let mut agent = agent(&[]);
    agent.unattended = true;
    let answer = agent.bash("git push");
    assert_eq!(answer.behavior, RuleBehavior::Deny);
    assert_eq!(
        answer.by.because(),
        "it changes a repository that others use, and the task is unattended: nobody can be asked"
    );
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
