//! The environment that commands see.

use std::collections::BTreeMap;

/// Variables that programs need to be found and to speak, and where tool chains say they stand. Everything else
/// stays out of what commands see and of what is recorded: a name does not tell whether its value opens a door.
const PASSED: [&str; 62] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "CI",
    "CC",
    "CXX",
    "AR",
    "CFLAGS",
    "CXXFLAGS",
    "CPPFLAGS",
    "LDFLAGS",
    "MAKEFLAGS",
    "PKG_CONFIG_PATH",
    "LD_LIBRARY_PATH",
    "LIBRARY_PATH",
    "CPATH",
    "CMAKE_PREFIX_PATH",
    "CMAKE_GENERATOR",
    "CARGO_HOME",
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
    "RUSTFLAGS",
    "RUST_BACKTRACE",
    "GOPATH",
    "GOROOT",
    "GOFLAGS",
    "GOBIN",
    "GOCACHE",
    "GOMODCACHE",
    "PYENV_ROOT",
    "PYENV_VERSION",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "PYTHONPATH",
    "PYTHONHOME",
    "NVM_DIR",
    "NVM_BIN",
    "NODE_PATH",
    "NODE_ENV",
    "VOLTA_HOME",
    "BUN_INSTALL",
    "DENO_DIR",
    "PNPM_HOME",
    "JAVA_HOME",
    "JDK_HOME",
    "MAVEN_HOME",
    "M2_HOME",
    "GRADLE_HOME",
    "GRADLE_USER_HOME",
    "ANDROID_HOME",
    "RBENV_ROOT",
    "GEM_HOME",
    "GEM_PATH",
    "DOTNET_ROOT",
    "SDKMAN_DIR",
    "ASDF_DIR",
];

/// The environment that commands may see of a person's own.
pub(super) fn passed(environment: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    environment
        .iter()
        .filter(|(name, _)| PASSED.contains(&name.as_str()) || name.starts_with("LC_"))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// What settings files name for commands: all of it but what looks like a key, and what is swarm's or git's own.
pub(super) fn named(environment: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    const SECRETS: [&str; 7] = ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "COOKIE"];
    let keeps = |name: &str| {
        let upper = name.to_uppercase();
        !upper.starts_with("SWARM_")
            && !upper.starts_with("GIT_")
            && !SECRETS.iter().any(|secret| upper.contains(secret))
    };
    let kept = environment.iter().filter(|(name, _)| keeps(name));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x23_only_what_programs_need_reaches_commands() {
        let environment: BTreeMap<String, String> = [
            ("PATH", "/bin"),
            ("LC_ALL", "C"),
            ("ANTHROPIC_API_KEY", "k"),
            ("DATABASE_URL", "postgres://u:p@h"),
            ("MYSQL_PWD", "p"),
            ("GITLAB_PAT", "t"),
            ("HTTP_PROXY", "http://u:p@h"),
            ("SSH_AUTH_SOCK", "/x"),
            ("SWARM_HOME", "/y"),
            ("GIT_DIR", "/z"),
            ("CARGO_HOME", "/c"),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
        assert_eq!(passed(&environment).into_keys().collect::<Vec<_>>(), ["CARGO_HOME", "LC_ALL", "PATH"]);
        // What a settings file names is wanted there.
        let kept: Vec<String> = named(&environment).into_keys().collect();
        assert!(kept.contains(&"DATABASE_URL".to_owned()) && !kept.contains(&"ANTHROPIC_API_KEY".to_owned()));
    }
}
