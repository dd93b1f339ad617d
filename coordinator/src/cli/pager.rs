//! Long output goes through the pager the user has chosen, as a child; quitting it early is no error.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use super::{error::Result, shell::Shell};

/// What is shown: a diff has git's own choice of pager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Text.
    Text,
    /// A patch.
    Diff,
}

/// Writes text to standard output, through a pager when that is a terminal.
pub(crate) fn show(shell: &mut Shell, kind: Kind, text: &str) -> Result<()> {
    if shell.out.is_terminal
        && !shell.options.no_pager
        && let Some(command) = choose(shell, kind)
        && run(shell, &command, text)
    {
        return Ok(());
    }
    Ok(shell.out.text(text)?)
}

/// Whether links may be in a text for [`show`]: `less` knows them, another pager may show their bytes.
pub(crate) fn takes_links(shell: &Shell, kind: Kind) -> bool {
    if !shell.out.is_terminal || shell.options.no_pager {
        return true;
    }
    choose(shell, kind).is_none_or(|command| {
        let program = command.split_whitespace().next().unwrap_or_default();
        Path::new(program).file_name().is_some_and(|name| name == "less")
    })
}

fn choose(shell: &Shell, kind: Kind) -> Option<String> {
    let variable = |name: &str| shell.around.variable(name).map(str::to_owned);
    let of_git = || {
        variable("GIT_PAGER").or_else(|| {
            let output = Command::new("git")
                .args(["config", "--get", "core.pager"])
                .current_dir(&shell.around.directory)
                .stderr(Stdio::null())
                .output()
                .ok()?;
            let chosen = String::from_utf8(output.stdout).ok()?.trim().to_owned();
            (!chosen.is_empty()).then_some(chosen)
        })
    };
    let chosen = variable("SWARM_PAGER")
        .or_else(|| if kind == Kind::Diff { of_git() } else { None })
        .or_else(|| variable("PAGER"))
        .unwrap_or_else(|| "less".to_owned());
    // `cat` is how people say "no pager".
    (chosen != "cat").then_some(chosen)
}

/// Whether the pager ran; if not, the text is written plain.
fn run(shell: &Shell, command: &str, text: &str) -> bool {
    let mut pager = Command::new("sh");
    pager.args(["-c", command]).stdin(Stdio::piped());
    if shell.around.variable("LESS").is_none() {
        pager.env("LESS", "FRX");
    }
    let Ok(mut child) = pager.spawn() else { return false };
    if let Some(mut stdin) = child.stdin.take() {
        let text = if shell.out.has_colour() {
            text.to_owned()
        } else {
            anstream::adapter::strip_str(text).to_string()
        };
        // A reader that quits early has seen enough.
        let _quit_early = stdin.write_all(text.as_bytes());
    }
    // 127: there is no such program.
    !matches!(child.wait().map(|status| status.code()), Ok(Some(127)) | Err(_))
}
