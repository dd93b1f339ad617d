//! What a person would have read: escape sequences gone, progress bars as their last state, control
//! characters harmless. Works on a stream; a sequence may be cut anywhere.

/// A line this long is given out unfinished, so that memory stays bounded.
const MAX_LINE_CHARS: usize = 16 * 1024;
/// An unterminated string sequence ends here, or one stray byte would swallow the rest.
const MAX_SEQUENCE_CHARS: usize = 4 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Text,
    /// After ESC.
    Escape,
    /// After ESC and an intermediate, as in the choice of a character set.
    Intermediate,
    /// After ESC [.
    Control,
    /// OSC, DCS, SOS, PM, APC: until BEL or ESC \.
    String,
    StringEscape,
}

/// A terminal of one line.
#[derive(Debug)]
pub(super) struct Screen {
    mode: Mode,
    parameters: String,
    sequence_chars: usize,
    line: Vec<char>,
    /// A carriage return was seen; what comes next, unless a line feed, replaces the line.
    returned: bool,
}

impl Screen {
    pub(super) fn new() -> Self {
        Self {
            mode: Mode::Text,
            parameters: String::new(),
            sequence_chars: 0,
            line: Vec::new(),
            returned: false,
        }
    }

    /// Takes text and appends finished lines to `out`.
    pub(super) fn push(&mut self, text: &str, out: &mut String) {
        for char in text.chars() {
            self.take(char, out);
        }
    }

    /// The line that has not ended yet.
    pub(super) fn open_line(&self) -> String {
        self.line.iter().collect()
    }

    /// Appends the open line; the stream is over.
    pub(super) fn finish(mut self, out: &mut String) {
        self.give_line(out);
    }

    fn take(&mut self, char: char, out: &mut String) {
        match (self.mode, char) {
            (Mode::Text, _) => self.text(char, out),
            (Mode::Escape, '[') => {
                self.parameters.clear();
                self.begin(Mode::Control);
            }
            (Mode::Escape, ']' | 'P' | 'X' | '^' | '_') => self.begin(Mode::String),
            (Mode::Escape | Mode::Intermediate, ' '..='/') => self.mode = Mode::Intermediate,
            (Mode::Escape | Mode::Intermediate, '\u{1b}') => self.mode = Mode::Escape,
            // A sequence never holds a line feed: it was not one.
            (Mode::Escape | Mode::Intermediate | Mode::Control, '\n') => {
                self.mode = Mode::Text;
                self.text(char, out);
            }
            (Mode::Escape | Mode::Intermediate, _) => self.mode = Mode::Text,
            (Mode::Control, '\u{40}'..='\u{7e}') => {
                self.mode = Mode::Text;
                self.control(char);
            }
            (Mode::Control, '\u{1b}') => self.mode = Mode::Escape,
            (Mode::Control, _) => {
                self.parameters.push(char);
                self.count(char, out);
            }
            (Mode::String, '\u{7}') | (Mode::StringEscape, '\\') => self.mode = Mode::Text,
            (Mode::String | Mode::StringEscape, '\u{1b}') => self.mode = Mode::StringEscape,
            (Mode::String | Mode::StringEscape, _) => {
                self.mode = Mode::String;
                self.count(char, out);
            }
        }
    }

    fn begin(&mut self, mode: Mode) {
        self.mode = mode;
        self.sequence_chars = 0;
    }

    fn count(&mut self, char: char, out: &mut String) {
        self.sequence_chars += 1;
        if self.sequence_chars > MAX_SEQUENCE_CHARS || char == '\n' {
            self.mode = Mode::Text;
            if char == '\n' {
                self.text(char, out);
            }
        }
    }

    /// A control sequence: only those that erase the line have a meaning here.
    fn control(&mut self, last: char) {
        match (last, self.parameters.as_str()) {
            ('K', "2") | ('G', "" | "1") => self.returned = true,
            ('K', "" | "0") if self.returned => self.line.clear(),
            _ => {}
        }
    }

    fn text(&mut self, char: char, out: &mut String) {
        match char {
            '\n' => {
                self.give_line(out);
                out.push('\n');
                return;
            }
            '\r' => {
                self.returned = true;
                return;
            }
            '\u{1b}' => {
                self.mode = Mode::Escape;
                return;
            }
            '\u{7}' => return,
            '\u{8}' => {
                self.line.pop();
                return;
            }
            _ => {}
        }
        if std::mem::take(&mut self.returned) {
            self.line.clear();
        }
        self.line.push(visible(char));
        if self.line.len() >= MAX_LINE_CHARS {
            self.give_line(out);
        }
    }

    fn give_line(&mut self, out: &mut String) {
        out.extend(self.line.drain(..));
        self.returned = false;
    }
}

/// Control characters as pictures, so that a NUL can be seen and none of them acts.
fn visible(char: char) -> char {
    match char {
        '\t' => char,
        '\0'..='\u{1f}' => char::from_u32(0x2400 + u32::from(char)).unwrap_or('\u{fffd}'),
        '\u{7f}' => '\u{2421}',
        '\u{80}'..='\u{9f}' => '\u{fffd}',
        _ => char,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(parts: &[&str], expected: &str) {
        let mut out = String::new();
        let mut screen = Screen::new();
        for part in parts {
            screen.push(part, &mut out);
        }
        screen.finish(&mut out);
        assert_eq!(out, expected, "{parts:?}");
    }

    #[test]
    fn sequences_go_and_progress_keeps_its_last_state() {
        check(&["\u{1b}[2J\u{1b}]0;t\u{7}10%\r20%\r100%\n"], "100%\n");
        check(&["\u{1b}[31mred\u{1b}[0m plain"], "red plain");
        check(&["a\r\nb\r\n"], "a\nb\n");
        check(&["100%\r\u{1b}[Kdone\n"], "done\n");
        check(&["long line\u{1b}[2K\u{1b}[1Gshort\n"], "short\n");
        check(&["ab\u{8}c\t|\n"], "ac\t|\n");
        check(&["\u{1b}(Btext\u{1b}=\u{1b}>"], "text");
    }

    #[test]
    fn sequences_may_be_cut_anywhere() {
        check(&["a\u{1b}", "[3", "1mb"], "ab");
        check(&["x\u{1b}]8;;http://h", "\u{1b}", "\\link"], "xlink");
        check(&["one\r", "\ntwo\r", "2"], "one\n2");
    }

    #[test]
    fn what_is_no_sequence_swallows_nothing() {
        check(&["\u{1b}]0;never ended\nnext\n"], "\nnext\n");
        check(&["\u{1b}[\nnext"], "\nnext");
        check(&["a\0b\u{1}\u{7f}\u{9b}c"], "a\u{2400}b\u{2401}\u{2421}\u{fffd}c");
        let endless = format!("{}end", "\u{1b}]".to_owned() + &"x".repeat(5000));
        let mut out = String::new();
        let mut screen = Screen::new();
        screen.push(&endless, &mut out);
        screen.finish(&mut out);
        assert!(out.ends_with("end"));
    }
}
