//! Links (OSC 8) on ids and on directories of workers. What a link leads to is made of our own ids, our loopback
//! address and percent-encoded paths alone: nothing foreign enters an escape sequence. The text suffices without.

use std::{net::SocketAddr, os::unix::ffi::OsStrExt, path::Path, time::Duration};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use swarm_protocol::{SessionId, WorkerId};

use super::{output::Stream, shell::Surroundings};

/// How long tmux may take to say what its terminal can do.
const TMUX_PATIENCE: Duration = Duration::from_millis(500);

/// What stands in a path as it is.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Where ids and paths in one stream lead; nowhere by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Links {
    /// The address of the server; none when the stream shows no links.
    address: Option<SocketAddr>,
}

/// What decides whether a stream shows links.
#[derive(Clone, Copy, Debug)]
struct Facts<'a> {
    /// Whether escape sequences reach the reader.
    escapes: bool,
    is_terminal: bool,
    /// `FORCE_HYPERLINK`.
    forced: Option<&'a str>,
    /// What the crate makes of the terminal's variables.
    supported: bool,
    /// Those variables leak into tmux, which may stand in any terminal.
    in_tmux: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Yes,
    No,
    /// If tmux says so.
    AskTmux,
}

fn decide(facts: &Facts<'_>) -> Answer {
    match (facts.escapes, facts.forced) {
        (false, _) => Answer::No,
        (true, Some(forced)) => {
            if forced.trim() == "0" {
                Answer::No
            } else {
                Answer::Yes
            }
        }
        (true, None) if !facts.is_terminal || !facts.supported => Answer::No,
        (true, None) if facts.in_tmux => Answer::AskTmux,
        (true, None) => Answer::Yes,
    }
}

/// Whether tmux's list of what its terminal can do names links.
fn names_hyperlinks(features: &str) -> bool {
    features.split(',').any(|feature| feature.trim() == "hyperlinks")
}

/// What tmux says of the terminal that shows this; no answer is none.
async fn ask_tmux() -> bool {
    let mut tmux = tokio::process::Command::new("tmux");
    tmux.args(["display", "-p", "#{client_termfeatures}"]);
    tmux.stdin(std::process::Stdio::null()).kill_on_drop(true);
    match tokio::time::timeout(TMUX_PATIENCE, tmux.output()).await {
        Ok(Ok(output)) => {
            output.status.success() && names_hyperlinks(&String::from_utf8_lossy(&output.stdout))
        }
        Ok(Err(_)) | Err(_) => false,
    }
}

impl Links {
    /// Links of a stream to the server at this address, if the stream shows any.
    pub(crate) async fn find(around: &Surroundings, stream: &Stream, address: &str) -> Self {
        let facts = Facts {
            escapes: stream.has_colour(),
            is_terminal: stream.is_terminal,
            forced: around.variable("FORCE_HYPERLINK"),
            supported: supports_hyperlinks::supports_hyperlinks(),
            in_tmux: around.variable("TMUX").is_some(),
        };
        let shown = match decide(&facts) {
            Answer::Yes => true,
            Answer::No => false,
            Answer::AskTmux => ask_tmux().await,
        };
        if shown { Self::to(address) } else { Self::default() }
    }

    /// Links to a server on this machine; to no other.
    fn to(address: &str) -> Self {
        Self { address: address.parse().ok().filter(|address: &SocketAddr| address.ip().is_loopback()) }
    }

    /// The server is at another address by now.
    pub(crate) fn follow(&mut self, address: &str) {
        if self.address.is_some() {
            *self = Self::to(address);
        }
    }

    /// A session's id, leading to its page.
    pub(crate) fn session(&self, id: SessionId, shown: &str) -> String {
        self.page(&format!("/s/{id}"), shown)
    }

    /// A worker's id, leading to its page.
    pub(crate) fn worker(&self, id: &WorkerId, shown: &str) -> String {
        self.page(&format!("/w/{id}"), shown)
    }

    /// A directory of ours.
    pub(crate) fn file(&self, path: &Path, shown: &str) -> String {
        if self.address.is_none() || !path.is_absolute() {
            return shown.to_owned();
        }
        linked(&format!("file://{}", percent_encode(path.as_os_str().as_bytes(), PATH)), shown)
    }

