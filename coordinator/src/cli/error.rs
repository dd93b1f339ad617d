//! What went wrong, in the one form people and programs read it.
//!
//! People: `error[code]: what`, `  cause:` lines down to the root, `  hint:` with what to do. Programs: one
//! `error` line. The server's problems and the shell's own errors look the same.

use std::io;

use serde_json::{Value, json};
use swarm_protocol::{Timestamp, api::Problem};

use super::text::visible;

/// Everything went wrong that has no code of its own.
pub(crate) const EXIT_FAILURE: u8 = 1;
/// The command line, the repository or the configuration cannot be used.
pub(crate) const EXIT_USAGE: u8 = 2;
/// No model, or the provider refused the key or the model.
pub(crate) const EXIT_MODEL: u8 = 3;
/// A person interrupted.
pub(crate) const EXIT_INTERRUPTED: u8 = 130;
/// The terminal went away: the client leaves, the work goes on.
pub(crate) const EXIT_HANGUP: u8 = 129;
/// SIGTERM: the client leaves, the work goes on.
pub(crate) const EXIT_TERMINATED: u8 = 143;

/// The result of a command.
pub(crate) type Result<T> = std::result::Result<T, CliError>;

/// An error as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CliError {
    /// The stable code.
    pub(crate) code: String,
    /// What.
    pub(crate) message: String,
    /// Where and why, down to the root; each may have several lines.
    pub(crate) causes: Vec<String>,
    /// How to go on.
    pub(crate) hint: Option<String>,
    /// The exit code of the program.
    pub(crate) exit: u8,
}

/// The code of an error that nobody is told: the reader of our output went away.
const BROKEN_PIPE: &str = "broken_pipe";

impl CliError {
    /// An error with the exit code that belongs to its code.
    pub(crate) fn new(code: &str, message: impl Into<String>) -> Self {
        Self {
            code: code.to_owned(),
            message: message.into(),
            causes: Vec::new(),
            hint: None,
            exit: exit_code(code),
        }
    }

    /// A mistake on the command line.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new("usage", message)
    }

    pub(crate) fn cause(mut self, cause: impl Into<String>) -> Self {
        self.causes.push(cause.into());
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Whether this only says that nobody reads any more.
    pub(crate) fn is_silent(&self) -> bool {
        self.code == BROKEN_PIPE
    }

    /// For people; ends with a line break. Styled; plain streams take the styles out.
    pub(crate) fn render(&self) -> String {
        let red = anstyle::AnsiColor::Red.on_default().bold();
        let dim = anstyle::Style::new().dimmed();
        let mut text =
            format!("{red}error[{code}]{red:#}: {what}\n", code = self.code, what = visible(&self.message));
        for cause in &self.causes {
            push_labelled(&mut text, &format!("  {dim}cause:{dim:#} "), cause);
        }
        if let Some(hint) = &self.hint {
            push_labelled(&mut text, &format!("  {dim}hint:{dim:#}  "), hint);
        }
        text
    }

    /// For programs.
    pub(crate) fn json(&self, at: Timestamp) -> Value {
        let mut line = json!({
            "v": 1, "seq": null, "at": at, "session_id": null, "kind": "error",
            "code": self.code, "message": self.message,
        });
        if let Value::Object(fields) = &mut line {
            if !self.causes.is_empty() {
                fields.insert("causes".to_owned(), json!(self.causes));
            }
            if let Some(hint) = &self.hint {
                fields.insert("hint".to_owned(), json!(hint));
            }
        }
        line
    }
}

fn push_labelled(text: &mut String, label: &str, words: &str) {
    for (at, line) in words.lines().enumerate() {
        // "  cause: " and "  hint:  " are nine cells wide; further lines stand below the words.
        text.push_str(if at == 0 { label } else { "         " });
        text.push_str(&visible(line));
        text.push('\n');
    }
}

/// The exit code of a code: the one table.
pub(crate) fn exit_code(code: &str) -> u8 {
    match code {
        BROKEN_PIPE => 0,
        "no_model" | "no_key" | "key_refused" | "unknown_model" => EXIT_MODEL,
        "usage"
        | "not_available"
        | "not_a_repository"
        | "cannot_carry"
        | "not_utf8"
        | "no_commit"
        | "bad_base"
        | "empty_prompt"
        | "bad_config"
        | "bad_settings"
        | "unknown_price"
        | "unsupported_repository" => EXIT_USAGE,
        "interrupted" => EXIT_INTERRUPTED,
        _ => EXIT_FAILURE,
    }
}

impl From<Problem> for CliError {
    fn from(problem: Problem) -> Self {
        let Problem { problem_type: _, status, title, causes, hint, code } = problem;
        let exit = match (exit_code(&code), status) {
            // What the server refuses as not offered yet is a mistake on our command line.
            (_, 501) => EXIT_USAGE,
            (exit, _) => exit,
        };
        Self { code, message: title, causes, hint, exit }
    }
}

impl From<io::Error> for CliError {
    /// Output that could not be written.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(BROKEN_PIPE, "nobody reads the output"),
            _ => Self::new("output_failed", format!("failed to write the output: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn what_where_why_how() {
        let error = CliError::new("bad_config", "max_workers must be a number from 1 to 64")
            .cause("swarm.toml:7:15\n7 | max_workers = \"many\"\n  |               ^^^^^^")
            .hint("max_workers = 3");
        assert_eq!(error.exit, EXIT_USAGE);
        expect![[r#"
            error[bad_config]: max_workers must be a number from 1 to 64
              cause: swarm.toml:7:15
                     7 | max_workers = "many"
                       |               ^^^^^^
              hint:  max_workers = 3
        "#]]
        .assert_eq(&anstream::adapter::strip_str(&error.render()).to_string());
    }

    #[test]
    fn one_line_for_programs() {
        let error = CliError::new("unknown_id", "no worker or session `h7x`");
        assert_eq!(
            error.json(Timestamp::from_millis(1_796_060_683_031)).to_string(),
            "{\"v\":1,\"seq\":null,\"at\":\"2026-11-30T17:44:43.031Z\",\"session_id\":null,\
             \"kind\":\"error\",\"code\":\"unknown_id\",\"message\":\"no worker or session `h7x`\"}"
        );
    }

    #[test]
    fn a_problem_keeps_its_words_and_gets_its_exit_code() {
        let check = |code: &str, status, exit| {
            let problem = Problem {
                problem_type: "about:blank".to_owned(),
                status,
                title: "t".to_owned(),
                causes: vec!["c".to_owned()],
                hint: None,
                code: code.to_owned(),
            };
            assert_eq!(CliError::from(problem).exit, exit, "{code}");
        };
        check("no_model", 422, EXIT_MODEL);
        check("bad_base", 422, EXIT_USAGE);
        check("target_dirty", 409, EXIT_FAILURE);
        check("anything_new", 500, EXIT_FAILURE);
        check("not_implemented", 501, EXIT_USAGE);
    }

    #[test]
    fn foreign_bytes_in_an_error_cannot_steer_the_terminal() {
        let error = CliError::new("bad_base", "no commit `\u{1b}[2J`");
        assert!(!anstream::adapter::strip_str(&error.render()).to_string().contains('\u{1b}'));
        assert!(error.render().contains("\\x1b[2J"), "{}", error.render());
    }
}
