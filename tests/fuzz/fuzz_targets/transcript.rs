//! A transcript's file of any bytes.
#![no_main]

use std::sync::OnceLock;

static DIRECTORY: OnceLock<tempfile::TempDir> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let directory = DIRECTORY.get_or_init(|| tempfile::tempdir().expect("a temporary directory"));
    agent_host::transcript::fuzzing::transcript(data, directory.path());
});