    fn page(&self, path: &str, shown: &str) -> String {
        match self.address {
            Some(address) => linked(&format!("http://{address}{path}"), shown),
            None => shown.to_owned(),
        }
    }
}

/// A text, styled or not, that leads somewhere.
fn linked(target: &str, shown: &str) -> String {
    format!("\x1b]8;;{target}\x1b\\{shown}\x1b]8;;\x1b\\")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{
        fixtures::SESSION,
        output::{CYAN, paint},
    };

    #[test]
    fn who_gets_links() {
        let plain = Facts { escapes: true, is_terminal: true, forced: None, supported: true, in_tmux: false };
        let table = [
            ("a terminal that shows them", plain, Answer::Yes),
            ("one that does not", Facts { supported: false, ..plain }, Answer::No),
            ("a pipe with colours", Facts { is_terminal: false, ..plain }, Answer::No),
            ("tmux in one that may", Facts { in_tmux: true, ..plain }, Answer::AskTmux),
            ("tmux in one that does not", Facts { in_tmux: true, supported: false, ..plain }, Answer::No),
            (
                "forced, into a pipe with colours",
                Facts { forced: Some("1"), is_terminal: false, supported: false, ..plain },
                Answer::Yes,
            ),
            ("forced in tmux", Facts { forced: Some("1"), in_tmux: true, ..plain }, Answer::Yes),
            ("forbidden", Facts { forced: Some("0"), ..plain }, Answer::No),
            ("forbidden in tmux", Facts { forced: Some(" 0 "), in_tmux: true, ..plain }, Answer::No),
            ("forced without escapes", Facts { forced: Some("1"), escapes: false, ..plain }, Answer::No),
            ("without escapes", Facts { escapes: false, ..plain }, Answer::No),
        ];
        for (name, facts, expected) in table {
            assert_eq!(decide(&facts), expected, "{name}");
        }
    }

    #[test]
    fn what_tmux_says() {
        let table = [
            ("bpaste,ccolour,hyperlinks,title", true),
            ("hyperlinks\n", true),
            ("bpaste,title", false),
            ("nohyperlinks,hyperlinksx", false),
            ("", false),
        ];
        for (features, expected) in table {
            assert_eq!(names_hyperlinks(features), expected, "{features:?}");
        }
    }

    #[test]
    fn where_they_lead() {
        let links = Links::to("127.0.0.1:4312");
        let id = paint(CYAN, "7c1d09e2");
        assert_eq!(
            links.session(SESSION.parse().unwrap(), &id),
            format!("\x1b]8;;http://127.0.0.1:4312/s/{SESSION}\x1b\\{id}\x1b]8;;\x1b\\")
        );
        assert_eq!(
            links.worker(&"agent-a1b".parse().unwrap(), "a1b"),
            "\x1b]8;;http://127.0.0.1:4312/w/agent-a1b\x1b\\a1b\x1b]8;;\x1b\\"
        );
        let table = [
            ("/home/ada/w/shop-4e1b/agent-a1b", "file:///home/ada/w/shop-4e1b/agent-a1b"),
            ("/w/a b;c\u{1b}\\\u{7}%ü", "file:///w/a%20b%3Bc%1B%5C%07%25%C3%BC"),
        ];
        for (path, target) in table {
            assert_eq!(links.file(Path::new(path), "x"), format!("\x1b]8;;{target}\x1b\\x\x1b]8;;\x1b\\"));
        }
        assert_eq!(links.file(Path::new("relative"), "x"), "x");
    }

    #[test]
    fn nowhere_else() {
        for links in [Links::default(), Links::to("192.0.2.1:80"), Links::to("evil.example:80/x")] {
            assert_eq!(links.session(SESSION.parse().unwrap(), "x"), "x");
            assert_eq!(links.worker(&"agent-a1b".parse().unwrap(), "x"), "x");
            assert_eq!(links.file(Path::new("/w"), "x"), "x");
        }
    }

    #[test]
    fn nothing_is_left_of_them_where_escapes_are_taken_out() {
        let shown = Links::to("[::1]:1").worker(&"agent-a1b".parse().unwrap(), &paint(CYAN, "a1b"));
        assert_eq!(anstream::adapter::strip_str(&shown).to_string(), "a1b");
    }
}
