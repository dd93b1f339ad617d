//! Files that commands name or walk over, and commands that only read.

use super::*;

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
    // `*` names nothing hidden. Links that lead outside are named by it.
    open.asks("cat *");
    let mut no_links = agent(&rules);
    no_links.disk.links.clear();
    no_links.allows("cat *");
    for told in ["shopt -s dotglob; cat *", "GLOBIGNORE=x; cat *", "export GLOBIGNORE=x && cat *"] {
        no_links.asks(told);
    }
    // The sandbox does not know of rules.
    let sandboxed = agent(&rules).sandboxed();
    sandboxed.asks("grep -r KEY .");
    sandboxed.denies("cat .env");
    let bypass = agent(&rules).mode(PermissionMode::BypassPermissions);
    bypass.allows("grep -r foo src");
    bypass.allows("cd docs && grep x *.md");
    bypass.denies("cat .env");
}

#[test]
fn git_prints_no_denied_file() {
    let rules = ["deny Read(.env)", "deny Read(/sub/key)", "allow Bash"];
    for agent in
        [agent(&rules), agent(&rules).sandboxed(), agent(&rules).mode(PermissionMode::BypassPermissions)]
    {
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
    sandboxed.asks("cat $F");
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
