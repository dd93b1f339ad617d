use std::{fs, path::PathBuf, thread};

use super::*;

/// Directories of a person, a project and swarm.
struct Machine {
    root: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn write(&self, path: &str, text: &str) -> &Self {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn places(&self) -> ClaudePlaces {
        ClaudePlaces {
            managed: self.path("etc/managed-settings.json"),
            user_directory: self.path("home/.claude"),
            project: self.path("p"),
            swarm_local: self.path("swarm/projects/x/settings.local.json"),
            local_is_ignored: true,
        }
    }

    fn load(&self, trusted: bool) -> ClaudeSettings {
        ClaudeSettings::load(&self.places(), trusted).unwrap()
    }

    fn error(&self) -> String {
        let errors = ClaudeSettings::load(&self.places(), true).unwrap_err();
        let error = &errors[0];
        let place = error.place().map(|place| format!("{}:{}", place.line, place.column)).unwrap_or_default();
        format!("{error} @{place}").replace(&self.root.path().display().to_string(), "")
    }
}

#[test]
fn levels_join_and_only_trust_lets_a_repository_widen() {
    let machine = Machine::new();
    machine
        .write("etc/managed-settings.json", r#"{"permissions":{"deny":["Bash(curl *)"],"disableBypassPermissionsMode":"disable"}}"#)
        .write("home/.claude/settings.json", r#"{"permissions":{"allow":["Bash(ls *)"],"defaultMode":"bypassPermissions"},"env":{"A":"user"}}"#)
        .write(
            "p/.claude/settings.json",
            r#"{"permissions":{"allow":["Bash(npm *)"],"deny":["Read(./.env)"],"ask":["Bash(git push *)"],"additionalDirectories":["../docs/"],"defaultMode":"dontAsk"},"env":{"A":"project","N":1}}"#,
        )
        .write("p/.claude/settings.local.json", r#"{"permissions":{"allow":["Bash(make *)"]}}"#)
        .write("swarm/projects/x/settings.local.json", r#"{"permissions":{"allow":["Bash(cargo *)"]}}"#);
    let texts =
        |settings: &ClaudeSettings| settings.rules.iter().map(|rule| rule.text.clone()).collect::<Vec<_>>();
    let trusted = machine.load(true);
    assert_eq!(
        texts(&trusted),
        [
            "Bash(curl *)",
            "Bash(make *)",
            "Bash(cargo *)",
            "Read(./.env)",
            "Bash(git push *)",
            "Bash(npm *)",
            "Bash(ls *)"
        ]
    );
    assert_eq!(trusted.env["A"], "project");
    assert_eq!(trusted.env["N"], "1");
    assert_eq!(trusted.additional_directories, [machine.path("docs")]);
    assert_eq!(trusted.default_mode, None, "a managed switch that no one lifts");
    assert_eq!(trusted.files.len(), 5);
    let untrusted = machine.load(false);
    assert!(!texts(&untrusted).contains(&"Bash(npm *)".to_owned()));
    assert!(texts(&untrusted).contains(&"Read(./.env)".to_owned()));
    assert_eq!(untrusted.env["A"], "user");
    let ignored: Vec<&str> = untrusted.ignored.iter().map(|ignored| ignored.what.as_str()).collect();
    assert!(
        ignored.contains(&"allow Bash(npm *)")
            && ignored.contains(&"env A")
            && ignored.contains(&"defaultMode dontAsk")
    );
}

#[test]
fn a_local_file_that_git_does_not_ignore_is_the_repositorys() {
    let machine = Machine::new();
    machine.write("p/.claude/settings.local.json", r#"{"permissions":{"allow":["Bash(make *)"]}}"#);
    let places = ClaudePlaces { local_is_ignored: false, ..machine.places() };
    assert!(ClaudeSettings::load(&places, false).unwrap().rules.is_empty());
}

#[test]
fn errors_name_file_line_and_column() {
    let machine = Machine::new();
    let case = |text: &str| {
        machine.write("p/.claude/settings.json", text);
        machine.error()
    };
    assert_eq!(
        case("{\n \"permissions\": {\n  \"deny\": [\n   \"Bash(x)\",\n   \"Read(file:///x)\"\n]}}"),
        "the rule `Read(file:///x)` does not parse: a path is written `//absolute`, `~/home`, \
         `/from the settings' directory` or `relative`, not as a URL @5:14"
    );
    assert_eq!(
        case("{\n \"permissions\": {,}\n}"),
        "/p/.claude/settings.json is not JSON: key must be a string @2:18"
    );
    assert_eq!(case("[]"), "the file must hold a JSON object @1:1");
    assert_eq!(
        case("{\"permissions\": {\"allow\": \"x\"}}"),
        "permissions.allow must be a list of texts @1:18"
    );
    assert_eq!(case("{\"permissions\": {\"deny\": [1]}}"), "permissions.deny must be a list of texts @1:18");
    assert_eq!(case("{\"permissions\": 1}"), "permissions must be an object @1:2");
    assert_eq!(case("{\"env\": {\"A\": []}}"), "env.A must be text @1:10");
}

#[test]
fn odd_files_that_are_fine() {
    let machine = Machine::new();
    machine
        .write("home/.claude/settings.json", "")
        .write("real.json", r#"{"permissions":{"deny":["toString","constructor","__proto__"]},"hooks":{},"unknown":[1,{"a":"b"}]}"#);
    fs::create_dir_all(machine.path("p/.claude")).unwrap();
    std::os::unix::fs::symlink(machine.path("real.json"), machine.path("p/.claude/settings.json")).unwrap();
    let settings = machine.load(false);
    assert_eq!(settings.rules.len(), 3);
    assert_eq!(settings.rules[0].origin.line, Some(1));
}

#[test]
fn r08_fifty_writers_lose_nothing() {
    let machine = Machine::new();
    machine.write(
        "p/.claude/settings.local.json",
        r#"{"zeta":1,"permissions":{"allow":["Bash(ls *)"]},"alpha":{"x":[]}}"#,
    );
    let place = RulePlace::of_project(&machine.path("p"), &machine.path("swarm"), true);
    let writers: Vec<_> = (0..50)
        .map(|n| {
            let place = place.clone();
            thread::spawn(move || remember(&place, RuleBehavior::Allow, &format!("Bash(tool{n} *)")).unwrap())
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    remember(&place, RuleBehavior::Allow, "Bash(tool1 *)").unwrap();
    let text = fs::read_to_string(place.path()).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["permissions"]["allow"].as_array().unwrap().len(), 51);
    let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["zeta", "permissions", "alpha"]);
    assert_eq!(machine.load(true).rules.len(), 51);
    let left: Vec<_> =
        fs::read_dir(machine.path("p/.claude")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "the file and its lock: {left:?}");
}

#[test]
fn remembering_elsewhere_and_not_at_all() {
    let machine = Machine::new();
    let place = RulePlace::of_project(&machine.path("p"), &machine.path("swarm"), false);
    remember(&place, RuleBehavior::Deny, "Bash(rm *)").unwrap();
    assert!(place.path().starts_with(machine.path("swarm/projects")));
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(fs::metadata(place.path()).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(remember(&place, RuleBehavior::Allow, "Bash("), Err(RememberError::Rule { .. })));
    machine.write("p/.claude/settings.local.json", "{ broken");
    let broken = RulePlace::of_project(&machine.path("p"), &machine.path("swarm"), true);
    assert!(matches!(remember(&broken, RuleBehavior::Allow, "Bash"), Err(RememberError::Shape { .. })));
    assert_eq!(fs::read_to_string(broken.path()).unwrap(), "{ broken");
}
