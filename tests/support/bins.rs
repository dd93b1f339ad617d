//! Where the programs under test are.
//!
//! Cargo builds programs of other packages only when asked. So a test that needs one asks here, and it is built if
//! it is missing or older than the sources; cargo's own lock keeps parallel tests from disturbing each other.

use std::{
    collections::HashMap,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

/// Overrides the search: a directory with finished programs.
const BIN_DIR: &str = "SWARM_TEST_BIN_DIR";

pub fn swarm() -> PathBuf {
    program("swarm", "coordinator")
}

pub fn swarm_worker() -> PathBuf {
    program("swarm-worker", "worker")
}

pub fn model_server() -> PathBuf {
    program("model-server", "integration-tests")
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
fn program(name: &'static str, package: &str) -> PathBuf {
    static READY: Mutex<Option<HashMap<&str, PathBuf>>> = Mutex::new(None);
    let path = directory().join(name);
    if std::env::var_os(BIN_DIR).is_some() {
        return path;
    }
    let mut ready = READY.lock().unwrap_or_else(PoisonError::into_inner);
    let ready = ready.get_or_insert_default();
    if ready.contains_key(name) {
        return path;
    }
    if is_stale(&path) {
        build(name, package);
    }
    assert!(path.exists(), "{} was not built", path.display());
    ready.insert(name, path.clone());
    path
}

fn is_stale(program: &Path) -> bool {
    let built = fs::metadata(program).and_then(|file| file.modified());
    built.is_ok_and(|built| newest_source(&workspace()) > built) || !program.exists()
}

fn workspace() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("the package is in the workspace").to_owned()
}

/// When a source of the workspace was last written; tests do not count.
fn newest_source(directory: &Path) -> SystemTime {
    let mut newest = SystemTime::UNIX_EPOCH;
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let kind = entry.file_type();
        if kind.is_ok_and(|kind| kind.is_dir()) {
            let skipped = matches!(&*name, "target" | "node_modules" | "tests");
            if !skipped && !name.starts_with('.') {
                newest = newest.max(newest_source(&path));
            }
        } else if let Ok(written) = entry.metadata().and_then(|file| file.modified()) {
            newest = newest.max(written);
        }
    }
    newest
}

fn build(name: &str, package: &str) {
    let directory = directory();
    let profile = directory.file_name().and_then(OsStr::to_str).unwrap_or("debug");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace()).args(["build", "--quiet", "--package", package, "--bin", name]);
    cargo.args(["--profile", if profile == "debug" { "dev" } else { profile }]);
    cargo.arg("--target-dir").arg(directory.parent().expect("the profile is in the target directory"));
    let output = cargo.output().expect("cargo can be started");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "failed to build {name}:\n{errors}");
}
