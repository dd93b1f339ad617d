use std::path::{Path, PathBuf};

use super::*;
use crate::bash::{Parsed, parse};

fn form(command: &str) -> String {
    let Parsed::Simple(commands) = parse(command) else { panic!("`{command}` is too complex") };
    let cwds = [PathBuf::from("/w")];
    let place = Place {
        cwds: &cwds,
        worktree: Path::new("/w"),
        home: Path::new("/home/u"),
        globs_may_be_options: false,
    };
    let forms = DangerousForms::embedded();
    commands
        .iter()
        .filter_map(|command| forms.find(command, &place))
        .max_by_key(|form| form.kind)
        .map_or_else(|| "-".to_owned(), |form| form.id.clone())
}

#[test]
fn the_embedded_table_reads_and_every_entry_says_why() {
    let forms = DangerousForms::embedded();
    let mut ids: Vec<&str> = forms.forms().iter().map(|form| form.id.as_str()).collect();
    let n = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), n, "ids are unique");
    for form in forms.forms() {
        assert!(
            form.why.starts_with("it ")
                || form.why.starts_with("th")
                || form.why.starts_with("a ")
                || form.why.contains(' ')
        );
        assert!(!form.why.ends_with('.'), "{}", form.id);
    }
}

#[test]
fn forms_by_command() {
    for (command, expected) in [
        ("rm -rf .git", "delete-critical"),
        ("rm -rf ./.git/", "delete-critical"),
        ("rm -rf .", "delete-critical"),
        ("rm -rf *", "delete-critical"),
        ("rm -rf ./*", "delete-critical"),
        ("rm -rf ~", "delete-critical"),
        ("rm -rf ~/x", "-"),
        ("rm -rf /home", "delete-critical"),
        ("rm -rf /", "delete-critical"),
        ("rm -rf /usr", "delete-critical"),
        ("rm -rf $DIR/", "delete-critical"),
        ("rm -rf -- ..", "delete-critical"),
        ("rm -rf build", "-"),
        ("rm -rf build/*", "-"),
        ("rm -rf build-$ARCH", "-"),
        ("rm x*.o", "-"),
        ("rm -rf /tmp/x", "-"),
        ("mv .git x", "move-critical"),
        ("mv a b", "-"),
        ("chmod -R 777 /", "mode-critical"),
        ("chmod +x run.sh", "-"),
        ("find . -delete", "find-delete-all"),
        ("find . -name x -delete", "find-action"),
        ("dd if=a of=/dev/sda", "write-device"),
        ("dd if=a of=b", "-"),
        ("mkfs.ext4 x", "make-filesystem"),
        ("git push --force", "git-push"),
        ("git -c a=b push", "git-push"),
        ("git -c a=b status", "git-global-options"),
        ("git reset --hard", "git-reset-hard"),
        ("git reset --har", "git-reset-hard"),
        ("git reset HEAD x", "-"),
        ("git clean -fdx", "git-clean"),
        ("git clean -n", "-"),
        ("git checkout .", "git-checkout-all"),
        ("git checkout -- .", "git-checkout-all"),
        ("git checkout -b x", "-"),
        ("git restore .", "git-checkout-all"),
        ("git branch -D x", "git-branch-delete"),
        ("git branch -a", "-"),
        ("git reflog", "-"),
        ("git reflog expire --all", "git-rewrite"),
        ("git gc --prune=now", "git-rewrite"),
        ("git update-ref x y", "git-rewrite"),
        ("git config user.name", "-"),
        ("git config --get user.name", "-"),
        ("git config core.pager x", "git-config-program"),
        ("git config Alias.x '!y'", "git-config-program"),
        ("git config --get core.pager", "-"),
        ("git config user.name x", "git-config"),
        ("git rebase --exec x main", "git-hidden-program"),
        ("git rebase main", "-"),
        ("git worktree list", "-"),
        ("git worktree add x", "git-worktree"),
        ("git $X", "git-credentials"),
        ("npm publish", "publish"),
        ("npm test", "-"),
        ("cargo +nightly publish", "publish-cargo"),
        ("curl -X POST u", "http-write"),
        ("curl -d a u", "http-write"),
        ("curl -s u", "-"),
        ("cat x | sh", "shell-from-pipe"),
        ("cat x | bash -s", "shell-from-pipe"),
        ("cat x | python3 -", "shell-from-pipe"),
        ("cat x | python3 -c 'y'", "interpreter-code"),
        ("kill -9 -1", "kill-strangers"),
        ("kill 42", "-"),
        ("sed -n 5p f", "-"),
        ("sed 's/e/w/g' f", "-"),
        ("sed '/w/d;s|a|e|' f", "-"),
        ("sed '1e x' f", "sed-script"),
        ("sed -e p -e 'w x' f", "sed-script"),
        ("sed \"s/$A/b/\" f", "sed-script"),
        ("awk '$1 > 5' f", "-"),
        ("sudo x", "privilege"),
        ("shutdown now", "power"),
    ] {
        assert_eq!(form(command), expected, "`{command}`");
    }
}

/// GNU's and git's programs take any unique start of a long option for it.
#[test]
fn every_flag_of_the_table_is_known_by_its_starts_too() {
    let forms = DangerousForms::embedded();
    let place = Place {
        cwds: &["/w".into()],
        worktree: Path::new("/w"),
        home: Path::new("/h"),
        globs_may_be_options: false,
    };
    let mut tried = 0;
    for form in forms.forms().iter().filter(|form| form.special.is_none() || !form.flags.is_empty()) {
        let Some(program) = form.programs.iter().find(|program| !program.contains('*')) else { continue };
        for long in form.flags.iter().filter_map(|flag| flag.strip_prefix("--")) {
            for end in long.char_indices().map(|(at, c)| at + c.len_utf8()) {
                for word in [format!("--{}", &long[..end]), format!("--{}=x", &long[..end])] {
                    let words = [program.as_str()].into_iter().chain(form.sub.first().map(String::as_str));
                    let argv = words.chain([word.as_str()]).map(Word::literal).collect();
                    let command = PlainCommand { argv, ..PlainCommand::default() };
                    assert!(form.matches(&command, &place), "{program} {word}: {}", form.id);
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 1_000, "{tried}");
}
