//! Where the programs under test are.
//!
//! Cargo builds programs of other packages only when asked. So a test that needs one asks here, and it is built if
//! it is missing or older than the sources; cargo's own lock keeps parallel tests from disturbing each other.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::SystemTime,
};

/// Overrides the search: a directory with finished programs.
const BIN_DIR: &str = "SWARM_TEST_BIN_DIR";
const NAMES: [&str; 3] = ["swarm", "swarm-worker", "model-server"];

pub fn swarm() -> PathBuf {
    program("swarm")
}

pub fn swarm_worker() -> PathBuf {
    program("swarm-worker")
}

pub fn model_server() -> PathBuf {
    program("model-server")
}

/// The directory the programs stand in, for `PATH`.
pub fn directory() -> PathBuf {
    if let Some(directory) = std::env::var_os(BIN_DIR) {
        return directory.into();
    }
    let test = std::env::current_exe().expect("a test has a program file");
    let mut directory = test.parent().expect("a file has a directory");
    if directory.file_name() == Some(OsStr::new("deps")) {
        directory = directory.parent().expect("deps is in the profile's directory");
    }
    directory.to_owned()
}

/// # Panics
/// When it cannot be built.
fn program(name: &str) -> PathBuf {
    static FRESH: OnceLock<()> = OnceLock::new();
    let path = directory().join(name);
    if std::env::var_os(BIN_DIR).is_none() {
        FRESH.get_or_init(|| {
            if NAMES.iter().any(|name| is_stale(&directory().join(name))) {
                build();
            }
        });
    }
    assert!(path.exists(), "{} was not built", path.display());
    path
}

fn is_stale(program: &Path) -> bool {
    match fs::metadata(program).and_then(|file| file.modified()) {
        Ok(built) => newest_source(&workspace()) > built,
        Err(_) => true,
    }
}

fn workspace() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("the package is in the workspace").to_owned()
}

/// When a source of the programs was last written. The tests themselves are part of none.
fn newest_source(directory: &Path) -> SystemTime {
    let mut newest = SystemTime::UNIX_EPOCH;
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_source = name.ends_with(".rs") || name.ends_with(".toml");
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let skipped = matches!(&*name, "target" | "node_modules" | "it") || name.starts_with('.');
            if !skipped {
                newest = newest.max(newest_source(&path));
            }
        } else if let (true, Ok(written)) = (is_source, entry.metadata().and_then(|file| file.modified())) {
            newest = newest.max(written);
        }
    }
    newest
}

/// All programs at once, as a build of the workspace makes them: for one package alone, cargo might choose other
/// features of the libraries and build everything anew.
fn build() {
    let directory = directory();
    let profile = directory.file_name().and_then(OsStr::to_str).unwrap_or("debug");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace()).args(["build", "--quiet", "--workspace", "--bins"]);
    cargo.args(["--profile", if profile == "debug" { "dev" } else { profile }]);
    cargo.arg("--target-dir").arg(directory.parent().expect("the profile is in the target directory"));
    let output = cargo.output().expect("cargo can be started");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "failed to build the programs:\n{errors}");
    for name in NAMES {
        // What cargo found fresh keeps its old time, and would be asked about again by the next test.
        let file = fs::File::open(directory.join(name));
        let _only_slower = file.and_then(|file| file.set_modified(SystemTime::now()));
    }
}
