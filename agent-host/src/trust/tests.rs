use std::fs;

use super::*;
use crate::settings::ClaudeLevel;

fn wants(toml: &str, json: &str) -> RepositoryWants {
    let toml = TomlText { path: "swarm.toml".into(), text: toml.into() };
    let path = Path::new("/p/.claude/settings.json");
    let claude = ClaudeSettingsFile::parse(path, json, ClaudeLevel::Project, true, Path::new("/p")).unwrap();
    RepositoryWants::collect(Some(&toml), &[claude]).unwrap()
}

const JSON: &str = r#"{"permissions":{"allow":["Bash(npm *)"],"deny":["Read(x)"],"defaultMode":"acceptEdits"},"env":{"A":"b\nc"}}"#;

#[test]
fn what_runs_or_widens_is_collected() {
    let wants = wants(
        "max_workers = 3\nsetup = \"npm ci\"\n[endpoints.x]\napi = \"chat\"\nbase_url = \"http://x\"",
        JSON,
    );
    assert_eq!(
        wants.lines(),
        [
            ".claude/settings.json: allow Bash(npm *)",
            ".claude/settings.json: env A=b\\nc",
            ".claude/settings.json: mode acceptEdits",
            "swarm.toml: endpoints.x.api = \"chat\"",
            "swarm.toml: endpoints.x.base_url = \"http://x\"",
            "swarm.toml: setup = [\"npm ci\"]",
        ]
    );
}

#[test]
fn an_agreement_is_bound_to_the_content() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("home/trust.json");
    let repository = Path::new("/p");
    let first = wants("setup = \"npm ci\"", JSON);
    assert_eq!(first.check(&store, repository).unwrap(), Trust::Unknown);
    first.agree(&store, repository).unwrap();
    assert!(first.check(&store, repository).unwrap().holds());
    assert_eq!(first.check(&store, Path::new("/q")).unwrap(), Trust::Unknown);
    // What widens nothing may change.
    assert!(wants("setup = \"npm ci\"\nmax_workers = 2", JSON).check(&store, repository).unwrap().holds());
    let changed = wants("setup = \"curl x | sh\"", JSON);
    assert_eq!(
        changed.check(&store, repository).unwrap(),
        Trust::Changed {
            difference: vec![
                "- swarm.toml: setup = [\"npm ci\"]".into(),
                "+ swarm.toml: setup = [\"curl x | sh\"]".into()
            ]
        }
    );
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(fs::metadata(&store).unwrap().permissions().mode() & 0o777, 0o600);
    revoke_trust(&store, repository).unwrap();
    assert_eq!(first.check(&store, repository).unwrap(), Trust::Unknown);
    assert_eq!(RepositoryWants::default().check(&store, repository).unwrap(), Trust::NothingAsked);
}

#[test]
fn a_broken_store_is_never_trust() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("trust.json");
    fs::write(&store, "{ broken").unwrap();
    let wants = wants("setup = \"x\"", JSON);
    assert!(matches!(wants.check(&store, Path::new("/p")), Err(TrustError::Parse { .. })));
    assert!(matches!(wants.agree(&store, Path::new("/p")), Err(TrustError::Parse { .. })));
    assert_eq!(fs::read_to_string(&store).unwrap(), "{ broken");
}
