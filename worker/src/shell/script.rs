//! The script around a command: restores what the last one left, runs the command, captures what it
//! leaves. Capture files are written inside the sandbox, so they are read with suspicion.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt, OsStringExt as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The longest command that fits one argument of `execve` (`MAX_ARG_STRLEN`, with its NUL).
pub(super) const MAX_COMMAND_BYTES: usize = 128 * 1024 - 1;
/// The longest working directory that is believed.
const MAX_CWD_BYTES: u64 = 16 * 1024;

/// Exported variables; sourced by the next command.
const VARIABLES: &str = "variables";
const FUNCTIONS: &str = "functions";
/// The logical working directory and a NUL.
const CWD: &str = "cwd";
/// Written last: the others are whole.
const COMPLETE: &str = "complete";

/// The script for `bash -c`, to be followed by a name and the command as `$1`. The command is not part
/// of it and the script is one line, so that bash counts the command's lines from 1. `start` are the names of variables
/// that every command starts with: one that is exported no more stays so.
pub(super) fn script<'a>(
    restore: Option<&Path>,
    capture: Option<&Path>,
    start: impl IntoIterator<Item = &'a OsStr>,
) -> Vec<u8> {
    let mut script = Vec::new();
    if let Some(restore) = restore {
        for file in [VARIABLES, FUNCTIONS] {
            add(&mut script, &[b". ", &quoted(restore.join(file)), b" 2>/dev/null; "]);
        }
        // With it `*` would name hidden files, which rules take it not to.
        add(&mut script, &[b"builtin unset GLOBIGNORE; "]);
    }
    let capture = capture.map(|dir| capture_commands(dir, start));
    if let Some(capture) = &capture {
        // Runs at `exit`, under `set -e` and at SIGTERM. Subshells do not inherit it. A trap of the
        // command's own takes its place; then only a command that runs to its end is captured.
        // The trap leaves the status alone, and a deadly signal stays one.
        let trap = quoted(OsStr::from_bytes(capture));
        add(&mut script, &[b"builtin trap ", &trap, b" EXIT; "]);
    }
    add(&mut script, &[b"eval \"builtin shift; $1\""]);
    if let Some(capture) = &capture {
        add(&mut script, &[b"; builtin set -- \"$?\"; ", capture, b"builtin exit \"$1\""]);
    }
    script
}

/// Builtins only: it works without a PATH, and a fork less is a millisecond less.
fn capture_commands<'a>(dir: &Path, start: impl IntoIterator<Item = &'a OsStr>) -> Vec<u8> {
    let into = |file: &str| quoted(dir.join(file));
    let mut gone = Vec::new();
    for name in start.into_iter().filter(|name| is_name(name)).map(OsStrExt::as_bytes) {
        // `declare` says nothing of those.
        add(
            &mut gone,
            &[b"[[ ${", name, b"@a} == *x* ]] || builtin printf 'builtin unset -v ", name, b"\\n'; "],
        );
    }
    [
        b"{ builtin set +e +u +x +n +o noclobber; builtin export -n PWD SHLVL SWARM_RUN SWARM_COMMAND; \
          { "
        .as_slice(),
        &gone,
        b"builtin declare -px; } >",
        &into(VARIABLES),
        b" && builtin declare -f >",
        &into(FUNCTIONS),
        b" && builtin printf '%s\\0' \"$PWD\" >",
        &into(CWD),
        b" && builtin : >",
        &into(COMPLETE),
        b"; } 2>/dev/null; ",
    ]
    .concat()
}

/// What can stand in a script as the name of a variable.
fn is_name(name: &OsStr) -> bool {
    let name = name.as_bytes();
    let is_letter = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_';
    name.first().is_some_and(is_letter) && name.iter().all(|byte| is_letter(byte) || byte.is_ascii_digit())
}

/// Whether all that a command left is still there.
pub(super) fn is_whole(dir: &Path) -> bool {
    read_plain(&dir.join(COMPLETE)).is_ok()
}

fn add(script: &mut Vec<u8>, parts: &[&[u8]]) {
    for part in parts {
        script.extend_from_slice(part);
    }
}

/// In single quotes for a POSIX shell.
fn quoted(text: impl AsRef<OsStr>) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for byte in text.as_ref().as_bytes() {
        if *byte == b'\'' {
            quoted.extend_from_slice(b"'\\''");
        } else {
            quoted.push(*byte);
        }
    }
    quoted.push(b'\'');
    quoted
}

/// The working directory a command left, if its capture is whole.
pub(super) fn captured_cwd(dir: &Path) -> io::Result<PathBuf> {
    read_plain(&dir.join(COMPLETE))?;
    let bytes = read_plain(&dir.join(CWD))?;
    match bytes.strip_suffix(b"\0") {
        Some(path) if path.starts_with(b"/") => {
            Ok(PathBuf::from(std::ffi::OsString::from_vec(path.to_vec())))
        }
        _ => Err(io::Error::other("not a working directory")),
    }
}

/// Reads a small regular file; neither follows a link nor waits for a pipe put in its place.
fn read_plain(path: &Path) -> io::Result<Vec<u8>> {
    use nix::libc::{O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK};
    let file = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_CWD_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_survive() {
        assert_eq!(quoted("it's"), br"'it'\''s'");
        let text = String::from_utf8(script(Some(Path::new("/a'b")), None, [])).unwrap();
        assert!(text.starts_with(r". '/a'\''b/variables' 2>/dev/null; "), "{text}");
    }

    #[test]
    fn only_whole_captures_are_believed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(CWD), "/tmp\0").unwrap();
        assert!(captured_cwd(dir.path()).is_err());
        std::fs::write(dir.path().join(COMPLETE), "").unwrap();
        assert_eq!(captured_cwd(dir.path()).unwrap(), Path::new("/tmp"));
        std::fs::remove_file(dir.path().join(CWD)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join(CWD)).unwrap();
        assert!(captured_cwd(dir.path()).is_err());
    }
}
