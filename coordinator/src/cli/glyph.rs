//! One glyph and one word for each state. Glyphs are of East Asian width class N, so that terminals with
//! wide ambiguous characters keep their columns; a second set is ASCII.

use anstyle::Style;
use swarm_protocol::{WaitingFor, WorkerStatus};

use super::{
    output::{CYAN, DIM, GREEN, RED, YELLOW},
    state::WorkerRow,
};

const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// Which set a terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Glyphs {
    /// Of Unicode.
    Unicode,
    /// Of ASCII.
    Ascii,
}

/// What a row is about, for glyph, colour and order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// It works, or is being started.
    Run,
    /// It waits for a person.
    NeedsYou,
    /// It waits for something else.
    WaitsOtherwise,
    /// All places are taken.
    Queued,
    /// Completed.
    Done,
    /// Completed, with a doubt.
    Doubt,
    /// Ended otherwise.
    Failed,
    /// Stopped.
    Stopped,
}

impl Class {
    /// Of a worker.
    pub(crate) fn of(worker: &WorkerRow) -> Self {
        match worker.status {
            WorkerStatus::Pending => Self::Queued,
            WorkerStatus::Starting | WorkerStatus::Running | WorkerStatus::Finishing => Self::Run,
            WorkerStatus::Waiting => match worker.waiting_for {
                Some(WaitingFor::Permission) => Self::NeedsYou,
                Some(WaitingFor::OwnJobs | WaitingFor::Model | WaitingFor::Server) | None => {
                    Self::WaitsOtherwise
                }
            },
            WorkerStatus::Completed if worker.doubts.is_empty() => Self::Done,
            WorkerStatus::Completed => Self::Doubt,
            WorkerStatus::Failed => Self::Failed,
            WorkerStatus::Aborted => Self::Stopped,
        }
    }

    /// The colour; the glyph and the word say the same.
    pub(crate) const fn style(self) -> Style {
        match self {
            Self::Run => CYAN,
            Self::NeedsYou | Self::Doubt => YELLOW,
            Self::WaitsOtherwise | Self::Queued | Self::Stopped => DIM,
            Self::Done => GREEN,
            Self::Failed => RED,
        }
    }
}

impl Glyphs {
    /// What the locale, the terminal and the user say.
    pub(crate) fn choose(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        if set("SWARM_ASCII").is_some_and(|value| value != "0") || set("TERM").as_deref() == Some("linux") {
            return Self::Ascii;
        }
        let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG")).unwrap_or_default();
        let locale = locale.to_ascii_lowercase();
        if locale.contains("utf-8") || locale.contains("utf8") { Self::Unicode } else { Self::Ascii }
    }

    /// The glyph of output that stands still.
    pub(crate) const fn still(self, class: Class) -> &'static str {
        match (self, class) {
            (_, Class::Run) => ">",
            (_, Class::NeedsYou) => "?",
            (_, Class::WaitsOtherwise) => "~",
            (_, Class::Queued) => "-",
            (_, Class::Doubt) => "!",
            (Self::Unicode, Class::Done) => "✓",
            (Self::Unicode, Class::Failed) => "✗",
            (Self::Unicode, Class::Stopped) => "⊘",
            (Self::Ascii, Class::Done) => "+",
            (Self::Ascii, Class::Failed) => "x",
            (Self::Ascii, Class::Stopped) => "#",
        }
    }

    /// The glyph of a live row: who works is seen to work.
    pub(crate) const fn live(self, class: Class, now_millis: i64) -> &'static str {
        match (self, class) {
            (Self::Unicode, Class::Run) => SPINNER[(now_millis.rem_euclid(1000) / 100) as usize],
            _ => self.still(class),
        }
    }
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr;

    use super::*;

    #[test]
    fn each_glyph_has_one_width_under_both_readings_of_ambiguous() {
        let classes = [
            Class::Run,
            Class::NeedsYou,
            Class::WaitsOtherwise,
            Class::Queued,
            Class::Done,
            Class::Doubt,
            Class::Failed,
            Class::Stopped,
        ];
        for class in classes {
            for glyph in (0..10)
                .map(|frame| Glyphs::Unicode.live(class, frame * 100))
                .chain([Glyphs::Unicode.still(class)])
            {
                assert_eq!((glyph.width(), glyph.width_cjk()), (1, 1), "{glyph}");
            }
            assert!(Glyphs::Ascii.live(class, 0).is_ascii() && Glyphs::Ascii.still(class).is_ascii());
        }
    }

    #[test]
    fn ascii_where_the_locale_is_not_utf8() {
        let choose = |pairs: &[(&str, &str)]| {
            Glyphs::choose(|name| {
                pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(choose(&[("LANG", "en_US.UTF-8")]), Glyphs::Unicode);
        assert_eq!(choose(&[("LANG", "en_US.UTF-8"), ("LC_ALL", "C")]), Glyphs::Ascii);
        assert_eq!(choose(&[("LANG", "C.utf8"), ("SWARM_ASCII", "1")]), Glyphs::Ascii);
        assert_eq!(choose(&[("LANG", "C.utf8"), ("TERM", "linux")]), Glyphs::Ascii);
        assert_eq!(choose(&[]), Glyphs::Ascii);
    }
}
