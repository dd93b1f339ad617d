//! The live block on a terminal. Between frames the cursor rests on the block's first cell, so a reflow of the
//! terminal moves block and cursor together; automatic wrapping is off while rows are written, so a row of a
//! stale width spoils nothing. A frame writes only what changed, and is one write.

/// What is on the screen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    shown: Vec<String>,
    begun: bool,
    /// The terminal changed its size: what is on the screen is not known.
    stale: bool,
}

const WRAP_OFF: &str = "\x1b[?7l";
const WRAP_ON: &str = "\x1b[?7h";
const HIDE: &str = "\x1b[?25l";
const SHOW: &str = "\x1b[?25h";
const CLEAR_BEHIND: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

impl Block {
    /// The terminal was resized, or somebody else wrote to it: the next frame is a full one.
    pub(crate) fn invalidate(&mut self) {
        self.stale = true;
    }

    /// The bytes that put permanent lines above the block and these rows into it; none when nothing changed.
    pub(crate) fn frame(&mut self, permanent: &[String], rows: Vec<String>) -> Option<String> {
        if permanent.is_empty() && rows == self.shown && !self.stale {
            return None;
        }
        let mut bytes = String::with_capacity(512);
        if !self.begun {
            bytes.push_str(HIDE);
            self.begun = true;
        }
        bytes.push_str(WRAP_OFF);
        let total = permanent.len() + rows.len();
        let old = self.shown.len();
        // The line the cursor is on, counted from the block's first.
        let mut at = 0;
        let go = |bytes: &mut String, at: &mut usize, line: usize| {
            while *at < line {
                // A line feed makes the line when there is none below.
                bytes.push_str("\r\n");
                *at += 1;
            }
        };
        for (line, text) in permanent.iter().chain(&rows).enumerate() {
            let is_row = line >= permanent.len();
            if is_row && !self.stale && self.shown.get(line).is_some_and(|shown| shown == text) {
                continue;
            }
            go(&mut bytes, &mut at, line);
            if !is_row {
                // Cleared before it is reused: the mark that a row was wrapped would join lines later.
                bytes.push_str(CLEAR_BEHIND);
            }
            bytes.push_str(text);
            bytes.push_str(CLEAR_BEHIND);
            // A row left by a text of full width waits at the edge; the carriage return brings it back.
            bytes.push('\r');
        }
        if self.stale && total > 0 {
            // A narrower terminal has made more lines of the old rows than we know of.
            go(&mut bytes, &mut at, total - 1);
            let last = permanent.iter().chain(&rows).last().map_or("", String::as_str);
            bytes.push_str(last);
            bytes.push_str(CLEAR_BELOW);
            bytes.push('\r');
        }
        // Rows the block no longer has.
        for line in total..old.max(total) {
            go(&mut bytes, &mut at, line);
            bytes.push_str(CLEAR_BEHIND);
        }
        // What was added and not written since it did not change still has to exist below the cursor.
        if at > permanent.len() {
            bytes.push_str(&format!("\r\x1b[{}A", at - permanent.len()));
        } else {
            go(&mut bytes, &mut at, permanent.len());
        }
        bytes.push_str(WRAP_ON);
        self.shown = rows;
        self.stale = false;
        Some(bytes)
    }

    /// Permanent lines above the rows as they are.
    pub(crate) fn repeat(&mut self, permanent: &[String]) -> Option<String> {
        let rows = self.shown.clone();
        self.frame(permanent, rows)
    }

