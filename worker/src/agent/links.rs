//! Links of the worktree that lead into the main checkout, such as a `node_modules` that set-up linked: what runs
//! from there is the other tree, and the agent should know.

use std::{
    collections::VecDeque,
    fs,
    path::{Path, PathBuf},
};

/// Entries looked at: enough for what stands near the top, and a moment's work in any tree.
const MOST_ENTRIES: usize = 20_000;

/// Links named.
const MOST_NAMED: usize = 5;

/// What to tell the agent; none when there is no such link.
pub(super) async fn warning(worktree: &Path, checkout: &Path) -> Option<String> {
    let (worktree, checkout) = (worktree.to_owned(), checkout.to_owned());
    tokio::task::spawn_blocking(move || describe(&find(&worktree, &checkout))).await.ok().flatten()
}

fn describe(links: &[(PathBuf, PathBuf)]) -> Option<String> {
    let (first, _) = links.first()?;
    let named: Vec<String> = links
        .iter()
        .take(MOST_NAMED)
        .map(|(link, target)| format!("{} -> {}", link.display(), target.display()))
        .collect();
    let more = links.len().saturating_sub(MOST_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Some(format!(
        "Links that lead out of your worktree into the main checkout: {}{more}. Imports and tests that go through \
         {} may resolve to the files there instead of yours, so a result may be about the other tree. Do not \
         change anything through such a link; if you need your own, remove the link and install it here.",
        named.join(", "),
        first.display(),
    ))
}

/// Links below `worktree`, those near its top first, with where they lead.
fn find(worktree: &Path, checkout: &Path) -> Vec<(PathBuf, PathBuf)> {
    let (Ok(own), Ok(main)) = (fs::canonicalize(worktree), fs::canonicalize(checkout)) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let mut open = VecDeque::from([worktree.to_owned()]);
    let mut looked_at = 0;
    while let Some(directory) = open.pop_front() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            looked_at += 1;
            if looked_at > MOST_ENTRIES {
                return found;
            }
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && entry.file_name() != ".git" => open.push_back(path),
                Ok(kind) if kind.is_symlink() => {
                    let Ok(target) = fs::canonicalize(&path) else { continue };
                    let leads_there = target.starts_with(&main) && !target.starts_with(&own);
                    if let (true, Ok(link)) = (leads_there, path.strip_prefix(worktree)) {
                        found.push((link.to_owned(), target));
                    }
                }
                Ok(_) | Err(_) => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn case_17_only_links_into_the_other_tree_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let main = fs::canonicalize(directory.path()).unwrap().join("main");
        // Inside the main checkout, where some people put it.
        let own = main.join("trees/own");
        fs::create_dir_all(main.join("node_modules/dep")).unwrap();
        fs::create_dir_all(own.join("packages/app/src")).unwrap();
        fs::create_dir_all(own.join("real")).unwrap();
        symlink(main.join("node_modules"), own.join("node_modules")).unwrap();
        symlink("../../../../node_modules/dep", own.join("packages/app/dep")).unwrap();
        symlink("real", own.join("inside")).unwrap();
        symlink("/usr", own.join("elsewhere")).unwrap();
        symlink("nowhere", own.join("broken")).unwrap();
        let found = find(&own, &main);
        let links: Vec<_> = found.iter().map(|(link, _)| link.to_str().unwrap()).collect();
        assert_eq!(links, ["node_modules", "packages/app/dep"]);
        let said = describe(&found).unwrap();
        assert!(said.contains(&format!("node_modules -> {}", main.join("node_modules").display())), "{said}");
        assert_eq!(describe(&find(&own.join("real"), &main)), None);
    }
}
