//! Why a git command brought no result.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

/// Why a git command brought no result.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// The program is missing or cannot be executed.
    #[error("cannot start {}: is git installed and in PATH?", program.display())]
    Start {
        program: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// Talking to the child failed.
    #[error("lost the connection to `{command}`")]
    Pipe {
        command: String,
        #[source]
        source: std::io::Error,
    },
    /// The time limit passed; the process group was ended.
    #[error("`{command}` took longer than {after:?} and was ended; is the disk or a remote slow?")]
    Timeout { command: String, after: Duration },
    /// Another program holds a lock file.
    #[error("`{command}` needs {}, which another program holds", path.display())]
    Locked { command: String, path: PathBuf },
    /// git answered with a failure.
    #[error("`{command}` failed ({}): {}", code_text(*code), stderr.trim_end())]
    Failed { command: String, code: Option<i32>, stderr: String },
    /// More output than an answer of this kind can have.
    #[error("`{command}` printed more than {limit_bytes} bytes")]
    TooMuchOutput { command: String, limit_bytes: usize },
    /// git answered in a form this version of swarm does not know.
    #[error("cannot read the answer of `{command}`: {problem}")]
    Answer { command: String, problem: &'static str },
}

fn code_text(code: Option<i32>) -> String {
    code.map_or_else(|| "killed by a signal".to_owned(), |c| format!("exit code {c}"))
}

/// git says `Unable to create '<path>.lock': File exists.` for every kind of lock file.
pub(super) fn lock_named_in(stderr: &str) -> Option<PathBuf> {
    let (_, rest) = stderr.split_once("Unable to create '")?;
    let (path, _) = rest.split_once("': File exists")?;
    Some(PathBuf::from(OsString::from_vec(path.as_bytes().to_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_in_a_refusal_is_recognised() {
        let check = |stderr: &str, expected: Option<&str>| {
            assert_eq!(lock_named_in(stderr), expected.map(PathBuf::from));
        };
        check(
            "fatal: Unable to create '/r/.git/index.lock': File exists.\n\nAnother git process",
            Some("/r/.git/index.lock"),
        );
        check(
            "fatal: update_ref failed: cannot lock ref 'refs/heads/a': Unable to create '/r/it's/a.lock': File exists.",
            Some("/r/it's/a.lock"),
        );
        check("fatal: not a git repository", None);
    }
}