    /// The bytes that take the block away and give the cursor back.
    pub(crate) fn finish(&mut self, permanent: &[String]) -> String {
        let mut bytes = self.frame(permanent, Vec::new()).unwrap_or_default();
        if self.begun {
            bytes.push_str(SHOW);
            self.begun = false;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use super::*;

    fn rows(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn cells(number: u16) -> NonZero<u16> {
        NonZero::new(number).unwrap()
    }

    fn terminal(height: u16, width: u16) -> vt100::Parser {
        vt100::Parser::new(cells(height), cells(width), 200)
    }

    fn screen(parser: &vt100::Parser) -> Vec<String> {
        let (_, width) = parser.screen().size();
        let mut lines: Vec<String> =
            parser.screen().rows(0, width.get()).map(|line| line.trim_end().to_owned()).collect();
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        lines
    }

    #[test]
    fn nothing_changed_writes_nothing() {
        let mut block = Block::default();
        assert!(block.frame(&[], rows(&["a", "b"])).is_some());
        assert_eq!(block.frame(&[], rows(&["a", "b"])), None);
        let frame = block.frame(&[], rows(&["a", "c"])).unwrap();
        assert!(!frame.contains('a') && frame.contains('c'), "{frame:?}");
    }

    #[test]
    fn permanent_lines_stay_and_rows_live_below() {
        let mut parser = terminal(8, 20);
        let mut block = Block::default();
        let mut feed = |permanent: &[&str], texts: &[&str]| {
            if let Some(frame) = block.frame(&rows(permanent), rows(texts)) {
                parser.process(frame.as_bytes());
            }
            (screen(&parser), parser.screen().cursor_position())
        };
        assert_eq!(feed(&[], &["one", "two", "three"]), (rows(&["one", "two", "three"]), (0, 0)));
        assert_eq!(feed(&["done x"], &["one", "three"]), (rows(&["done x", "one", "three"]), (1, 0)));
        assert_eq!(feed(&["done y"], &["three"]), (rows(&["done x", "done y", "three"]), (2, 0)));
        assert_eq!(feed(&[], &["three", "four"]), (rows(&["done x", "done y", "three", "four"]), (2, 0)));
        // Growing at the bottom scrolls, and the block stays whole.
        let (lines, cursor) = feed(&["p", "q", "r"], &["1", "2", "3", "4"]);
        assert_eq!(lines, rows(&["done y", "p", "q", "r", "1", "2", "3", "4"]));
        assert_eq!(cursor, (4, 0));
    }

    #[test]
    fn the_end_leaves_permanent_lines_alone() {
        let mut parser = terminal(8, 20);
        let mut block = Block::default();
        parser.process(block.frame(&[], rows(&["one", "two"])).unwrap().as_bytes());
        assert!(parser.screen().hide_cursor());
        parser.process(block.finish(&rows(&["done"])).as_bytes());
        assert_eq!(screen(&parser), ["done"]);
        assert_eq!(parser.screen().cursor_position(), (1, 0));
        assert!(!parser.screen().hide_cursor());
    }

    #[test]
    fn six_resizes_leave_no_stray_row() {
        let mut parser = terminal(10, 100);
        let mut block = Block::default();
        let mut permanents = 0;
        for (turn, width) in [100u16, 60, 100, 50, 90, 70, 100].into_iter().enumerate() {
            parser.screen_mut().set_size(cells(10), cells(width));
            block.invalidate();
            for beat in 0..5 {
                let fill = "x".repeat(usize::from(width) - 1);
                let texts: Vec<String> = (0..4)
                    .map(|row| format!("{row}{beat}{fill}")[..usize::from(width) - 1].to_owned())
                    .collect();
                let permanent = if beat == 2 {
                    permanents += 1;
                    vec![format!("permanent {turn}")]
                } else {
                    Vec::new()
                };
                if let Some(frame) = block.frame(&permanent, texts) {
                    assert!(frame.len() <= 4096);
                    parser.process(frame.as_bytes());
                }
            }
        }
        let lines = screen(&parser);
        let live = lines.iter().filter(|line| line.ends_with('x')).count();
        assert_eq!(live, 4, "{lines:#?}");
        let kept = lines.iter().filter(|line| line.starts_with("permanent")).count();
        assert_eq!(kept, permanents.min(6), "{lines:#?}");
    }
}
